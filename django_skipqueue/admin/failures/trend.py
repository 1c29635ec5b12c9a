"""The failed attempts of a cause by hour: a small drawing for a table, and a chart."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from django.utils.formats import time_format
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...operators.counts import grouped
from ...store.failures import FailureCounts
from ..charts import paths, scale
from ..charts.chart import Chart, Series
from ..charts.local_times import LocalTimes
from ..charts.time_axis import TimeAxis

HOUR = 3_600

DAY_HOURS, WEEK_HOURS = 24, 168


@dataclass(frozen=True)
class Trend:
    counts: FailureCounts
    hours: int

    @property
    def path(self) -> str:
        """The bars, as SVG writes them, in a box of `hours` times 100 units."""
        most = max(self.numbers)
        return paths.bars([[number / most for number in self.numbers]])[0] if most else ""

    @property
    def text(self) -> str:
        numbers = self.numbers
        most = max(numbers)
        if not most:
            return gettext("none in 24 hours")
        seconds = self._axis.start + HOUR * numbers.index(most)
        return gettext("24 hours, by hour; most: %(number)s from %(time)s on") % {
            "number": grouped(most),
            "time": time_format(datetime.fromtimestamp(seconds, get_current_timezone()), "H:i"),
        }

    @property
    def chart(self) -> Chart:
        series = Series(_("failed"), "failed", self.numbers, grouped(sum(self.numbers)))
        return Chart(
            "failures",
            _("Failed attempts by hour"),
            LocalTimes(self._axis, get_current_timezone(), timedelta(days=2)),
            scale.of_numbers,
            lambda number: grouped(round(number)),
            [series],
            stacks=True,
        )

    @cached_property
    def numbers(self) -> list[int]:
        axis = self._axis
        return [self.counts.by_hour.get(start // HOUR, 0) for start in range(axis.start, axis.end, HOUR)]

    @property
    def _axis(self) -> TimeAxis:
        return TimeAxis.up_to(self.counts.now.timestamp(), width=HOUR, buckets=self.hours)

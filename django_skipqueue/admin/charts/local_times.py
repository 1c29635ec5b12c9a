"""The horizontal axis of a chart in local time, as text. All charts of a page share one. Pure."""

from dataclasses import dataclass
from datetime import timedelta, tzinfo
from functools import cached_property

from django.utils.formats import date_format

from .mark import Mark
from .time_axis import TimeAxis

EDGE = 0.03
"""The share of the axis at either end that has no label."""


@dataclass(frozen=True)
class LocalTimes:
    axis: TimeAxis
    zone: tzinfo
    mark_every: timedelta
    """The distance of the labels."""

    @cached_property
    def marks(self) -> list[Mark]:
        """The labels of the axis. None stands at its very ends, where there is no room for it."""
        has_days = self.mark_every >= timedelta(days=1)
        return [
            Mark(share, date_format(moment, "D j") if has_days else f"{moment:%H:%M}")
            for share, moment in self.axis.marks(self.mark_every, self.zone)
            if EDGE <= share <= 1 - EDGE
        ]

    @cached_property
    def buckets(self) -> list[str]:
        times = self.axis.times(self.zone)
        is_long = self.axis.end - self.axis.start > 86_400
        days = {day: date_format(day, "D j ") if is_long else "" for day in {start.date() for start, _ in times}}
        return [f"{days[start.date()]}{start:%H:%M}\N{EN DASH}{end:%H:%M}" for start, end in times]

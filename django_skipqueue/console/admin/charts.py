"""Charts for the template: the drawing, its legend, and the values as a table.

Drawing is pure. The vertical axis goes from zero to a round number. The horizontal axis is a stretch of time in equal
buckets, with marks at round local times. All charts of a page share its texts.

A path is what SVG writes, in a box that is 100 units high, with its origin at the upper left. One value takes one unit
of the width. The box is stretched to the place that it has on the page.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from html import escape
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from django.utils.formats import date_format
from django.utils.safestring import SafeString

from ..facts import NOTHING


class Mark(NamedTuple):
    """The place, from 0 at the lower or left end to 1, and its label."""

    share: float
    label: str

    @property
    def from_top(self) -> str:
        """The distance from the upper end, in hundredths of the axis."""
        return f"{100 * (1 - self.share):.2f}"

    @property
    def from_left(self) -> str:
        """The distance from the left end, in hundredths of the axis."""
        return f"{100 * self.share:.2f}"


MOST_STEPS = 4
"""The maximum of steps from zero to the top."""

ROUND_DURATIONS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400,
)  # fmt: skip
"""Steps in seconds that are round in the units of time; below one second and above one day, decimal ones are."""


@dataclass(frozen=True)
class Scale:
    """An axis from 0 to `steps` times `step`."""

    step: float
    steps: int

    @property
    def top(self) -> float:
        return self.step * self.steps

    @property
    def marks(self) -> list[float]:
        return [self.step * number for number in range(self.steps + 1)]

    def share(self, value: float) -> float:
        """The place of a value on the axis: 0 at the lower end, 1 at the upper."""
        return value / self.top


def of_numbers(highest: float) -> Scale:
    """The axis for numbers of things up to `highest`: whole steps of 1, 2 or 5 and zeros."""
    return _scale(highest, max(1.0, _decimal_step(highest / MOST_STEPS)))


def of_durations(highest: float) -> Scale:
    """The axis for durations in seconds up to `highest`; without any, up to 1 ms."""
    wanted = max(highest, 0.001) / MOST_STEPS
    if wanted <= 0.5 or wanted > ROUND_DURATIONS[-1]:
        days = 86_400 if wanted > ROUND_DURATIONS[-1] else 1
        return _scale(max(highest, 0.001), _decimal_step(wanted / days) * days)
    return _scale(highest, next(step for step in ROUND_DURATIONS if step >= wanted))


def _scale(highest: float, step: float) -> Scale:
    return Scale(step, max(1, math.ceil(round(highest / step, 6))))


def _decimal_step(wanted: float) -> float:
    """The least of 1, 2, 5, 10, 20, 50 … and of 0.5, 0.2, 0.1 … that is not below `wanted`."""
    if wanted <= 0:
        return 1.0
    power = math.floor(math.log10(wanted))
    for factor in (1, 2, 5):
        step = float(f"{factor}e{power}")
        if step >= wanted * (1 - 1e-9):
            return step
    return float(f"1e{power + 1}")


@dataclass(frozen=True)
class TimeAxis:
    """`buckets` stretches of `width` seconds each, from `start` on, in seconds since the epoch."""

    start: int
    width: int
    buckets: int

    @classmethod
    def up_to(cls, now: float, *, width: int, buckets: int) -> "TimeAxis":
        """The axis of which the last bucket contains `now`, and of which every bucket starts at a multiple of it."""
        end = (int(now // width) + 1) * width
        return cls(end - width * buckets, width, buckets)

    @property
    def end(self) -> int:
        return self.start + self.width * self.buckets

    def place(self, seconds: float) -> int | None:
        """The number of the bucket of this time; `None` if it lies outside."""
        place = int((seconds - self.start) // self.width)
        return place if 0 <= place < self.buckets else None

    def times(self, zone: tzinfo) -> list[tuple[datetime, datetime]]:
        limits = range(self.start, self.end + 1, self.width)
        return list(pairwise(datetime.fromtimestamp(seconds, zone) for seconds in limits))

    def marks(self, step: timedelta, zone: tzinfo) -> Iterator[tuple[float, datetime]]:
        """The round local times, multiples of `step` from midnight on: each with its share of the axis."""
        moment = datetime.fromtimestamp(self.start, zone).replace(hour=0, minute=0, second=0, microsecond=0)
        while (seconds := moment.timestamp()) < self.end:
            if seconds >= self.start:
                yield (seconds - self.start) / (self.end - self.start), moment
            moment += step  # by the clock on the wall: a day has 23 to 25 hours


EDGE = 0.03
"""The share of the axis at either end that has no label."""


@dataclass(frozen=True)
class LocalTimes:
    axis: TimeAxis
    zone: tzinfo
    mark_every: timedelta
    """The distance of the labels."""

    def mark(self, seconds: float, label: str) -> Mark:
        """A time on the axis, in seconds since the epoch."""
        return Mark((seconds - self.axis.start) / (self.axis.end - self.axis.start), label)

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


HEIGHT = 100

Share = float | None
"""A place on the vertical axis, from 0 to 1; `None`: a gap."""

LEAST_BAR = 1.0
"""The least height of a bar, so that a small value can be seen."""


class Curve(NamedTuple):
    """A line through the middles of the values, with gaps, and the area under it."""

    line: str
    area: str


def curve(shares: Sequence[Share]) -> Curve:
    """The curve through the values. A single value between two gaps is a short level line."""
    lines, areas = [], []
    for is_gap, places in groupby(enumerate(shares), key=lambda each: each[1] is None):
        if is_gap:
            continue
        run = [(place, share or 0.0) for place, share in places]
        (first, share), (last, _) = run[0], run[-1]
        if first == last:
            start, end = f"{first}", f"{first + 1}"
            top = f"{start},{_y(share)} {end},{_y(share)}"
        else:
            start, end = f"{first}.5", f"{last}.5"
            top = " ".join(f"{place}.5,{_y(share)}" for place, share in run)
        lines.append(f"M{top}")
        areas.append(f"M{start},{HEIGHT} {top} {end},{HEIGHT}z")
    return Curve("".join(lines), "".join(areas))


def bars(layers: Sequence[Sequence[float]]) -> list[str]:
    """Stacked bars: a path for each layer, the lowest first. All layers have equal length."""
    bases = [0.0] * max(map(len, layers), default=0)
    paths = []
    for layer in layers:
        parts = []
        for place, share in enumerate(layer):
            if share > 0:
                height = max(share * HEIGHT, LEAST_BAR)
                upper = max(HEIGHT - bases[place] - height, 0.0)
                parts.append(f"M{place}.1,{_number(upper)}h.8v{_number(height)}h-.8z")
                bases[place] += height
        paths.append("".join(parts))
    return paths


def _y(share: float) -> str:
    return _number(HEIGHT * (1 - share))


def _number(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Series:
    label: Any
    style: str
    """For the style sheet: the drawing has the class `skipqueue-series-STYLE`."""
    values: Sequence[float | None]
    """`None`: a gap."""
    summary: str = ""
    """For the legend: the sum of the values, or the newest of them."""


class Drawn(NamedTuple):
    series: Series
    line: str = ""
    area: str = ""
    bars: str = ""


@dataclass(frozen=True)
class Chart:
    name: str
    """For the addresses within the page."""
    title: Any
    times: LocalTimes
    scale_for: Callable[[float], Scale]
    written: Callable[[float], str]
    """A value as text."""
    series: Sequence[Series]
    stacks: bool = False
    """Whether the values add up to bars, the first series lowest; else they are lines."""
    changes: Sequence[Mark] = ()
    """Times at which something changed, such as the deployment: each with what it is, the last one first."""

    @property
    def is_empty(self) -> bool:
        return not any(value for series in self.series for value in series.values)

    @cached_property
    def scale(self) -> Scale:
        columns = [[value or 0.0 for value in column] for column in zip(*(s.values for s in self.series), strict=True)]
        return self.scale_for(max(((sum if self.stacks else max)(column) for column in columns), default=0.0))

    @property
    def value_marks(self) -> list[Mark]:
        return [Mark(self.scale.share(value), self.written(value)) for value in self.scale.marks]

    @property
    def drawn(self) -> list[Drawn]:
        if self.stacks:
            layers = [[self.scale.share(value or 0.0) for value in series.values] for series in self.series]
            return [Drawn(series, bars=bars) for series, bars in zip(self.series, bars(layers), strict=True)]
        found = []
        for series in self.series:
            shares = [None if value is None else self.scale.share(value) for value in series.values]
            found.append(Drawn(series, *curve(shares)))
        return found

    @cached_property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Each bucket: its time, and the value of each series as text."""
        values = {value for series in self.series for value in series.values}
        # To format a number takes time, so each number is formatted once.
        texts = {value: NOTHING if value is None else self.written(value) for value in values}
        columns = [[texts[value] for value in series.values] for series in self.series]
        return [(time, cells) for time, *cells in zip(self.times.buckets, *columns, strict=True)]

    @property
    def hovers(self) -> list[str]:
        """The text of each bucket under the mouse: the series as they stand above each other."""
        labels = [str(series.label) for series in self.series]
        changed = {int(change.share * self.times.axis.buckets): change.label for change in self.changes}
        found = []
        for place, (time, cells) in enumerate(self.rows):
            lines = [f"{label}: {cell}" for label, cell in zip(labels, cells, strict=True)]
            change = [changed[place]] if place in changed else []
            found.append("\n".join([time, *(reversed(lines) if self.stacks else lines), *change]))
        return found

    @property
    def hovered(self) -> SafeString:
        """The places to hover over. Made here: in a template they would take most of the time of the page."""
        place = '<rect class="skipqueue-bucket" x="{}" width="1" height="100"><title>{}</title></rect>'
        return _repeated(place, ((str(number), text) for number, text in enumerate(self.hovers)))

    @property
    def table_rows(self) -> SafeString:
        cells = "<td>{}</td>" * len(self.series)
        return _repeated(f'<tr><th scope="row">{{}}</th>{cells}</tr>\n', ((time, *texts) for time, texts in self.rows))


def _repeated(template: str, rows: Iterable[Iterable[str]]) -> SafeString:
    """The template once for each row of texts, none of which is HTML: `format_html_join` takes four times as long."""
    return SafeString("".join([template.format(*map(escape, texts)) for texts in rows]))

"""Draws charts as SVG, with a legend and a table of the values.

The vertical axis goes from zero to a round number. The horizontal axis is a period of time, divided into equal buckets
and labelled at round local times. All charts of a page share the time axis. An SVG drawing is 100 units high and one
unit wide per bucket, with its origin at the upper left. The browser stretches it to the available size.
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
    """A label on an axis."""

    position: float
    """From 0 at the lower or left end to 1 at the other end."""
    label: str

    @property
    def from_top(self) -> str:
        """The distance from the upper end, as a percentage of the axis."""
        return f"{100 * (1 - self.position):.2f}"

    @property
    def from_left(self) -> str:
        """The distance from the left end, as a percentage of the axis."""
        return f"{100 * self.position:.2f}"


MOST_STEPS = 4
"""An axis has at most this many steps from zero to the top."""

ROUND_DURATIONS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400,
)  # fmt: skip
"""Steps of an axis, in seconds, that are round in minutes or hours. Shorter and longer steps are decimal numbers."""


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

    def position_of(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 at the lower end to 1 at the upper end."""
        return value / self.top


def of_numbers(highest: float) -> Scale:
    """Return an axis for counts up to `highest`. Its steps are 1, 2 or 5, or one of these followed by zeros."""
    return _scale(highest, max(1.0, _decimal_step(highest / MOST_STEPS)))


def of_durations(highest: float) -> Scale:
    """Return an axis for durations in seconds up to `highest`, but at least up to 1 ms."""
    least_step = max(highest, 0.001) / MOST_STEPS
    if least_step <= 0.5 or least_step > ROUND_DURATIONS[-1]:
        unit = 86_400 if least_step > ROUND_DURATIONS[-1] else 1
        return _scale(max(highest, 0.001), _decimal_step(least_step / unit) * unit)
    return _scale(highest, next(step for step in ROUND_DURATIONS if step >= least_step))


def _scale(highest: float, step: float) -> Scale:
    # Rounded first, because 0.3 / 0.1 is slightly more than 3 and would become 4 steps.
    return Scale(step, max(1, math.ceil(round(highest / step, 6))))


def _decimal_step(least_step: float) -> float:
    """Return the smallest step of the series … 0.1, 0.2, 0.5, 1, 2, 5, 10 … that is at least `least_step`."""
    if least_step <= 0:
        return 1.0
    power = math.floor(math.log10(least_step))
    for factor in (1, 2, 5):
        step = float(f"{factor}e{power}")
        if step >= least_step * (1 - 1e-9):  # floats may differ in their last digits
            return step
    return float(f"1e{power + 1}")


@dataclass(frozen=True)
class TimeAxis:
    """A period that begins at `start`, in seconds since the epoch. It has `bucket_count` buckets of `width` seconds."""

    start: int
    width: int
    bucket_count: int

    @classmethod
    def up_to(cls, now: float, *, width: int, bucket_count: int) -> "TimeAxis":
        """Return the axis whose last bucket contains `now`. Every bucket starts at a multiple of `width`."""
        end = (int(now // width) + 1) * width
        return cls(end - width * bucket_count, width, bucket_count)

    @property
    def end(self) -> int:
        return self.start + self.width * self.bucket_count

    def place(self, seconds: float) -> int | None:
        """Return the index of the bucket that contains this time; `None` if it is outside the axis."""
        index = int((seconds - self.start) // self.width)
        return index if 0 <= index < self.bucket_count else None

    def times(self, zone: tzinfo) -> list[tuple[datetime, datetime]]:
        """Return the start and the end of each bucket."""
        limits = range(self.start, self.end + 1, self.width)
        return list(pairwise(datetime.fromtimestamp(seconds, zone) for seconds in limits))

    def marks(self, step: timedelta, zone: tzinfo) -> Iterator[tuple[float, datetime]]:
        """Yield the times to label, every `step` from local midnight on, each with its position on the axis."""
        moment = datetime.fromtimestamp(self.start, zone).replace(hour=0, minute=0, second=0, microsecond=0)
        while (seconds := moment.timestamp()) < self.end:
            if seconds >= self.start:
                yield (seconds - self.start) / (self.end - self.start), moment
            moment += step  # in local time, so a day may have 23 to 25 hours


EDGE = 0.03
"""A label at a position below this, or above 1 minus this, would not fit on the chart."""


@dataclass(frozen=True)
class LocalTimes:
    axis: TimeAxis
    zone: tzinfo
    mark_every: timedelta
    """The time between two labels."""

    def mark(self, seconds: float, label: str) -> Mark:
        """Return a mark at this time, which is in seconds since the epoch."""
        return Mark((seconds - self.axis.start) / (self.axis.end - self.axis.start), label)

    @cached_property
    def marks(self) -> list[Mark]:
        """The labels of the axis. There are none near its ends, where there is no room for them."""
        has_days = self.mark_every >= timedelta(days=1)
        return [
            Mark(position, date_format(moment, "D j") if has_days else f"{moment:%H:%M}")
            for position, moment in self.axis.marks(self.mark_every, self.zone)
            if EDGE <= position <= 1 - EDGE
        ]

    @cached_property
    def bucket_labels(self) -> list[str]:
        """The local times at which each bucket starts and ends; also the day if the axis is longer than a day."""
        times = self.axis.times(self.zone)
        is_long = self.axis.end - self.axis.start > 86_400
        days = {start.date() for start, _end in times}
        day_labels = {day: date_format(day, "D j ") if is_long else "" for day in days}
        return [f"{day_labels[start.date()]}{start:%H:%M}\N{EN DASH}{end:%H:%M}" for start, end in times]


HEIGHT = 100

PositionOrGap = float | None
"""A position on the vertical axis, from 0 to 1; `None` is a gap."""

LEAST_BAR = 1.0
"""The minimum height of a bar, so that even a small value is visible."""


class Curve(NamedTuple):
    """SVG paths: a line through the values, with gaps, and the area under the line."""

    line: str
    area: str


def curve(positions: Sequence[PositionOrGap]) -> Curve:
    """Draw a curve through the values. A single value between two gaps becomes a short level line."""
    lines, areas = [], []
    for is_gap, group in groupby(enumerate(positions), key=lambda point: point[1] is None):
        if is_gap:
            continue
        points = [(bucket, position or 0.0) for bucket, position in group]
        (first_bucket, first_position), (last_bucket, _last_position) = points[0], points[-1]
        if first_bucket == last_bucket:
            start, end = f"{first_bucket}", f"{first_bucket + 1}"
            top = f"{start},{_y(first_position)} {end},{_y(first_position)}"
        else:  # the curve goes through the middle of each bucket
            start, end = f"{first_bucket}.5", f"{last_bucket}.5"
            top = " ".join(f"{bucket}.5,{_y(position)}" for bucket, position in points)
        lines.append(f"M{top}")
        areas.append(f"M{start},{HEIGHT} {top} {end},{HEIGHT}z")
    return Curve("".join(lines), "".join(areas))


def bars(layers: Sequence[Sequence[float]]) -> list[str]:
    """Draw stacked bars: return a path for each layer, the lowest first. All layers have the same length."""
    heights_below = [0.0] * max(map(len, layers), default=0)  # for each bucket, the height of the layers drawn so far
    paths = []
    for layer in layers:
        rectangles = []
        for bucket, position in enumerate(layer):
            if position > 0:
                height = max(position * HEIGHT, LEAST_BAR)
                upper = max(HEIGHT - heights_below[bucket] - height, 0.0)
                # A bar is 0.8 wide, so that gaps of 0.1 remain on both sides of it in its bucket.
                rectangles.append(f"M{bucket}.1,{_svg_number(upper)}h.8v{_svg_number(height)}h-.8z")
                heights_below[bucket] += height
        paths.append("".join(rectangles))
    return paths


def _y(position: float) -> str:
    """Return the vertical coordinate of a position in an SVG drawing."""
    return _svg_number(HEIGHT * (1 - position))


def _svg_number(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Series:
    label: Any
    style: str
    """The drawing gets the CSS class `skipqueue-series-STYLE`."""
    values: Sequence[float | None]
    """One value per bucket; `None` is a gap in the chart."""
    summary: str = ""
    """A text for the legend, such as the sum of the values or the newest value."""


class Drawn(NamedTuple):
    series: Series
    line: str = ""
    area: str = ""
    bars: str = ""


@dataclass(frozen=True)
class Chart:
    name: str
    """The ids of the page's elements contain this name."""
    title: Any
    times: LocalTimes
    scale_for: Callable[[float], Scale]
    written: Callable[[float], str]
    """Formats a value as text."""
    series: Sequence[Series]
    stacks: bool = False
    """Whether the series are drawn as stacked bars, the first series lowest, rather than as lines."""
    changes: Sequence[Mark] = ()
    """Times at which something changed, such as a new deployment, the newest first."""

    @property
    def is_empty(self) -> bool:
        return not any(value for series in self.series for value in series.values)

    @cached_property
    def scale(self) -> Scale:
        columns = zip(*(series.values for series in self.series), strict=True)
        numbers_by_bucket = [[value or 0.0 for value in column] for column in columns]
        heights = [sum(numbers) if self.stacks else max(numbers) for numbers in numbers_by_bucket]
        return self.scale_for(max(heights, default=0.0))

    @property
    def value_marks(self) -> list[Mark]:
        return [Mark(self.scale.position_of(value), self.written(value)) for value in self.scale.marks]

    @property
    def drawn(self) -> list[Drawn]:
        if self.stacks:
            layers = [[self.scale.position_of(value or 0.0) for value in series.values] for series in self.series]
            return [Drawn(series, bars=path) for series, path in zip(self.series, bars(layers), strict=True)]
        curves = []
        for series in self.series:
            positions = [None if value is None else self.scale.position_of(value) for value in series.values]
            line, area = curve(positions)
            curves.append(Drawn(series, line, area))
        return curves

    @cached_property
    def rows(self) -> list[tuple[str, list[str]]]:
        """One row per bucket, with its time, and the value of each series as text."""
        values = {value for series in self.series for value in series.values}
        # Formatting takes time, so each distinct number is formatted only once.
        texts = {value: NOTHING if value is None else self.written(value) for value in values}
        columns = [[texts[value] for value in series.values] for series in self.series]
        return [(time, cells) for time, *cells in zip(self.times.bucket_labels, *columns, strict=True)]

    @property
    def hovers(self) -> list[str]:
        """The text that each bucket shows under the mouse, with the series in the same order as in the chart."""
        labels = [str(series.label) for series in self.series]
        changes_by_bucket = {
            int(change.position * self.times.axis.bucket_count): change.label for change in self.changes
        }
        texts = []
        for bucket, (time, cells) in enumerate(self.rows):
            lines = [f"{label}: {cell}" for label, cell in zip(labels, cells, strict=True)]
            change_lines = [changes_by_bucket[bucket]] if bucket in changes_by_bucket else []
            texts.append("\n".join([time, *(reversed(lines) if self.stacks else lines), *change_lines]))
        return texts

    @property
    def hovered(self) -> SafeString:
        """The buckets' elements with their hover texts. Rendering them in a template would be far slower."""
        element = '<rect class="skipqueue-bucket" x="{}" width="1" height="100"><title>{}</title></rect>'
        return _repeated(element, ((str(number), text) for number, text in enumerate(self.hovers)))

    @property
    def table_rows(self) -> SafeString:
        cells = "<td>{}</td>" * len(self.series)
        return _repeated(f'<tr><th scope="row">{{}}</th>{cells}</tr>\n', ((time, *texts) for time, texts in self.rows))


def _repeated(template: str, rows: Iterable[Iterable[str]]) -> SafeString:
    """Fill the template with each row of texts, and escape them. `format_html_join` would take four times as long."""
    return SafeString("".join([template.format(*map(escape, texts)) for texts in rows]))

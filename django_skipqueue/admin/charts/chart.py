"""A chart for the template: what is drawn, what is said beside it, and the same values as a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

from django.utils.safestring import SafeString

from . import paths
from .local_times import LocalTimes
from .mark import Mark
from .scale import Scale

NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Series:
    label: Any
    style: str
    """For the style sheet: what is drawn has the class `skipqueue-series-STYLE`."""
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
            return [Drawn(series, bars=bars) for series, bars in zip(self.series, paths.bars(layers), strict=True)]
        found = []
        for series in self.series:
            shares = [None if value is None else self.scale.share(value) for value in series.values]
            found.append(Drawn(series, *paths.curve(shares)))
        return found

    @cached_property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Each bucket: its time, and the value of each series as text."""
        texts = self._texts
        columns = [[texts[value] for value in series.values] for series in self.series]
        return [(time, cells) for time, *cells in zip(self.times.buckets, *columns, strict=True)]

    @property
    def hovers(self) -> list[str]:
        """The text of each bucket under the mouse: the series as they stand above each other."""
        labels = [str(series.label) for series in self.series]
        found = []
        for time, cells in self.rows:
            lines = [f"{label}: {cell}" for label, cell in zip(labels, cells, strict=True)]
            found.append("\n".join([time, *(reversed(lines) if self.stacks else lines)]))
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

    @property
    def _texts(self) -> dict[float | None, str]:
        """Each value as text. To write a number takes time: it is written once, however often it occurs."""
        values = {value for series in self.series for value in series.values}
        return {value: NOTHING if value is None else self.written(value) for value in values}


def _repeated(template: str, rows: Iterable[Iterable[str]]) -> SafeString:
    """The template once for each row of texts, none of which is HTML: `format_html_join` takes four times as long."""
    return SafeString("".join([template.format(*map(escape, texts)) for texts in rows]))

"""The paths of a chart, as SVG writes them, in a box that is 100 units high, with its origin at the upper left. Pure.

One value takes one unit of the width. The box is stretched to the place that it has on the page.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

HEIGHT = 100

Share = float | None
"""A place on the vertical axis, from 0 to 1; `None`: a gap."""

LEAST_BAR = 1.0
"""The height of a bar that would be lower: one that is there is seen."""


class Curve(NamedTuple):
    """A line through the middles of the values, with gaps, and the area under it."""

    line: str
    area: str


def curve(shares: Sequence[Share]) -> Curve:
    """The curve of these values. One between two gaps is a short level line."""
    lines, areas = [], []
    for run in _runs(shares):
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
    """Stacked bars: a path for each layer, the lowest first. The layers have the same length."""
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


def _runs(shares: Sequence[Share]) -> Iterator[list[tuple[int, float]]]:
    run: list[tuple[int, float]] = []
    for place, share in enumerate(shares):
        if share is not None:
            run.append((place, share))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _y(share: float) -> str:
    return _number(HEIGHT * (1 - share))


def _number(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")

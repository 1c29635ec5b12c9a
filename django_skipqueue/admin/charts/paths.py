"""The paths of a chart, as SVG writes them, in a box that is 100 units high, with its origin at the upper left. Pure.

One value takes one unit of the width. The box is stretched to the place that it has on the page.
"""

from collections.abc import Iterator, Sequence

HEIGHT = 100

Share = float | None
"""A place on the vertical axis, from 0 to 1; `None`: a gap."""

LEAST_BAR = 1.0
"""The height of a bar that would be lower: one that is there is seen."""


def line(shares: Sequence[Share]) -> str:
    """A line through the middles of the values, with gaps. A value between two gaps is a short level line."""
    parts = []
    for run in _runs(shares):
        (first, share), *others = run
        if others:
            points = " ".join(f"{_number(place + 0.5)},{_y(share)}" for place, share in run)
            parts.append(f"M{points}")
        else:
            parts.append(f"M{_number(first)},{_y(share)}h1")
    return "".join(parts)


def area(shares: Sequence[Share]) -> str:
    """The area under `line`."""
    parts = []
    for run in _runs(shares):
        (first, _), *_others, (last, _) = [*run, run[-1]]
        start, end = (first + 0.5, last + 0.5) if len(run) > 1 else (first, first + 1)
        top = " ".join(f"{_number(place + 0.5)},{_y(share)}" for place, share in run)
        if len(run) == 1:
            top = f"{_number(start)},{_y(run[0][1])} {_number(end)},{_y(run[0][1])}"
        parts.append(f"M{_number(start)},{HEIGHT} {top} {_number(end)},{HEIGHT}z")
    return "".join(parts)


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
                parts.append(f"M{_number(place + 0.1)},{_number(upper)}h.8v{_number(height)}h-.8z")
                bases[place] += height
        paths.append("".join(parts))
    return paths


def _runs(shares: Sequence[Share]) -> Iterator[list[tuple[int, float]]]:
    """The values between the gaps, each with its place."""
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

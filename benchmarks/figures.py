"""Figures: the results of one measurement by their names, the medians of several, and how they are shown.

Invariant: these functions are pure and use neither a database nor Django.
"""

import statistics
from collections.abc import Sequence

Figures = dict[str, float]


def median_of(measured: Sequence[Figures]) -> Figures:
    """The median of each figure over several measurements."""
    return {name: statistics.median(figures[name] for figures in measured) for name in measured[0]}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def show(value: float) -> str:
    """The value with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def phrase(figures: Figures) -> str:
    """All figures of a row in one cell: `22,777 jobs/s, 1.1 transactions per 1,000 jobs`."""
    return ", ".join(f"{show(value)} {name}" for name, value in figures.items())


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def markdown_head(cells: Sequence[str]) -> str:
    """The two lines above the rows of a Markdown table."""
    return f"{markdown_row(cells)}\n|{'---|' * len(cells)}"

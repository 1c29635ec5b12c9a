"""Aligned tables of plain text. Pure.

Invariant: no cell can start a new line or control a terminal. A colour never carries a meaning that the text lacks.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from ...events.log_format import printable

RED, GREEN, YELLOW, BLUE, DIM = "31", "32", "33", "34", "2"
"""ANSI codes."""

GAP = "  "
"""Between two columns."""

NARROWEST = 20
"""Fewest characters that the last column is shortened to."""


class Coloured(str):
    code: str

    def __new__(cls, text: str, code: str) -> "Coloured":
        made = super().__new__(cls, text)
        made.code = code
        return made


def aligned(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    width: int | None = None,
    colour: bool = False,
) -> Iterator[str]:
    """The lines of a table. right: the headings of columns to align to the right. width: of the terminal."""
    cells = [[Coloured(heading, DIM) for heading in headings], *(list(map(_clean, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    before_last = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    for row in cells:
        if width is not None:
            row[-1] = _shortened(row[-1], max(width - before_last, NARROWEST))
        padded = (
            _painted(cell, " " * (size - len(cell)), on_the_right=heading in right, colour=colour)
            for heading, cell, size in zip(headings, row, widths, strict=True)
        )
        yield GAP.join(padded).rstrip()


def _clean(cell: str) -> Coloured:
    return Coloured(printable(cell), cell.code if isinstance(cell, Coloured) else "")


def _shortened(cell: Coloured, width: int) -> Coloured:
    return cell if len(cell) <= width else Coloured(f"{cell[: width - 1]}…", cell.code)


def _painted(cell: Coloured, padding: str, *, on_the_right: bool, colour: bool) -> str:
    text = f"\x1b[{cell.code}m{cell}\x1b[0m" if colour and cell.code and cell else str(cell)
    return padding + text if on_the_right else text + padding

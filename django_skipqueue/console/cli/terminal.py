"""A subcommand's input and output: tables, colours, progress, questions, the operator's name, and Ctrl-C.

Data goes to standard output, and everything else to standard error. Text from the database can neither start a new line
nor control the terminal. Colours only repeat what the text says.
"""

import getpass
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, OutputWrapper
from django.utils.timezone import is_aware, localtime

from ...events.log_format import printable, wants_colour

RED, GREEN, YELLOW, BLUE, DIM = "31", "32", "33", "34", "2"
"""The ANSI codes of colours."""

GAP = "  "
"""The space between two columns."""

NARROWEST = 20
"""The last column is never shortened below this number of characters."""


class Coloured(str):
    code: str
    """The ANSI code of the colour."""

    def __new__(cls, text: str, code: str) -> "Coloured":
        coloured = super().__new__(cls, text)
        coloured.code = code
        return coloured


def aligned(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    width: int | None = None,
    colour: bool = False,
) -> Iterator[str]:
    """Yield the table's lines. right: the headings of right-aligned columns. width: the terminal's width."""
    cells = [[Coloured(heading, DIM) for heading in headings]]
    cells += ([Coloured(printable(cell), getattr(cell, "code", "")) for cell in row] for row in rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    width_before_last = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    for row in cells:
        most_characters = len(row[-1]) if width is None else max(width - width_before_last, NARROWEST)
        if len(row[-1]) > most_characters:
            row[-1] = Coloured(f"{row[-1][: most_characters - 1]}…", row[-1].code)
        padded = []
        for heading, cell, column_width in zip(headings, row, widths, strict=True):
            text = f"\x1b[{cell.code}m{cell}\x1b[0m" if colour and cell.code and cell else str(cell)
            padding = " " * (column_width - len(cell))
            padded.append(padding + text if heading in right else text + padding)
        yield GAP.join(padded).rstrip()


PROGRESS_SECONDS = 5.0
"""Seconds between two progress lines, if standard error is not a terminal."""

OVER_THE_LINE = "\r\x1b[K"
"""Moves the cursor to the start of the line, and clears the line."""

CLEAR_SCREEN = "\x1b[H\x1b[2J"


class Console:
    """The output streams of a command. colour: `None` uses colours only on a terminal."""

    def __init__(self, command: BaseCommand, *, colour: bool | None = None) -> None:
        self._out: OutputWrapper = command.stdout
        self._err: OutputWrapper = command.stderr
        self._shows_progress = False
        self._is_stale = False
        self._progress_at = time.monotonic()
        self.database: str | None = None
        """The database whose data is being written, if the subcommand runs in several databases."""
        self._colour = wants_colour(cast("TextIO", self._out)) if colour is None else colour

    @property
    def is_interactive(self) -> bool:
        """Whether somebody can answer a question, because standard input and standard error are a terminal."""
        return sys.stdin.isatty() and self._err.isatty()

    @property
    def is_screen(self) -> bool:
        return self._out.isatty()

    def clear(self) -> None:
        """Clear the screen before the next line. If standard output is not a terminal, write an empty line instead."""
        self._is_stale = True

    def line(self, text: str = "") -> None:
        """Write a line of data. Pass text from the database through `printable` first."""
        self._clear_if_stale()
        self._out.write(text)

    def _clear_if_stale(self) -> None:
        if self._is_stale:
            self._out.write(CLEAR_SCREEN if self.is_screen else "", ending="" if self.is_screen else "\n")
            self._is_stale = False

    def coloured(self, text: str, code: str) -> None:
        """Write a line of data in this colour."""
        self.line(f"\x1b[{code}m{text}\x1b[0m" if self._colour else text)

    def json(self, value: Mapping[str, Any]) -> None:
        """Write a JSON object on one line. Times are in ISO 8601, with their zone."""
        database = {} if self.database is None else {"database": self.database}
        self._out.write(json.dumps({**database, **value}, default=_as_json))

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> None:
        """Write aligned columns. `right`: the headings of right-aligned columns."""
        width = shutil.get_terminal_size().columns if self.is_screen else None
        for line in aligned(headings, rows, right=right, width=width, colour=self._colour):
            self.line(line)

    def flush(self) -> None:
        self._out.flush()

    def drop(self) -> None:
        """Discard the buffered output, because the program that read it has ended."""
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (only the file descriptor is needed)
            os.dup2(nowhere.fileno(), self._out.fileno())

    def say(self, text: str) -> None:
        self._clear_if_stale()
        self._err.write(printable(text), str)
        self._err.flush()

    def progress(self, text: str) -> None:
        """Show the progress. A terminal shows only the latest text; other output gets a line every few seconds."""
        now = time.monotonic()
        if self._err.isatty():
            self._err.write(f"{OVER_THE_LINE}{text}", str, ending="")
            self._err.flush()
            self._shows_progress = True
        elif now - self._progress_at >= PROGRESS_SECONDS:
            self.say(text)
            self._progress_at = now

    def end_progress(self) -> None:
        if self._shows_progress:
            self._err.write(OVER_THE_LINE, str, ending="")
            self._shows_progress = False

    def confirm(self, question: str) -> bool:
        """Ask a yes-or-no question. Every answer except `y` and `yes` means no."""
        self._err.write(f"{question} [y/N] ", str, ending="")
        self._err.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def shown_time(moment: datetime) -> str:
    """Return a time in the project's time zone, such as `2026-03-01 02:13:45 +0100`."""
    return f"{localtime(moment) if is_aware(moment) else moment:%Y-%m-%d %H:%M:%S %z}".strip()


def _as_json(value: object) -> str:
    if isinstance(value, datetime):
        return (localtime(value) if is_aware(value) else value).isoformat()
    return str(value)


def operator() -> str:
    """Return the operating system's user name and the machine's name: `ann@web-1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, the user id may have no name
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Yield a function that is true after Ctrl-C, so the caller can finish its batch. A second Ctrl-C raises."""
    is_interrupted = False

    def interrupt(number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(number, signal.default_int_handler)

    previous_handler = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous_handler)

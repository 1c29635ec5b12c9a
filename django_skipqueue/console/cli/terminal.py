"""The terminal of a subcommand: where it writes, how it asks, who uses it, and what Ctrl-C does to work in batches.

Invariant: data goes to standard output, and everything else to standard error. A text from a row can neither start a
new line nor control a terminal. The text says everything that a colour says.
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
"""ANSI codes."""

GAP = "  "
"""Between two columns."""

NARROWEST = 20
"""The least width to which the last column is shortened, in characters."""


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
    cells = [[Coloured(heading, DIM) for heading in headings]]
    cells += ([Coloured(printable(cell), getattr(cell, "code", "")) for cell in row] for row in rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    before_last = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    for row in cells:
        longest = len(row[-1]) if width is None else max(width - before_last, NARROWEST)
        if len(row[-1]) > longest:
            row[-1] = Coloured(f"{row[-1][: longest - 1]}…", row[-1].code)
        padded = []
        for heading, cell, size in zip(headings, row, widths, strict=True):
            text = f"\x1b[{cell.code}m{cell}\x1b[0m" if colour and cell.code and cell else str(cell)
            padding = " " * (size - len(cell))
            padded.append(padding + text if heading in right else text + padding)
        yield GAP.join(padded).rstrip()


PROGRESS_SECONDS = 5.0
"""Seconds between two lines about progress, if standard error is no terminal."""

OVER_THE_LINE = "\r\x1b[K"
"""Moves the cursor to the start of its line of the terminal, and clears the line."""

CLEAR_SCREEN = "\x1b[H\x1b[2J"


class Console:
    """The streams of one run of the command. colour: `None`: only on a terminal."""

    def __init__(self, command: BaseCommand, *, colour: bool | None = None) -> None:
        self._out: OutputWrapper = command.stdout
        self._err: OutputWrapper = command.stderr
        self._shows_progress = False
        self._is_stale = False
        self._progress_at = time.monotonic()
        self.database: str | None = None
        """The alias of the database whose data is written, if a subcommand goes over several databases."""
        self._colour = wants_colour(cast("TextIO", self._out)) if colour is None else colour

    @property
    def is_interactive(self) -> bool:
        """Whether somebody can be asked: standard input and standard error are a terminal."""
        return sys.stdin.isatty() and self._err.isatty()

    @property
    def is_screen(self) -> bool:
        return self._out.isatty()

    def clear(self) -> None:
        """Clear the screen before the next line. If standard output is no screen, write an empty line instead."""
        self._is_stale = True

    def line(self, text: str = "") -> None:
        """Write a line of data. A text from a row must have passed through `printable`."""
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
        """Write a JSON object as a line of data. Times are written in ISO 8601, with their zone."""
        of_one = {} if self.database is None else {"database": self.database}
        self._out.write(json.dumps({**of_one, **value}, default=_as_json))

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> None:
        """Write aligned columns of data. `right`: the headings of the columns that are aligned to the right."""
        width = shutil.get_terminal_size().columns if self.is_screen else None
        for line in aligned(headings, rows, right=right, width=width, colour=self._colour):
            self.line(line)

    def flush(self) -> None:
        self._out.flush()

    def drop(self) -> None:
        """Drop the data that is still in a buffer: its reader has ended."""
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (a descriptor is all that is needed)
            os.dup2(nowhere.fileno(), self._out.fileno())

    def say(self, text: str) -> None:
        self._clear_if_stale()
        self._err.write(printable(text), str)
        self._err.flush()

    def progress(self, text: str) -> None:
        """Show how far the command is: on a terminal in place of the last text, else in a line every few seconds."""
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
        """Ask a question; every answer except yes is no."""
        self._err.write(f"{question} [y/N] ", str, ending="")
        self._err.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def shown_time(moment: datetime) -> str:
    """A time in the project's time zone, to the second: `2026-03-01 02:13:45 +0100`."""
    return f"{localtime(moment) if is_aware(moment) else moment:%Y-%m-%d %H:%M:%S %z}".strip()


def _as_json(value: object) -> str:
    if isinstance(value, datetime):
        return (localtime(value) if is_aware(value) else value).isoformat()
    return str(value)


def operator() -> str:
    """The user of the operating system, and the machine: `ann@web-1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Within this block, the function is true after a Ctrl-C, so that a batch ends well. A second Ctrl-C raises."""
    is_interrupted = False

    def interrupt(number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(number, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, before)

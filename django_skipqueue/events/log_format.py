"""Format log lines as `key=value` pairs with readable durations. On a terminal, add colours and tracebacks.

A string from a job's row can neither start a new line nor send control characters to a terminal.
"""

import logging
import os
from typing import Any, TextIO

from ..conf import settings
from ..values.records import handle_of

LEVEL_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
"""The ANSI colour code of the event's name, by level: dim, green, yellow, red."""

TRACEBACK_COLOUR = "2"

LOG_INDENT = "    "


def wants_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal and the environment does not disable colours."""
    is_disabled = os.environ.get("NO_COLOR") or os.environ.get("DJANGO_COLORS") == "nocolor"
    return stream.isatty() and not is_disabled and os.environ.get("TERM") != "dumb"


class LineFormatter(logging.Formatter):
    """Writes time, level and message, and for a line of a task also its job. Indents further lines and tracebacks.

    `tracebacks`: whether to write the tracebacks of failed attempts.
    """

    def __init__(self, *, colour: bool, tracebacks: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._colour = colour
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        message, *further_message_lines = map(printable, record.getMessage().splitlines() or [""])
        event = getattr(record, "event", None)
        if event is None and getattr(record, "job_id", None) is not None:
            alias, job_id = getattr(record, "database", None), record.__dict__["job_id"]
            message += f" job={handle_of(alias, job_id) if alias else job_id}"  # one database has no alias
        event_words = (event or "").replace("_", " ")
        coloured = event_words if message.startswith(event_words) else ""
        time = self._paint(TRACEBACK_COLOUR, self.formatTime(record, self.datefmt))
        head = self._paint(LEVEL_COLOURS.get(record.levelname, "0"), f"{record.levelname:<7} {coloured}")
        further_lines = [*(LOG_INDENT + line for line in further_message_lines), *self._traceback(record)]
        return "\n".join([f"{time} {head}{message[len(coloured) :]}", *further_lines])

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        """The lines of the record's traceback. For failed attempts this is optional, because the job's row has it."""
        is_about_attempt = getattr(record, "event", None) and getattr(record, "job_id", None) is not None
        if (is_about_attempt and not self._tracebacks) or not (record.exc_info or record.exc_text):
            return []
        text = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        return [LOG_INDENT + self._paint(TRACEBACK_COLOUR, printable(line)) for line in text.splitlines()]

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def pairs(values: dict[str, Any]) -> str:
    """Format values as `task=shop.send id=4 error="ValueError: no"`."""
    return " ".join(f"{name}={_quoted(printable(str(value)))}" for name, value in values.items())


def _quoted(value: str) -> str:
    if value and not any(character in value for character in ' ="'):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def printable(text: str) -> str:
    """Replace every character that could start a new line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: `1 job`, `2 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def in_words(seconds: float) -> str:
    """Format a duration: `0s`, `0.4ms`, `12ms`, `1.9s`, `42s`, `3m20s`, `2h05m`, `3d04h`.

    A negative duration is `0s`. It may occur because a statement's time is a little older than the rows that it sees.
    """
    if seconds <= 0:
        return "0s"
    if seconds < 0.000_05:
        return "<0.1ms"
    if seconds < 0.0995:
        decimals = 1 if seconds < 0.00095 else 0  # one decimal below 1 ms
        return f"{seconds * 1000:.{decimals}f}ms"
    if seconds < 59.5:
        decimals = 1 if seconds < 9.95 else 0  # one decimal below 10 s
        return f"{seconds:.{decimals}f}s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    return f"{hour}h{minute:02}m" if hours else f"{minute}m{second:02}s"


def job_name(alias: str, job_id: int) -> str:
    """Return the id of a job, or if there are several databases its handle, such as `queue_1:42`."""
    return handle_of(alias, job_id) if settings.serves_several else str(job_id)

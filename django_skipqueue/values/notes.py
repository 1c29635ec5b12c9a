"""The progress and the log lines of an attempt: check them before they are written, and read them from a job's row.

Another version of the package, or a person, may have written the row. So the readers skip values of an unknown form.
"""

import logging
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ..exceptions import InvalidOption

PROGRESS_TEXT_LIMIT = 200
"""The most characters in the text that is shown beside a progress."""

LOG_LINE_LIMIT = 2_000
"""The most characters in one log line, including its traceback."""

MOST_LINES = 500
"""How many log lines of one attempt are kept. Earlier lines are dropped."""

SLACK = 1e-9
"""How far above 1 a progress may be, because sums of floats are not exact."""

MOST_CHARACTERS = 64_000
"""How many characters of one attempt's log lines are kept. Earlier characters are dropped."""


class Progress(NamedTuple):
    value: float
    """From 0 to 1."""
    text: str
    at: datetime | None
    """When the progress was written, by the database's clock."""

    @property
    def percent(self) -> int:
        """The percentage that is done, rounded down, so that only finished work shows 100."""
        return int(self.value * 100 + SLACK)

    @property
    def line(self) -> str:
        return f"{self.percent} % · {self.text}" if self.text else f"{self.percent} %"


class LogLine(NamedTuple):
    at: datetime | None
    level: str
    logger: str
    """Empty for a line of `context.log`."""
    message: str


class AttemptLog(NamedTuple):
    lease: int
    attempt: int
    worker: str
    started: datetime | None
    dropped: int
    """The number of earlier lines of the attempt that were not kept."""
    lines: list[LogLine]


def checked_progress(value: Any) -> float:
    """The value as a float. Raises `InvalidOption` if it is not a number from 0 to 1."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1 + SLACK:
        raise InvalidOption(
            f"The progress must be a number from 0 to 1, not {value!r}: for 40 of 100 say progress(40 / 100)."
        )
    return min(number, 1.0)


def level_name(level: int | str) -> str:
    """Return the name of a level of `logging`. Raises `InvalidOption` for a value that is not a level."""
    name = logging.getLevelName(level) if isinstance(level, int) and not isinstance(level, bool) else level
    if not isinstance(name, str) or (name not in logging.getLevelNamesMapping() and not isinstance(level, int)):
        raise InvalidOption(f"level must be a logging level, such as 'WARNING', not {level!r}.")
    return name


def checked_text(name: str, text: Any) -> str:
    """Return the text. Raises `InvalidOption`, which mentions `name`, if the text is not a str."""
    if not isinstance(text, str):
        raise InvalidOption(f"{name} must be a str, not {text!r}.")
    return text


def progress_of(stored: Any, lease: int | None = None) -> Progress | None:
    """Read the progress from a job's row. Return `None` if the row has none, or one of another `lease`."""
    if not isinstance(stored, dict) or lease not in (None, stored.get("lease")):
        return None
    value, text = stored.get("value"), stored.get("text")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return Progress(float(value), text if isinstance(text, str) else "", _moment(stored.get("at")))


def logs_of(stored: Any) -> list[AttemptLog]:
    """Read the logs of the attempts from a job's row. The log of the oldest attempt is first."""
    entries = stored if isinstance(stored, list) else []
    return [_log(entry) for entry in entries if isinstance(entry, dict)]


def _log(entry: Mapping[str, Any]) -> AttemptLog:
    started, lines = _moment(entry.get("started")), entry.get("lines")
    lines = lines if isinstance(lines, list) else []
    readable = [line for line in lines if isinstance(line, list) and len(line) == 4]  # see `_line`
    return AttemptLog(
        lease=_number(entry.get("lease")),
        attempt=_number(entry.get("attempt")),
        worker=_text(entry.get("worker")),
        started=started,
        dropped=_number(entry.get("dropped")),
        lines=[_line(line, started) for line in readable],
    )


def _line(line: list[Any], started: datetime | None) -> LogLine:
    milliseconds, level, logger, message = line
    at = started + timedelta(milliseconds=_number(milliseconds)) if started else None
    return LogLine(at, _text(level), _text(logger), _text(message))


def _number(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 10**12 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _moment(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None

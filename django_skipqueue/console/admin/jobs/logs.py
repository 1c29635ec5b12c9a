"""The logs of a job's last attempts, each with the attempt that wrote it.

The number of an attempt continues after a manual retry, as in `attempts`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ....models import Job
from ....values.codec import clean, shorten
from ....values.notes import LINE_LIMIT, MOST_LINES, AttemptLog, logs_of
from ...operations import attempts_before, operations_of

NAME_LIMIT = 200
"""Characters of the name of a level or a logger."""

WARNING_LEVELS = ("WARNING", "ERROR", "CRITICAL")
"""The levels that stand out."""


@dataclass(frozen=True)
class ShownLine:
    at: datetime | None
    level: str
    logger: str
    message: str

    @property
    def stands_out(self) -> bool:
        return self.level in WARNING_LEVELS


@dataclass(frozen=True)
class ShownLog:
    number: int
    """Of the attempt."""
    lines: list[ShownLine]
    dropped: int
    """The number of earlier lines that were not kept."""


def shown_logs(job: Job, masked: Callable[[str], str]) -> list[ShownLog]:
    """The newest first. masked: masks the secret arguments of the job in a text."""
    operations = operations_of(job)

    def number_of(log: AttemptLog) -> int:
        return log.attempt + (attempts_before(operations, log.started) if log.started else 0)

    logs = [log for log in logs_of(job.logs) if log.lines]
    return [ShownLog(number_of(log), _shown(log, masked), log.dropped) for log in reversed(logs)]


def log_of(logs: Sequence[ShownLog], number: int | None) -> ShownLog | None:
    """The log of the attempt with this number; the newest, of an attempt that cost nothing and was made again."""
    return next((log for log in logs if log.number == number), None)


def _shown(log: AttemptLog, masked: Callable[[str], str]) -> list[ShownLine]:
    return [
        ShownLine(
            line.at,
            shorten(line.level, NAME_LIMIT),
            shorten(line.logger, NAME_LIMIT),
            clean(masked(line.message), LINE_LIMIT),
        )
        for line in log.lines[-MOST_LINES:]
    ]

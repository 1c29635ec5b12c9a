"""Reads a job's attempts from its row: the failed attempts and the last attempt, with tracebacks and logs.

The entries may have been written by any version of the package, so a value that is missing or has the wrong type is not
shown. After a manual retry the row counts attempts from 1 again, but the numbers here continue. The page shows the
traceback lines of the project's own code, and folds the lines of libraries. Together, the parts of a traceback contain
all of its lines in their order.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from django.utils.translation import gettext

from ....models import Job, Status
from ....values.codec import clean, shorten
from ....values.notes import LOG_LINE_LIMIT, MOST_LINES, logs_of
from ....values.outcomes import Discard
from ....values.tracebacks import LIBRARY
from ...durations import moment_of, span
from ...operations import attempts_before, number_of_attempt, was_cancelled
from ...verbs.table import CANCEL
from ...workers import DEATH_EXCEPTION
from .history import ShownOperation, operations_of

FRAME = re.compile(r'  File "(?P<file>.+?)", line \d+')
"""Matches the line with which Python begins each frame of a traceback."""
LINK = re.compile(r"Traceback \(most recent call last\):|The above exception was the |During handling of the above ")
"""Matches the lines that Python prints above a traceback, and between two tracebacks."""
MESSAGE_LINES = 3
"""The page shows this many lines of an error message, and folds the rest."""


@dataclass(frozen=True)
class TracebackPart:
    kind: str
    """`own` and `library` are frames, `raised` is an exception's message, `link` is a line between two tracebacks."""
    lines: tuple[str, ...]
    frames: int = 0
    is_folded: bool = False

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def parts_of(traceback: str) -> list[TracebackPart]:
    """Split a traceback into parts. Library frames and the rest of a long message are folded."""
    lines = traceback.rstrip("\n").split("\n")
    if any("Exception Group Traceback" in line for line in lines):
        return [TracebackPart("raised", tuple(lines))]  # a tree of exceptions, whose frames look different
    blocks = list(_blocks(lines))
    next_blocks = [*blocks[1:], TracebackPart("raised", ())]  # a stack trace without an exception ends with a frame
    # A library frame is not folded if it raised the exception.
    blocks_and_flags = [
        (block, bool(block.frames and not next_block.frames))
        for block, next_block in zip(blocks, next_blocks, strict=True)
    ]
    parts: list[TracebackPart] = []
    for (kind, is_raising), pairs in groupby(blocks_and_flags, key=lambda pair: (pair[0].kind, pair[1])):
        members = [block for block, _is_raising in pairs]
        joined_lines = tuple(line for block in members for line in block.lines)
        if kind == "raised":
            parts += _raised(joined_lines)
        else:
            parts.append(TracebackPart(kind, joined_lines, len(members), kind == "library" and not is_raising))
    return parts


def _blocks(lines: Iterable[str]) -> Iterator[TracebackPart]:
    """Yield each frame with the indented lines below it, and the text between frames."""
    block: list[str] = []
    file = ""

    def completed_block() -> TracebackPart:
        kind = "raised" if not file else ("library" if LIBRARY.search(file) else "own")
        return TracebackPart(kind, tuple(block), 1 if file else 0)

    for line in lines:
        frame = FRAME.match(line)
        continues_block = line.startswith(("    ", "  [Previous line")) if file else not frame
        if block and not continues_block:
            yield completed_block()
            block = []
        if not block:
            file = frame["file"] if frame else ""
        block.append(line)
    if block:
        yield completed_block()


def _raised(lines: tuple[str, ...]) -> Iterator[TracebackPart]:
    """Yield the exception's message, folded if it is long, and the line that links to the next traceback."""
    end = next((index for index, line in enumerate(lines) if LINK.match(line)), len(lines))
    while end and end < len(lines) and not lines[end - 1].strip():  # blank lines above the link belong to it
        end -= 1
    shown_lines, folded_lines = lines[:end][:MESSAGE_LINES], lines[:end][MESSAGE_LINES:]
    yield from (
        part
        for part in (
            TracebackPart("raised", shown_lines),
            TracebackPart("raised", folded_lines, is_folded=True),
            TracebackPart("link", lines[end:]),
        )
        if part.lines
    )


LOG_NAME_LIMIT = 200
"""The names of log levels and loggers are shortened to this many characters."""

WARNING_LEVELS = ("WARNING", "ERROR", "CRITICAL")
"""Log lines with these levels are highlighted."""


class ShownLine(NamedTuple):
    at: datetime | None
    level: str
    logger: str
    message: str
    stands_out: bool


@dataclass(frozen=True)
class ShownLog:
    number: int
    """The attempt's number."""
    lines: list[ShownLine]
    dropped: int
    """How many earlier lines were not kept."""


def shown_logs(job: Job, masked: Callable[[str], str]) -> list[ShownLog]:
    """Return the logs of the job's attempts, the newest first. `masked` hides the job's secret arguments in a text."""
    operations, logs = operations_of(job), []
    for log in reversed([log for log in logs_of(job.logs) if log.lines]):
        earlier_attempts = attempts_before(operations, log.started) if log.started else 0
        lines = [
            ShownLine(
                line.at,
                shorten(line.level, LOG_NAME_LIMIT),
                shorten(line.logger, LOG_NAME_LIMIT),
                clean(masked(line.message), LOG_LINE_LIMIT),
                line.level in WARNING_LEVELS,
            )
            for line in log.lines[-MOST_LINES:]
        ]
        logs.append(ShownLog(log.attempt + earlier_attempts, lines, log.dropped))
    return logs


DISCARD_EXCEPTION = f"{Discard.__module__}.{Discard.__qualname__}"


@dataclass(frozen=True, kw_only=True)
class ShownAttempt:
    number: int | None
    status: str
    """`failed`, or the job's status after this attempt."""
    worker: str
    """The worker's name."""
    duration: timedelta | None
    ended_at: datetime | None
    started_at: datetime | None = None
    waited: timedelta | None = None
    """How long the job was due before the attempt began; `None` if unknown."""
    is_cancelled: bool = False
    exception: str = ""
    message: str = ""
    traceback: str = ""
    sentry_event_id: str = ""
    log: ShownLog | None = None

    @property
    def label(self) -> str:
        return gettext("cancelled") if self.is_cancelled else str(Status(self.status).label)

    @property
    def is_recovered(self) -> bool:
        return self.exception == DEATH_EXCEPTION

    @property
    def took(self) -> str:
        return "" if self.duration is None else span(self.duration)

    @property
    def headline(self) -> str:
        return self.message.strip().partition("\n")[0]

    @property
    def is_in_traceback(self) -> bool:
        """Whether the traceback already contains the message, so the message need not be shown separately."""
        return bool(self.message.strip()) and self.message.strip() in self.traceback

    @cached_property
    def parts(self) -> list[TracebackPart]:
        return parts_of(self.traceback) if self.traceback.strip() else []


def attempts_of(job: Job) -> list[ShownAttempt]:
    """Return the job's attempts, the newest first."""
    operations = operations_of(job)
    failed_attempts = [_failed_attempt(entry, job) for entry in job.errors if isinstance(entry, dict)]
    if failed_attempts:
        failed_attempts[-1] = _corrected_last_attempt(failed_attempts[-1], job, operations)
    newest_number = failed_attempts[-1].number if failed_attempts else None
    return [*_last_attempt_unless_failed(job, operations, newest_number or 0), *reversed(failed_attempts)]


def _failed_attempt(entry: Mapping[str, Any], job: Job) -> ShownAttempt:
    ended_at, duration = moment_of(entry.get("at")), _duration(entry.get("duration_ms"))
    exception = _text_or_empty(entry.get("exception"))
    return ShownAttempt(
        number=number_of_attempt(job, entry.get("attempt"), ended_at),
        status=Status.DISCARDED if exception == DISCARD_EXCEPTION else Status.FAILED,
        worker=_text_or_empty(entry.get("worker")),
        duration=duration,
        started_at=ended_at - duration if ended_at and duration is not None else None,
        ended_at=ended_at,
        waited=_duration(entry.get("wait_ms")),
        exception=exception.removeprefix("builtins."),
        message=_text_or_empty(entry.get("message")),
        traceback=_text_or_empty(entry.get("traceback")),
        sentry_event_id=_text_or_empty(entry.get("sentry_event_id")),
    )


def _corrected_last_attempt(attempt: ShownAttempt, job: Job, operations: Sequence[ShownOperation]) -> ShownAttempt:
    """Correct the last failed attempt: it is shown as discarded if it, and no operator, discarded the job."""
    if job.status != Status.DISCARDED:
        return attempt
    if operations and operations[-1].status.is_finished:
        was_stopped = was_cancelled(job, attempt.ended_at)
        return replace(attempt, status=Status.DISCARDED, is_cancelled=True) if was_stopped else attempt
    is_newest = attempt.number == job.attempts + attempts_before(operations, None)
    has_last_error = job.last_error.endswith(attempt.headline[:100])
    return replace(attempt, status=Status.DISCARDED) if is_newest and has_last_error else attempt


def _last_attempt_unless_failed(
    job: Job, operations: Sequence[ShownOperation], newest_failed_number: int
) -> Iterator[ShownAttempt]:
    """Yield the last attempt if it did not fail."""
    attempt_number = job.attempts + attempts_before(operations, None)
    cancel = operations[-1] if operations and operations[-1].verb == CANCEL.name else None
    is_cancelled = (
        job.status == Status.DISCARDED
        and cancel is not None
        and job.attempts > 0
        and attempt_number > newest_failed_number
    )
    if job.started_at is None or not (is_cancelled or job.status in (Status.RUNNING, Status.COMPLETED)):
        return
    ended_at = cancel.at if cancel and is_cancelled else job.finished_at
    yield ShownAttempt(
        number=attempt_number,
        status=job.status,
        is_cancelled=is_cancelled,
        worker=job.worker_name,
        duration=ended_at - job.started_at if ended_at else None,
        started_at=job.started_at,
        ended_at=ended_at,
        waited=job.started_at - job.run_after if job.started_at >= job.run_after else None,
    )


def _duration(milliseconds: object) -> timedelta | None:
    if not isinstance(milliseconds, int | float):
        return None
    try:
        return timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError):
        return None


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""

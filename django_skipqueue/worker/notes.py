"""What one attempt has noted: its progress, its log lines, and the records of Python's `logging` that are kept with it.

Invariant: to note something never waits, neither for a lock nor for the database. The thread of the attempt only puts a
value into memory; the control loop writes it, and the outcome of the attempt carries all of it once more. Nothing here
has a lock: an interruption, raised between any two instructions, may leave a lock taken.

Invariant: a record belongs to the attempt in whose context it is written, and to no other. A record that cannot be kept
never disturbs the code that has written it.
"""

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..conf import settings
from ..exceptions import UnknownTask
from ..jobs.context import current_attempt
from ..jobs.registry import registry
from ..values.codec import clean, decode, shorten
from ..values.notes import LINE_LIMIT, MOST_CHARACTERS, MOST_LINES, TEXT_LIMIT
from ..values.records import ClaimedJob, LeaseRef

FIRST_WRITE = 1.0
"""Seconds of an attempt before the first write: the notes of a shorter one are written with its outcome alone."""

PROGRESS_INTERVAL, LOG_INTERVAL = 1.0, 5.0
"""Seconds between two writes of an attempt's progress, and of its log, which is written as a whole each time."""

Line = tuple[int, str, str, str]
"""Milliseconds since the start of the attempt; level, logger and text."""


class AttemptNotes:
    """The progress and the log lines of one attempt, with secrets masked. Any thread may add to them."""

    __slots__ = (
        "_added",
        "_job",
        "_lines",
        "_log_at",
        "_mask",
        "_progress",
        "_progress_at",
        "_worker",
        "log_changed",
        "progress_changed",
        "started",
    )

    def __init__(self, job: ClaimedJob, *, worker: str, started: float) -> None:
        self.started = started
        self.progress_changed = False
        """Whether there is a progress that the control loop has not written."""
        self.log_changed = False
        self._job = job
        self._worker = worker
        self._progress: tuple[float, str] | None = None
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._added = 0  # lines so far; several threads of one task may miscount it
        self._progress_at = self._log_at = -math.inf  # when each was last written
        self._mask: Callable[[str], str] | None = None

    def note_progress(self, value: float, text: str) -> None:
        self._progress = value, shorten(self._masked(text), TEXT_LIMIT)
        self.progress_changed = True

    def note_line(self, level: str, logger: str, text: str) -> None:
        """Add a log line; of more than `MOST_LINES` the first is dropped."""
        after = int((time.monotonic() - self.started) * 1000)
        self._lines.append((after, shorten(level, 20), shorten(logger, TEXT_LIMIT), self._line(text)))
        self._added += 1
        self.log_changed = True

    # For the control loop, and at the end of the attempt

    @property
    def ref(self) -> LeaseRef:
        return self._job.ref

    @property
    def has_changed(self) -> bool:
        return self.progress_changed or self.log_changed

    def is_due(self, now: float) -> bool:
        if now - self.started < FIRST_WRITE:
            return False
        return (self.progress_changed and now - self._progress_at >= PROGRESS_INTERVAL) or (
            self.log_changed and now - self._log_at >= LOG_INTERVAL
        )

    def take(self, now: float) -> str:
        """What has changed, as JSON. Counts as written from here on."""
        progress, log = self.progress_changed, self.log_changed
        self.progress_changed = self.log_changed = False  # first: what is noted meanwhile is written again
        if progress:
            self._progress_at = now
        if log:
            self._log_at = now
        return self._as_json(progress=progress, log=log)

    def take_all(self) -> str:
        """Everything, as JSON, for the outcome: earlier writes may have failed. Counts as written from here on."""
        self.progress_changed = self.log_changed = False
        return self._as_json(progress=True, log=True)

    def not_written(self) -> None:
        """Count all as changed: the last write has failed."""
        self.progress_changed = self._progress is not None
        self.log_changed = bool(self._lines)

    def _as_json(self, *, progress: bool, log: bool) -> str:
        lease, noted = self._job.lease, self._progress
        found: dict[str, Any] = {}
        if progress and noted is not None:
            found["progress"] = {"lease": lease, "value": noted[0], "text": noted[1]}
        if log and self._lines:
            lines = _last(self._lines.copy())
            dropped = max(self._added - len(lines), 0)
            of = {"lease": lease, "attempt": self._job.attempt, "worker": self._worker}
            found["log"] = of | {"dropped": dropped, "lines": lines}
        return json.dumps(found)

    def _line(self, text: str) -> str:
        return clean(self._masked(text), LINE_LIMIT).rstrip()

    def _masked(self, text: str) -> str:
        if self._mask is None:
            self._mask = _mask_of(self._job)
        return self._mask(text)


def _last(lines: deque[Line]) -> list[Line]:
    """The last lines that together have no more than `MOST_CHARACTERS`, at least one."""
    size, kept = 0, 0
    for line in reversed(lines):
        size += len(line[2]) + len(line[3])
        if size > MOST_CHARACTERS and kept:
            break
        kept += 1
    return list(lines)[len(lines) - kept :]


def _mask_of(job: ClaimedJob) -> Callable[[str], str]:
    try:
        task = registry.get(job.task)
    except UnknownTask:
        return str
    return task.redacted(decode(job.args), decode(job.kwargs)).text


_FORMATTER = logging.Formatter()

_installed: "list[CaptureHandler]" = []
"""The handlers of the root logger; the first alone keeps records."""


class CaptureHandler(logging.Handler):
    """Has no lock: attempts do not wait for each other, and an interrupted one leaves none taken."""

    def createLock(self) -> None:  # noqa: N802 (named by `logging`)
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        attempt = current_attempt.get()
        if attempt is not None and _installed[:1] == [self]:
            with suppress(Exception):  # arguments that do not fit the text, or raise: other handlers report that
                attempt.notes().note_line(record.levelname, record.name, _text_of(record))
        return True


@contextmanager
def capturing() -> Iterator[None]:
    """Keep the records of all loggers whose records reach the root logger, from the level of `CAPTURE_LOGS` on.

    May be entered again, by a task that runs jobs and by other threads: each record is kept once.
    """
    if settings.capture_logs is None:
        yield
        return
    handler = CaptureHandler(settings.capture_logs)
    root = logging.getLogger()
    _installed.append(handler)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        _installed.remove(handler)


def _text_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[0]:
        text = f"{text}\n{record.exc_text or _FORMATTER.formatException(record.exc_info)}"
    return f"{text}\n{record.stack_info}" if record.stack_info else text

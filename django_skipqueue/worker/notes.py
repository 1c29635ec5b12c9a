"""Collect and write the notes of an attempt: its progress, its log lines, and records of Python's `logging`.

An attempt never waits when it notes something. Its thread only puts a value into memory. The control loop writes the
value to the database, and all values are written again with the outcome. There are no locks, because a task may be
interrupted between any two instructions, and would leave a lock locked.

A log record is stored only with the attempt in whose context it is written. A record that cannot be stored never
disturbs the code that has written it.

While attempts run, a service writes their notes in one statement, which skips locked rows, so that it delays no
outcome. If the worker dies, at most one second of progress and five seconds of log lines are lost.
"""

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django.db import Error

from ..conf import settings
from ..exceptions import UnknownTask
from ..jobs.context import current_attempt
from ..jobs.registry import registry
from ..queue.store import Store
from ..values.codec import clean, decode, shorten
from ..values.notes import LOG_LINE_LIMIT, MOST_CHARACTERS, MOST_LINES, PROGRESS_TEXT_LIMIT
from ..values.records import NEVER, Attempt, ClaimedJob, LeaseRef, Noted
from .loop import Service

if TYPE_CHECKING:
    from .attempts.running_attempt import RunningAttempt

FIRST_WRITE_SECONDS = 1.0
"""After how many seconds of an attempt its notes are first written. Notes of shorter attempts are written only with the
outcome."""

PROGRESS_WRITE_SECONDS, LOG_WRITE_SECONDS = 1.0, 5.0
"""The seconds between two writes of an attempt's progress, and between two writes of its log, which is always written
as a whole."""

Line = tuple[int, str, str, str]
"""A log line: the milliseconds since the start of the attempt, the level, the logger and the text."""


class AttemptNotes:
    """The progress and the log lines of one attempt, with secrets masked. Any thread may add to them."""

    __slots__ = (
        "_job",
        "_line_count",
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
        """Whether the attempt has noted progress that the control loop has not written yet."""
        self.log_changed = False
        self._job = job
        self._worker = worker
        self._progress: tuple[float, str] | None = None
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._line_count = 0  # how many lines were added; may be wrong if several threads of a task add lines
        self._progress_at = self._log_at = -math.inf  # when the progress and the log were last written
        self._mask: Callable[[str], str] | None = None

    def note_progress(self, value: float, text: str) -> None:
        self._progress = value, shorten(self._masked(text), PROGRESS_TEXT_LIMIT)
        self.progress_changed = True

    def note_line(self, level: str, logger: str, text: str) -> None:
        """Add a log line. If there are more than `MOST_LINES`, the oldest line is dropped."""
        milliseconds = int((time.monotonic() - self.started) * 1000)
        line = clean(self._masked(text), LOG_LINE_LIMIT).rstrip()
        self._lines.append((milliseconds, shorten(level, 20), shorten(logger, PROGRESS_TEXT_LIMIT), line))
        self._line_count += 1
        self.log_changed = True

    # For the control loop, and at the end of the attempt

    @property
    def ref(self) -> LeaseRef:
        return self._job.ref

    @property
    def has_changed(self) -> bool:
        return self.progress_changed or self.log_changed

    def is_due(self, now: float) -> bool:
        if now - self.started < FIRST_WRITE_SECONDS:
            return False
        return (self.progress_changed and now - self._progress_at >= PROGRESS_WRITE_SECONDS) or (
            self.log_changed and now - self._log_at >= LOG_WRITE_SECONDS
        )

    def take(self, now: float) -> str:
        """Return the notes that have changed as JSON. From now on these notes count as written."""
        progress, log = self.progress_changed, self.log_changed
        self.progress_changed = self.log_changed = False  # at the start, so that a later note counts as changed
        if progress:
            self._progress_at = now
        if log:
            self._log_at = now
        return self._as_json(progress=progress, log=log)

    def take_all(self) -> str:
        """Return all notes as JSON, for the outcome, because earlier writes may have failed."""
        self.progress_changed = self.log_changed = False
        return self._as_json(progress=True, log=True)

    def not_written(self) -> None:
        """Count all notes as changed, because the last write has failed."""
        self.progress_changed = self._progress is not None
        self.log_changed = bool(self._lines)

    def _as_json(self, *, progress: bool, log: bool) -> str:
        lease, noted_progress = self._job.lease, self._progress
        notes: dict[str, Any] = {}
        if progress and noted_progress is not None:
            value, text = noted_progress
            notes["progress"] = {"lease": lease, "value": value, "text": text}
        if log and self._lines:
            lines = _last_lines(self._lines.copy())
            dropped = max(self._line_count - len(lines), 0)
            attempt = {"lease": lease, "attempt": self._job.attempt, "worker": self._worker}
            notes["log"] = attempt | {"dropped": dropped, "lines": lines}
        return json.dumps(notes)

    def _masked(self, text: str) -> str:
        if self._mask is None:
            try:
                task = registry.get(self._job.task)
                self._mask = task.redacted(decode(self._job.args), decode(self._job.kwargs)).text
            except UnknownTask:
                self._mask = str  # masks nothing
        return self._mask(text)


def _last_lines(lines: deque[Line]) -> list[Line]:
    """Return the last lines that together have at most `MOST_CHARACTERS`, but at least one line."""
    size, line_count = 0, 0
    for _, _, logger, text in reversed(lines):
        size += len(logger) + len(text)
        if size > MOST_CHARACTERS and line_count:
            break
        line_count += 1
    return list(lines)[len(lines) - line_count :]


_FORMATTER = logging.Formatter()

_installed: "list[CaptureHandler]" = []
"""Our handlers of the root logger. Only the first handler keeps records."""


class CaptureHandler(logging.Handler):
    """Adds log records to the notes of the running attempt.

    It has no lock, so that attempts do not wait for each other, and an interrupted attempt leaves no lock locked.
    """

    def createLock(self) -> None:  # noqa: N802 (named by `logging`)
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        attempt = current_attempt.get()
        if attempt is not None and _installed[:1] == [self]:
            with suppress(Exception):  # if the record cannot be formatted, other handlers report this
                attempt.notes().note_line(record.levelname, record.name, _text_of(record))
        return True


@contextmanager
def capturing() -> Iterator[None]:
    """Within this block, add records of the root logger to the notes of attempts.

    The setting `CAPTURE_LOGS` is the lowest level. The block may be entered several times, also by other threads. Each
    record is added once.
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


NOTES_CHECK_SECONDS = 0.5
"""Seconds between two checks whether attempts have noted something."""

MOST_CHARACTERS_WRITTEN = 1_000_000
"""The most characters of notes in one statement, unless a single attempt has more."""

NOTES_REFUSED_SECONDS = 10.0
"""Seconds until the next check after PostgreSQL has refused a statement."""


class WriteNotes(Service):
    """A service that writes the notes of running attempts. It sends no statement if there are no new notes."""

    name = "write_notes"

    def __init__(self, store: Store, attempts: Callable[[], "Collection[RunningAttempt]"]) -> None:
        self._store = store
        self._attempts = attempts
        self.next_check = 0.0
        self._late: list[Noted] = []  # notes that tasks made after they had completed their jobs themselves

    @property
    def due_at(self) -> float:
        return self.next_check if self._late or self._attempts() else NEVER

    def add_late(self, attempt: Attempt) -> None:
        """Write the last notes of an attempt whose task has completed the job itself, which raised the lease by 1."""
        if attempt.outcome.notes is not None:
            job_id, lease = attempt.job.ref
            self._late.append(Noted(job_id, lease + 1, attempt.started, attempt.outcome.notes))

    def run(self, now: float) -> None:
        self.next_check = now + NOTES_CHECK_SECONDS
        self._write(now, [notes for notes in self._notes_of_attempts() if notes.is_due(now)])

    def write_all(self) -> None:
        """Write the notes of the running attempts, before their jobs are released."""
        self._write(time.monotonic(), [notes for notes in self._notes_of_attempts() if notes.has_changed])

    def write_last(self, attempts: Sequence[Attempt]) -> None:
        """Write the last notes of attempts that have ended, before their jobs are released."""
        last_notes = [
            Noted(*attempt.job.ref, attempt.started, attempt.outcome.notes)
            for attempt in attempts
            if attempt.outcome.notes is not None
        ]
        if last_notes:
            self._store.note_attempts(last_notes)

    def refused(self, error: BaseException) -> None:
        self.next_check = time.monotonic() + NOTES_REFUSED_SECONDS

    def _notes_of_attempts(self) -> Iterator[AttemptNotes]:
        for running in list(self._attempts()):
            if running.noted is not None and not running.is_stuck:
                yield running.noted

    def _write(self, now: float, changed: Sequence[AttemptNotes]) -> None:
        """Write notes of these attempts, up to `MOST_CHARACTERS_WRITTEN`. The next check writes the rest."""
        notes_by_record: dict[Noted, AttemptNotes] = {}
        size = 0
        for notes in changed:
            if size > MOST_CHARACTERS_WRITTEN:
                self.next_check = now
                break
            text = notes.take(now)
            size += len(text)
            notes_by_record[Noted(*notes.ref, notes.started, text)] = notes
        late_notes, self._late = self._late, []
        if not notes_by_record and not late_notes:
            return
        try:
            written_ids = self._store.note_attempts([*late_notes, *notes_by_record])
        except Error:
            for notes in notes_by_record.values():
                notes.not_written()
            raise
        for noted, notes in notes_by_record.items():
            if noted.job_id not in written_ids:  # the row was locked, or the lease is no longer valid
                notes.not_written()

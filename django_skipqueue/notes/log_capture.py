"""Keeps the records of Python's `logging` with the attempt in which they are written.

Invariant: a record belongs to the attempt in whose context it is written, and to no other. A record that cannot be kept
never disturbs the code that has written it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..conf import settings
from ..tasks.context import current_attempt

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

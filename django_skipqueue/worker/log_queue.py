"""Writes the log lines of the queue in a thread of its own, so that a blocking log handler delays nothing else.

Invariant: a thread that logs only puts a record into memory. Only the writer's thread uses the handlers, formatters and
filters of the project, and the standard streams. The lines keep their order and their times.
"""

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from logging.handlers import QueueHandler
from typing import Any

from ..events import liveness_logs, logs

MOST_LINES_WAITING = 10_000
"""Lines that may wait. Further lines are dropped, and a later line says how many were dropped."""


class LogQueue:
    def __init__(self, logger: logging.Logger = logs.logger) -> None:
        self._logger = logger
        self._waiting: queue.SimpleQueue[logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._dropped = 0
        self._writer: threading.Thread | None = None
        self._end: threading.Event | None = None  # in `_waiting`: ends the thread
        self._ending = threading.Lock()  # guards `_end` and `_writer`
        self._process = os.getpid()

    def filter(self, record: logging.LogRecord) -> bool:
        """Queue the record. `logging` calls this. Returns True if the record must be handled now, in this thread."""
        if threading.current_thread() is self._writer or os.getpid() != self._process:
            return True  # a process forked by a task has no writer
        if self._waiting.qsize() < MOST_LINES_WAITING:
            self._waiting.put(record)
        else:
            self._dropped += 1
        return False

    def start(self) -> None:
        """Start the thread, which writes the waiting and all later lines."""
        # Before the filters of the project. A log queue of the parent process has no thread here, so it is dropped.
        others = [each for each in self._logger.filters if not isinstance(each, LogQueue)]
        self._logger.filters[:] = [self, *others]
        with self._ending:
            self._end = None
            if self._writer is None:
                self._writer = threading.Thread(target=self._run, name="skipqueue-log", daemon=True)
                self._writer.start()

    def stop(self, timeout: float) -> bool:
        """Write the waiting lines and end the thread, before a fork. Returns whether it ended within the timeout."""
        writer = self._writer
        if writer is None:
            return True
        self._end = threading.Event()
        self._waiting.put(self._end)
        writer.join(timeout)
        return not writer.is_alive()

    def end(self, timeout: float) -> bool:
        """Write the waiting lines, for `timeout` seconds at most. A thread that logs later writes its own line."""
        ended = self.stop(timeout)
        self._logger.removeFilter(self)
        return ended

    def end_process(self, timeout: float) -> None:
        """Write the waiting lines, and flush the handlers of the project: `os._exit` would lose what they buffer."""
        deadline = time.monotonic() + timeout
        if self.end(timeout):
            closing = threading.Thread(target=_close_handlers, name="skipqueue-log", daemon=True)
            closing.start()
            closing.join(max(0.0, deadline - time.monotonic()))

    # In the writer's thread

    def _run(self) -> None:
        while True:
            record = self._waiting.get()
            if isinstance(record, threading.Event):
                _flush_streams()
                with self._ending:
                    if record is self._end:
                        self._writer = None
                        return
                continue
            with contextlib.suppress(BaseException):  # a handler, a formatter or a filter of the project
                self._logger.handle(record)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                with contextlib.suppress(BaseException):
                    liveness_logs.lines_dropped(dropped)


def pause_listeners(timeout: float) -> None:
    """Before a fork: end the threads of the project's `QueueListener`s, which may hold the lock of a file.

    Waits for `timeout` seconds at most, since a handler may block.
    """
    deadline = time.monotonic() + timeout
    for _, listener in _listening():
        listener.enqueue_sentinel()
        listener._thread.join(max(0.0, deadline - time.monotonic()))


def resume_listeners() -> None:
    """After the fork, in the parent, start each listener again. If the old thread still runs, one of the two ends."""
    for _, listener in _listening():
        listener._thread = None
        listener.start()


def revive_listeners() -> None:
    """After the fork, in the child, start each listener with a new queue. The parent writes the old queue."""
    for handler, listener in _listening():
        handler.queue = listener.queue = queue.Queue()
        listener._thread = None
        listener.start()


def _listening() -> list[tuple[QueueHandler, Any]]:
    """The started listeners of the handlers that `logging.config` has made (Python 3.12 and newer)."""
    handlers = [reference() for reference in logging._handlerList]  # type: ignore[attr-defined]
    found = [(handler, getattr(handler, "listener", None)) for handler in handlers if isinstance(handler, QueueHandler)]
    return [(handler, listener) for handler, listener in found if getattr(listener, "_thread", None) is not None]


def _close_handlers() -> None:
    with contextlib.suppress(BaseException):
        for _, listener in _listening():
            listener.stop()
    with contextlib.suppress(BaseException):
        logging.shutdown()
    _flush_streams()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # closed, or not there
            stream.flush()

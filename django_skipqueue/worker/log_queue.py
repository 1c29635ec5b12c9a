"""Write the queue's log lines in a separate thread, so that a blocking log handler delays only this thread.

A thread that logs only puts a record into memory. Only the writer's thread uses the project's handlers, formatters and
filters, and the standard streams. The lines keep their order and their times.
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
"""The most lines that may wait. Further lines are dropped, and a later line tells how many were dropped."""


class LogQueue:
    """Queues log records, and writes them in its own thread. It is a filter of the logger."""

    def __init__(self, logger: logging.Logger = logs.logger) -> None:
        self._logger = logger
        self._waiting: queue.SimpleQueue[logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._dropped = 0
        self._writer: threading.Thread | None = None
        self._end: threading.Event | None = None  # the item in `_waiting` that ends the thread
        self._ending = threading.Lock()  # guards `_end` and `_writer`
        self._process = os.getpid()

    def filter(self, record: logging.LogRecord) -> bool:
        """Queue the record. Called by `logging`. Returns True if the record must be handled now, in this thread."""
        if threading.current_thread() is self._writer or os.getpid() != self._process:
            return True  # a process that a task has forked has no writer thread
        if self._waiting.qsize() < MOST_LINES_WAITING:
            self._waiting.put(record)
        else:
            self._dropped += 1
        return False

    def start(self) -> None:
        """Start the thread, which writes the waiting lines and all later lines."""
        # This filter must come before the project's filters. A log queue of the parent process has no thread in this
        # process, so it is removed.
        other_filters = [log_filter for log_filter in self._logger.filters if not isinstance(log_filter, LogQueue)]
        self._logger.filters[:] = [self, *other_filters]
        with self._ending:
            self._end = None
            if self._writer is None:
                self._writer = threading.Thread(target=self._run, name="skipqueue-log", daemon=True)
                self._writer.start()

    def stop(self, timeout: float) -> bool:
        """Write the waiting lines and end the thread. Returns whether it ended in time. Called before a fork."""
        writer = self._writer
        if writer is None:
            return True
        self._end = threading.Event()
        self._waiting.put(self._end)
        writer.join(timeout)
        return not writer.is_alive()

    def end(self, timeout: float) -> bool:
        """Write the waiting lines, for at most `timeout` seconds. Later lines are written by the thread that logs."""
        ended = self.stop(timeout)
        self._logger.removeFilter(self)
        return ended

    def end_process(self, timeout: float) -> None:
        """Write the waiting lines, and close the project's handlers, because `os._exit` would lose buffered lines."""
        deadline = time.monotonic() + timeout
        if self.end(timeout):
            closing_thread = threading.Thread(target=_close_handlers, name="skipqueue-log", daemon=True)
            closing_thread.start()
            closing_thread.join(max(0.0, deadline - time.monotonic()))

    # Called in the writer's thread

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                _flush_streams()
                with self._ending:
                    if item is self._end:
                        self._writer = None
                        return
                continue
            with contextlib.suppress(BaseException):  # a handler, formatter or filter of the project may raise
                self._logger.handle(item)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                with contextlib.suppress(BaseException):
                    liveness_logs.lines_dropped(dropped)


def pause_listeners(timeout: float) -> None:
    """End the threads of the project's `QueueListener`s before a fork, because they may hold a lock.

    Waits at most `timeout` seconds, because a handler may block.
    """
    deadline = time.monotonic() + timeout
    for _, listener in _started_listeners():
        listener.enqueue_sentinel()
        listener._thread.join(max(0.0, deadline - time.monotonic()))


def resume_listeners() -> None:
    """Start each listener again in the parent process, after the fork.

    If the old thread of a listener still runs, one of the two threads ends.
    """
    for _, listener in _started_listeners():
        listener._thread = None
        listener.start()


def revive_listeners() -> None:
    """Start each listener in the child process, after the fork, with a new queue.

    The parent process writes the records in the old queue.
    """
    for handler, listener in _started_listeners():
        handler.queue = listener.queue = queue.Queue()
        listener._thread = None
        listener.start()


def _started_listeners() -> list[tuple[QueueHandler, Any]]:
    """Return the handlers that `logging.config` has made with a started listener, each with this listener.

    Before Python 3.12, `logging.config` makes no listeners.
    """
    handlers = [reference() for reference in logging._handlerList]  # type: ignore[attr-defined]
    queue_handlers = [handler for handler in handlers if isinstance(handler, QueueHandler)]
    pairs = [(handler, getattr(handler, "listener", None)) for handler in queue_handlers]
    return [(handler, listener) for handler, listener in pairs if getattr(listener, "_thread", None) is not None]


def _close_handlers() -> None:
    with contextlib.suppress(BaseException):
        for _, listener in _started_listeners():
            listener.stop()
    with contextlib.suppress(BaseException):
        logging.shutdown()
    _flush_streams()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the stream may be closed or missing
            stream.flush()

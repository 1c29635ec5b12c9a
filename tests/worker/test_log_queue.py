"""`LogQueue`: a log handler that blocks does not delay jobs, and the last log lines are not lost."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from django_skipqueue.models import Job, Worker
from django_skipqueue.worker import log_queue
from django_skipqueue.worker.log_queue import LogQueue

from ..app import jobs
from ..app.waiting import DEADLINE, wait_until
from ..harness.processes import ManagePy, children, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]
ONE_HOUR = "3600"


class BlockingHandler(logging.Handler):
    """A log handler that keeps records, but blocks until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.open.wait(DEADLINE)
        self.lines.append(record.getMessage())


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    test_logger = logging.getLogger("tests.log_queue")
    test_logger.setLevel(logging.INFO)
    test_logger.propagate = False
    yield test_logger
    test_logger.handlers.clear()
    test_logger.filters.clear()


@pytest.fixture
def blocking_handler(logger: logging.Logger) -> Iterator[BlockingHandler]:
    handler = BlockingHandler()
    logger.addHandler(handler)
    yield handler
    handler.open.set()


def test_lines_are_written_in_their_order_by_a_thread_of_their_own(
    logger: logging.Logger, blocking_handler: BlockingHandler
) -> None:
    queue = LogQueue(logger)
    queue.start()
    for number in range(100):
        logger.info("%s", number)  # this call does not wait for the handler, which is still blocked
    blocking_handler.open.set()
    assert queue.end(DEADLINE)
    assert blocking_handler.lines == [str(number) for number in range(100)]
    logger.info("after it")
    assert blocking_handler.lines[-1] == "after it"


def test_lines_beyond_the_size_of_the_queue_are_counted(
    logger: logging.Logger,
    blocking_handler: BlockingHandler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(log_queue, "MOST_LINES_WAITING", 10)
    queue = LogQueue(logger)
    queue.start()
    for number in range(100):
        logger.info("%s", number)
    blocking_handler.open.set()
    assert queue.end(DEADLINE)
    assert blocking_handler.lines[:10] == [str(number) for number in range(10)]
    assert "lines dropped count=" in caplog.text


def test_the_thread_ends_for_a_fork_and_later_lines_are_written_after_the_fork(
    logger: logging.Logger, blocking_handler: BlockingHandler
) -> None:
    blocking_handler.open.set()
    threads_before = set(threading.enumerate())
    queue = LogQueue(logger)
    queue.start()
    logger.info("before")
    assert queue.stop(DEADLINE)
    assert set(threading.enumerate()) <= threads_before
    logger.info("between")
    queue.start()
    logger.info("after")
    assert queue.end(DEADLINE)
    assert blocking_handler.lines == ["before", "between", "after"]


def test_a_stuck_log_handler_is_not_waited_for_and_its_lines_are_written_later(
    logger: logging.Logger, blocking_handler: BlockingHandler
) -> None:
    queue = LogQueue(logger)
    queue.start()
    logger.info("stuck")
    assert not queue.stop(0.01)
    queue.start()
    logger.info("after")
    blocking_handler.open.set()
    assert queue.end(DEADLINE)
    assert blocking_handler.lines == ["stuck", "after"]


def test_a_log_filter_that_raises_loses_only_its_line(
    logger: logging.Logger, blocking_handler: BlockingHandler
) -> None:
    def raise_for_bad_line(record: logging.LogRecord) -> bool:
        if record.getMessage() == "bad":
            raise ValueError("broken filter")
        return True

    logger.addFilter(raise_for_bad_line)
    blocking_handler.open.set()
    queue = LogQueue(logger)
    queue.start()
    logger.info("bad")
    logger.info("good")
    assert queue.end(DEADLINE)
    assert blocking_handler.lines == ["good"]


# With worker processes

STDERR_WITHOUT_READER = """
import fcntl, os

read_end, write_end = os.pipe()
fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
os.dup2(write_end, 2)
"""


@pytest.mark.django_db(transaction=True)
def test_a_blocked_log_stops_neither_jobs_nor_heartbeats_nor_a_new_worker(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", ONE_HOUR, "--worker-timeout", "2", "-v", "2", settings=STDERR_WITHOUT_READER)
    (first_worker,) = workers()
    for completed_count in (100, 200, 300):
        jobs.noop.defer_many([()] * 100)
        wait_for_statuses(completed=completed_count)
    jobs.record_and_die.defer("a")
    wait_for_statuses(completed=301)
    wait_until(
        lambda: not Worker.objects.filter(pk=first_worker.pk).exists(), "the row of the worker that died is deleted"
    )
    (second_worker,) = workers()
    first_heartbeat = second_worker.heartbeat_at

    def has_sent_heartbeats() -> bool:
        second_worker.refresh_from_db()
        return bool((second_worker.heartbeat_at - first_heartbeat).total_seconds() > 4)

    wait_until(has_sent_heartbeats)
    assert children(process.process.pid) == [second_worker.pid]
    assert Job.objects.filter(attempts=1).count() == 300


MEMORY_HANDLER_SETTINGS = """
LOGGING = {
    "version": 1,
    "handlers": {
        "file": {"class": "logging.FileHandler", "filename": "kept.log"},
        "memory": {
            "class": "logging.handlers.MemoryHandler", "capacity": 10_000, "flushLevel": 50, "target": "file",
        },
    },
    "loggers": {"django_skipqueue": {"handlers": ["memory"], "level": "INFO"}},
}
"""


@pytest.mark.django_db(transaction=True)
def test_lines_in_the_memory_of_a_handler_are_written_when_a_worker_ends(runworker: RunWorker) -> None:
    jobs.noop.defer()
    process = runworker("--drain", settings=MEMORY_HANDLER_SETTINGS)
    assert process.wait() == 0
    lines = (process.folder / "kept.log").read_text()
    for line in ("job completed", "worker stopped"):
        assert line in lines, lines


QUEUE_HANDLER_SETTINGS = """
LOGGING = {
    "version": 1,
    "handlers": {
        "file": {"class": "logging.FileHandler", "filename": "kept.log"},
        "queue": {"class": "logging.handlers.QueueHandler", "handlers": ["file"]},
    },
    "loggers": {"django_skipqueue": {"handlers": ["queue"], "level": "INFO"}},
}
"""

START_LISTENER = """
    import logging

    logging.getHandlerByName("queue").listener.start()
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12 a configuration has no listeners")
@pytest.mark.django_db(transaction=True)
def test_a_queue_listener_of_the_project_writes_the_log_of_a_worker(runworker: RunWorker) -> None:
    jobs.noop.defer()
    process = runworker("--drain", settings=QUEUE_HANDLER_SETTINGS, jobs=START_LISTENER)
    assert process.wait() == 0
    lines = (process.folder / "kept.log").read_text()
    for line in ("django_skipqueue 0.1", "job completed", "worker stopped"):
        assert line in lines, lines

"""`LogQueue`: a log handler that blocks delays nothing else, and the last lines are not lost."""

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

Run = Callable[..., ManagePy]
HOUR = "3600"


class Kept(logging.Handler):
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
    made = logging.getLogger("tests.log_queue")
    made.setLevel(logging.INFO)
    made.propagate = False
    yield made
    made.handlers.clear()
    made.filters.clear()


@pytest.fixture
def kept(logger: logging.Logger) -> Iterator[Kept]:
    handler = Kept()
    logger.addHandler(handler)
    yield handler
    handler.open.set()


def test_lines_are_written_in_their_order_by_a_thread_of_their_own(logger: logging.Logger, kept: Kept) -> None:
    waiting = LogQueue(logger)
    waiting.start()
    for number in range(100):
        logger.info("%s", number)  # returns, or the test would never reach the line that opens
    kept.open.set()
    assert waiting.end(DEADLINE)
    assert kept.lines == [str(number) for number in range(100)]
    logger.info("after it")
    assert kept.lines[-1] == "after it"


def test_lines_beyond_the_size_of_the_queue_are_counted(
    logger: logging.Logger, kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_queue, "MOST_LINES_WAITING", 10)
    waiting = LogQueue(logger)
    waiting.start()
    for number in range(100):
        logger.info("%s", number)
    kept.open.set()
    assert waiting.end(DEADLINE)
    assert kept.lines[:10] == [str(number) for number in range(10)]
    assert "lines dropped count=" in caplog.text


def test_its_thread_ends_for_a_fork_and_what_comes_then_is_written_after_it(logger: logging.Logger, kept: Kept) -> None:
    kept.open.set()
    before = set(threading.enumerate())
    waiting = LogQueue(logger)
    waiting.start()
    logger.info("before")
    assert waiting.stop(DEADLINE)
    assert set(threading.enumerate()) <= before
    logger.info("between")
    waiting.start()
    logger.info("after")
    assert waiting.end(DEADLINE)
    assert kept.lines == ["before", "between", "after"]


def test_a_writer_that_is_stuck_is_not_waited_for_and_goes_on_when_it_can(logger: logging.Logger, kept: Kept) -> None:
    waiting = LogQueue(logger)
    waiting.start()
    logger.info("stuck")
    assert not waiting.stop(0.01)
    waiting.start()
    logger.info("after")
    kept.open.set()
    assert waiting.end(DEADLINE)
    assert kept.lines == ["stuck", "after"]


def test_a_filter_that_raises_harms_nothing(logger: logging.Logger, kept: Kept) -> None:
    def broken(record: logging.LogRecord) -> bool:
        if record.getMessage() == "bad":
            raise ValueError("broken filter")
        return True

    logger.addFilter(broken)
    kept.open.set()
    waiting = LogQueue(logger)
    waiting.start()
    logger.info("bad")
    logger.info("good")
    assert waiting.end(DEADLINE)
    assert kept.lines == ["good"]


# In processes

NOBODY_READS = """
import fcntl, os

read_end, write_end = os.pipe()
fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
os.dup2(write_end, 2)
"""


@pytest.mark.django_db(transaction=True)
def test_a_log_that_blocks_holds_up_neither_jobs_nor_heartbeats_nor_a_new_worker(runworker: Run) -> None:
    process = runworker("--poll-interval", HOUR, "--worker-timeout", "2", "-v", "2", settings=NOBODY_READS)
    (first,) = workers()
    for round in range(3):
        jobs.noop.defer_many([()] * 100)
        wait_for_statuses(completed=(round + 1) * 100)
    jobs.record_and_die.defer("a")
    wait_for_statuses(completed=301)
    wait_until(lambda: not Worker.objects.filter(pk=first.pk).exists(), "the row of the worker that died is deleted")
    (second,) = workers()
    before = second.heartbeat_at

    def beats() -> bool:
        second.refresh_from_db()
        return bool((second.heartbeat_at - before).total_seconds() > 4)

    wait_until(beats)
    assert children(process.process.pid) == [second.pid]
    assert Job.objects.filter(attempts=1).count() == 300


KEEPING = """
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
def test_what_a_handler_has_kept_is_written_when_a_worker_ends(runworker: Run) -> None:
    jobs.noop.defer()
    process = runworker("--drain", settings=KEEPING)
    assert process.wait() == 0
    lines = (process.folder / "kept.log").read_text()
    for line in ("job completed", "worker stopped"):
        assert line in lines, lines


LISTENING = """
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
def test_a_listener_of_the_projects_writes_what_a_worker_logs(runworker: Run) -> None:
    jobs.noop.defer()
    process = runworker("--drain", settings=LISTENING, jobs=START_LISTENER)
    assert process.wait() == 0
    lines = (process.folder / "kept.log").read_text()
    for line in ("supervisor starting", "job completed", "worker stopped"):
        assert line.replace("supervisor starting", "django_skipqueue 0.1") in lines, lines

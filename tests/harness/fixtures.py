"""Fixtures that start workers, as processes or as threads of the test's process, and fixtures for logs and signals."""

import logging
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import SyncToAsync
from django.db import connection, connections
from django.dispatch import Signal

from django_skipqueue.models.expressions import table_names

from ..app.waiting import DEADLINE

if TYPE_CHECKING:
    from .processes import ManagePy
    from .threads import WorkerThread


APPLICATION_NAME = "tests"
"""The application name of the database sessions of the process that runs the tests."""

LOGS = pytest.StashKey[list["ManagePy"]]()
"""The key under which pytest keeps the processes of a test, whose logs are shown if the test fails."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """If a test fails, add the logs of its processes to the report."""
    report = yield
    if report.failed and report.when == "call":
        for process in item.stash.get(LOGS, []):
            report.sections.append((f"Log of manage.py {process.arguments}", process.log))
    return report


@pytest.fixture
def new_tables(transactional_db: None) -> None:
    """Truncate the queue's tables: tests that were rolled back leave dead rows and large indexes in the tables."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(table_names())} CASCADE")
        cursor.execute("SELECT pg_stat_force_next_flush()")


@pytest.fixture
def package_logger() -> Iterator[logging.Logger]:
    """The logger of the package without configuration. Changes that the test makes are undone."""
    logger = logging.getLogger("django_skipqueue")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def loggers_are_unchanged() -> Iterator[None]:
    """Fail a test that leaves the loggers of the package changed, because the change could make a later test fail."""
    before = _state_of_logging()
    yield
    assert _state_of_logging() == before


def _state_of_logging() -> list[Any]:
    loggers = [logging.getLogger(name) for name in ("django_skipqueue", "django_skipqueue.worker")]
    return [
        (logger.level, logger.propagate, logger.disabled, list(logger.handlers), list(logger.filters))
        for logger in loggers
    ]


@pytest.fixture
def record_signal() -> Iterator[Callable[[Signal], list[dict[str, Any]]]]:
    """A function that returns a list for a signal. Each time that the signal is sent, its arguments join the list."""
    connected: list[tuple[Signal, Any]] = []

    def listen(signal: Signal) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []

        def receive(**event: Any) -> None:
            events.append(event)

        signal.connect(receive)
        connected.append((signal, receive))
        return events

    yield listen
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def manage(
    transactional_db: None, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., "ManagePy"]]:
    """A function that starts `manage.py` processes, which end with the test."""
    from .processes import ManagePy

    logs = request.node.stash.setdefault(LOGS, [])

    with ExitStack() as stack:
        count = 0

        def start(*arguments: str, **options: Any) -> ManagePy:
            nonlocal count
            count += 1
            process = ManagePy(tmp_path / str(count), *arguments, **options)
            stack.callback(process.end)
            logs.append(process)
            return process

        yield start


@pytest.fixture
def runworker(manage: Callable[..., "ManagePy"]) -> Callable[..., "ManagePy"]:
    """A function that starts `manage.py runworker` processes, which end with the test."""
    return lambda *arguments, **options: manage("runworker", *arguments, **options)


REFUSE = """
CREATE FUNCTION tests_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
CREATE TRIGGER tests_refuse BEFORE UPDATE ON skipqueue_job FOR EACH ROW WHEN ({condition})
EXECUTE FUNCTION tests_refuse()
"""


@pytest.fixture
def refuse(transactional_db: None) -> Iterator[Callable[[str], Callable[[], None]]]:
    """A function that makes the database refuse changes of jobs for which an SQL condition on OLD and NEW holds.

    The function returns another, which allows these changes again.
    """

    def execute(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def allow() -> None:
        execute("DROP FUNCTION IF EXISTS tests_refuse CASCADE")

    def start(condition: str) -> Callable[[], None]:
        execute(REFUSE.format(condition=condition))
        return allow

    yield start
    allow()


@pytest.fixture
def gates() -> Iterator[Any]:
    """Gates by name. The task `pass_gate` waits at a gate until the test opens it. After the test, all gates open."""
    from ..app.worker_jobs import gates

    gates.clear()
    yield gates
    for gate in list(gates.values()):
        gate.open()


@pytest.fixture
def worker_thread(transactional_db: None, gates: Any) -> Iterator[Callable[..., "WorkerThread"]]:
    """A function that starts the loop of a worker in a thread of this process. The loop ends after the test."""
    from .threads import WorkerThread

    with ExitStack() as stack:

        def start(**options: Any) -> WorkerThread:
            worker = WorkerThread(id=options.pop("id", f"w:{secrets.token_hex(6)}"), **options)
            stack.callback(worker.end)
            stack.callback(lambda: [gate.open() for gate in list(gates.values())])
            return worker

        yield start
    close_connections_of_asgiref()


def close_connections_of_asgiref() -> None:
    """Close the connections of the thread in which asgiref runs queries of `async def` tasks: it outlives workers."""
    SyncToAsync.single_thread_executor.submit(connections.close_all).result(DEADLINE)

"""Fixtures and hooks of the whole suite. Tests use a real PostgreSQL, and wait for conditions instead of sleeping."""

import gc
import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connections

from django_skipqueue.jobs.registry import Registry, registry

from .app import sessions
from .harness.fixtures import (  # noqa: F401 (fixtures and a hook)
    APPLICATION_NAME,
    close_connections_of_asgiref,
    gates,
    loggers_are_unchanged,
    manage,
    new_tables,
    package_logger,
    pytest_runtest_makereport,
    record_signal,
    refuse,
    runworker,
    worker_thread,
)
from .harness.flush import flush_little
from .harness.rabbitmq import broker_url, new_vhosts, rabbitmq, rabbitmq_node, small_message_limit  # noqa: F401 (fixtures)
from .harness.table import case, forget_gates  # noqa: F401 (a fixture)


def pytest_configure(config: pytest.Config) -> None:
    """Give the connections of this process a name, so that tests can end all others, and let SIGINT have its effect.

    A shell makes background commands ignore SIGINT, which processes that the tests start would inherit.
    """
    config.addinivalue_line("markers", "slow: takes long and seldom fails; runs only where SKIPQUEUE_SLOW is set")
    os.environ["PGAPPNAME"] = APPLICATION_NAME
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()


def pytest_collection_finish() -> None:
    """Let the garbage collector ignore all objects that exist now, because Django and all tests would make it slow."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a parametrized case by its value, instead of a name such as `options3`."""
    return ascii(val)[:60] if isinstance(val, dict | list | tuple | timedelta) and is_plain(val) else None


ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT")


def is_plain(value: object) -> bool:
    """Whether all processes of pytest write the value alike. Times, sets and most objects differ."""
    if isinstance(value, dict):
        return all(map(is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, str):
        return not ISO_TIME.match(value)
    return value is None or isinstance(value, int | float | timedelta)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip slow tests and tests that need a RabbitMQ node, unless SKIPQUEUE_SLOW is set, as before a merge."""
    for item in items:
        is_slow = item.get_closest_marker("slow") or "rabbitmq_node" in getattr(item, "fixturenames", ())
        if is_slow and not os.environ.get("SKIPQUEUE_SLOW"):
            item.add_marker(pytest.mark.skip(reason="SKIPQUEUE_SLOW is not set"))


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Before the test databases are dropped, end their sessions: a thread that a test left running may have one."""
    flush_little()
    yield
    close_connections_of_asgiref()
    with django_db_blocker.unblock():
        for connection in connections.all():
            if connection.settings_dict["NAME"].startswith("test_"):  # all that pytest-django has created
                with connection.cursor() as cursor:
                    cursor.execute(END_OTHER_SESSIONS)


@pytest.fixture(autouse=True)
def forgetful_gates() -> None:
    """Forget when each gate must be checked again, so that no test depends on the test before it.

    A gate is a condition for jobs to be queued.
    """
    forget_gates()


END_OTHER_SESSIONS = """
SELECT pg_terminate_backend(pid, 5000)
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@pytest.fixture
def session(transactional_db: None) -> Iterator[Callable[[], sessions.Session]]:
    """A function that makes a database session: a thread with its own connection, in which a test calls functions."""
    with ExitStack() as stack:

        def make() -> sessions.Session:
            new_session = sessions.Session()
            stack.callback(new_session.close)
            return new_session

        yield make


@pytest.fixture
def connect(transactional_db: None) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """A function that opens a psycopg connection to the database under test."""
    with ExitStack() as stack:

        def make(**options: Any) -> psycopg.Connection[Any]:
            return stack.enter_context(sessions.connect(**options))

        yield make


@pytest.fixture(name="registry")
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry of the process without tasks. The tasks of the suite return after the test."""
    for name, value in vars(Registry()).items():
        monkeypatch.setattr(registry, name, value)
    return registry


@pytest.fixture
def worker_id() -> str:
    """The id of a worker process, as in `Job.locked_by`."""
    return f"w:{secrets.token_hex(6)}"

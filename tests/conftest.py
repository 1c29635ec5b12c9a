"""What every part of the suite shares. Tests use real PostgreSQL, and wait for conditions, never for a time."""

import os
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
    close_asyncs_connections,
    gates,
    logging_left_alone,
    manage,
    new_tables,
    package_logger,
    pytest_runtest_makereport,
    refuse,
    runworker,
    sent,
    worker_thread,
)
from .harness.flush import flush_little
from .harness.rabbitmq import broker_url, new_vhosts, rabbitmq, rabbitmq_node, small_message_limit  # noqa: F401 (fixtures)
from .harness.table import forget_gates, row  # noqa: F401 (a fixture)


def pytest_configure(config: pytest.Config) -> None:
    """Before any connection is made: tests that cut those of others shall know their own.

    A shell starts what runs in its background with SIGINT ignored, and so would the processes of the tests be.
    """
    config.addinivalue_line("markers", "slow: takes long and seldom fails; runs only where SKIPQUEUE_SLOW is set")
    os.environ["PGAPPNAME"] = APPLICATION_NAME
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """The values themselves as the name of a case, where pytest would write `options3`."""
    return ascii(val)[:60] if isinstance(val, dict | list | tuple | timedelta) and is_plain(val) else None


def is_plain(value: object) -> bool:
    """Whether each process of pytest writes the value alike: it has no moment, no set and no address of an object."""
    if isinstance(value, dict):
        return all(map(is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float | timedelta)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is slow and seldom red is left to the checks before a merge, and so is what needs a node of RabbitMQ."""
    for item in items:
        is_slow = item.get_closest_marker("slow") or "rabbitmq_node" in getattr(item, "fixturenames", ())
        if is_slow and not os.environ.get("SKIPQUEUE_SLOW"):
            item.add_marker(pytest.mark.skip(reason="SKIPQUEUE_SLOW is not set"))


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Before the databases are dropped, end what is left in them: a thread that a test has left stuck has a session."""
    flush_little()
    yield
    close_asyncs_connections()
    with django_db_blocker.unblock():
        for connection in connections.all():
            if connection.settings_dict["NAME"].startswith("test_"):  # others were not made
                with connection.cursor() as cursor:
                    cursor.execute(END_OTHER_SESSIONS)


@pytest.fixture(autouse=True)
def forgetful_gates() -> None:
    """A process remembers of each gate when it looks again. No test goes on where the one before it has ended."""
    forget_gates()


END_OTHER_SESSIONS = """
SELECT pg_terminate_backend(pid, 5000)
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@pytest.fixture
def session(transactional_db: None) -> Iterator[Callable[[], sessions.Session]]:
    """Makes further users of the queue, each a thread with a connection of its own."""
    with ExitStack() as stack:

        def make() -> sessions.Session:
            made = sessions.Session()
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def connect(transactional_db: None) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Makes connections without Django to the database under test."""
    with ExitStack() as stack:

        def make(**options: Any) -> psycopg.Connection[Any]:
            return stack.enter_context(sessions.connect(**options))

        yield make


@pytest.fixture(name="registry")
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry of the process, without the tasks of the suite; they are back after the test."""
    for name, value in vars(Registry()).items():
        monkeypatch.setattr(registry, name, value)
    return registry


@pytest.fixture
def worker_id() -> str:
    """The id of a worker process, as it stands in `locked_by`."""
    return f"w:{secrets.token_hex(6)}"

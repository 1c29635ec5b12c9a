"""What every part of the suite shares. Tests use real PostgreSQL, and wait for conditions, never for a time."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from django_skipqueue.tasks.registry import Registry, registry

from .app import sessions
from .harness.fixtures import (  # noqa: F401 (fixtures and a hook)
    close_asyncs_connections,
    gates,
    manage,
    pytest_runtest_makereport,
    runworker,
    worker_thread,
)


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After the last test, before its database is dropped."""
    if nextitem is None:
        close_asyncs_connections()


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

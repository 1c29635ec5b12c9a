"""The fixture `row`: one test goes through the rows of a table, and each row is checked separately."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import connection, transaction

from django_skipqueue.models import Job
from django_skipqueue.queue.gates import gates

Row = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def row(subtests: pytest.Subtests, db: None) -> Row:
    """Starts a row, which has a name, or values that tell it from the others. A row that fails hides no other.

    Each row starts with what the test has made: what a row writes is rolled back. In a test that commits, all jobs are
    deleted after each row.
    """

    @contextmanager
    def start(name: str | None = None, /, **values: object) -> Iterator[None]:
        forget_gates()
        with subtests.test(name, **values), _rolled_back() if connection.in_atomic_block else _without_jobs():
            yield

    return start


def forget_gates() -> None:
    """A process remembers of each gate when it looks again: make this process a new one."""
    for gate in gates():
        vars(gate).update(vars(type(gate)()))


@contextmanager
def _rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        if not connection.needs_rollback and connection.is_usable():
            connection.check_constraints()  # as a commit would
        transaction.set_rollback(True)


@contextmanager
def _without_jobs() -> Iterator[None]:
    try:
        yield
    finally:
        Job.objects.all().delete()

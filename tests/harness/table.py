"""The fixture `case`: one test checks many cases, and pytest reports each case separately."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import connection, transaction

from django_skipqueue.models import Job
from django_skipqueue.queue.gates import gates

Case = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def case(subtests: pytest.Subtests, db: None) -> Case:
    """A context manager around the check of a case, which has a name or values. A failed case does not end the test.

    Each case starts with the database as the test has filled it, because the changes of a case are rolled back. In a
    test that commits, all jobs are deleted after each case.
    """

    @contextmanager
    def start(name: str | None = None, /, **values: object) -> Iterator[None]:
        forget_gates()
        with subtests.test(name, **values), _rolled_back() if connection.in_atomic_block else _without_jobs():
            yield

    return start


def forget_gates() -> None:
    """Make each gate (a condition for jobs to be queued) forget when this process must check it again."""
    for gate in gates():
        vars(gate).update(vars(type(gate)()))


@contextmanager
def _rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        if not connection.needs_rollback and connection.is_usable():
            connection.check_constraints()  # a commit would check them
        transaction.set_rollback(True)


@contextmanager
def _without_jobs() -> Iterator[None]:
    try:
        yield
    finally:
        Job.objects.all().delete()

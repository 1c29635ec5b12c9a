"""The testing kit with several databases that hold queues: it uses all of them, or the database that a test names."""

from typing import Any

import pytest
from django.db import transaction

from django_skipqueue import job
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.testing import assert_deferred, assert_not_deferred, capture_deferred, run_inline, run_jobs

from ..app.jobs import add, noop

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(autouse=True)
def _several(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "PLACEMENT": "spread"}


def hop(way: list[str]) -> None:
    """Defers itself into each of the given databases in turn."""
    first, *others = way
    job(name="hop", max_attempts=1)(hop).using(database=first).defer(others)


def test_jobs_run_until_none_is_left_in_any(registry: Registry) -> None:
    task = job(name="hop", max_attempts=1)(hop)
    task.using(database="default").defer(["other", "default", "other"])
    ran = run_jobs()
    assert [(each._state.db, each.args) for each in ran] == [
        ("default", [["other", "default", "other"]]),
        ("default", [["other"]]),
        ("other", [["default", "other"]]),
        ("other", [[]]),
    ]
    assert [each.status for each in ran] == ["completed"] * 3 + ["failed"]


def test_one_database_alone() -> None:
    add.using(database="default").defer(1)
    there = add.using(database="other").defer(2)
    assert run_jobs(database="other") == [there]
    assert Job.objects.queued().count() == 1


def test_jobs_are_found_in_all() -> None:
    for alias, number in (("default", 1), ("other", 2)):
        with capture_deferred() as captured, capture_deferred(database=alias) as here:
            add.using(database=alias).defer(number)
        assert [each.args for each in captured] == [each.args for each in here] == [[number]]
        assert_deferred(add, number)
    assert_not_deferred(add, 2, database="default")
    with pytest.raises(AssertionError, match="2 jobs were deferred"):
        assert_not_deferred()


def test_jobs_run_where_they_are_deferred() -> None:
    with run_inline() as ran:
        for alias in ("default", "other"):
            with transaction.atomic(using=alias):
                noop.using(database=alias).defer()
                assert not ran or ran[-1]._state.db != alias, "its transaction is open"
            assert ran[-1]._state.db == alias
    assert len(ran) == 2
    with run_inline(database="default") as ran:
        noop.using(database="other").defer()
    assert ran == []

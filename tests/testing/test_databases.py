"""The testing helpers with several databases use all of them, or the one that a test names."""

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
def _use_two_databases(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "PLACEMENT": "spread"}


def defer_into(aliases: list[str]) -> None:
    """A task that defers itself into the first of these databases. Its new job gets the remaining databases."""
    first_alias, *remaining_aliases = aliases
    job(name="defer_into", max_attempts=1)(defer_into).using(database=first_alias).defer(remaining_aliases)


def test_run_jobs_runs_jobs_of_all_databases_until_none_is_left(registry: Registry) -> None:
    task = job(name="defer_into", max_attempts=1)(defer_into)
    task.using(database="default").defer(["other", "default", "other"])
    jobs_run = run_jobs()
    assert [(job_run._state.db, job_run.args) for job_run in jobs_run] == [
        ("default", [["other", "default", "other"]]),
        ("default", [["other"]]),
        ("other", [["default", "other"]]),
        ("other", [[]]),
    ]
    assert [job_run.status for job_run in jobs_run] == ["completed"] * 3 + ["failed"]


def test_run_jobs_can_run_the_jobs_of_one_database() -> None:
    add.using(database="default").defer(1)
    job_in_other = add.using(database="other").defer(2)
    assert run_jobs(database="other") == [job_in_other]
    assert Job.objects.queued().count() == 1


def test_jobs_are_captured_and_found_in_all_databases() -> None:
    for alias, number in (("default", 1), ("other", 2)):
        with capture_deferred() as captured, capture_deferred(database=alias) as captured_in_database:
            add.using(database=alias).defer(number)
        assert (
            [captured_job.args for captured_job in captured]
            == [captured_job.args for captured_job in captured_in_database]
            == [[number]]
        )
        assert_deferred(add, number)
    assert_not_deferred(add, 2, database="default")
    with pytest.raises(AssertionError, match="2 jobs were deferred"):
        assert_not_deferred()


def test_run_inline_runs_each_job_in_the_database_where_it_is_deferred() -> None:
    with run_inline() as jobs_run:
        for alias in ("default", "other"):
            with transaction.atomic(using=alias):
                noop.using(database=alias).defer()
                assert not jobs_run or jobs_run[-1]._state.db != alias, "the job does not run before the commit"
            assert jobs_run[-1]._state.db == alias
    assert len(jobs_run) == 2
    with run_inline(database="default") as jobs_run:
        noop.using(database="other").defer()
    assert jobs_run == []

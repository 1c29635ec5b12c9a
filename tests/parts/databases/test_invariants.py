"""Property tests: at most one unfinished job has a unique key, and a new database takes its share of the keys."""

from dataclasses import dataclass
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_skipqueue import job, unique_by
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.parts.databases.choose import SeveralDatabases
from django_skipqueue.values.records import EncodedCall, JobSpec

from .conftest import BOTH

KEYS = 200

DATABASE_SETTINGS: tuple[dict[str, Any], ...] = tuple(
    {"DATABASES": open_databases, "RETIRING": retiring, "PLACEMENT": "spread"}
    for open_databases, retiring in (
        (BOTH, ()),
        (("default",), ("other",)),
        (("other",), ("default",)),
        (("default",), ()),
        (("other",), ()),
    )
)
"""Settings in which both databases take jobs, or in which one database does and the other is retiring or missing."""


def unique(number: int) -> None:
    """The function of a task with a unique key."""


@pytest.fixture
def task(registry: Registry) -> Any:
    return job(unique=unique_by("number"))(unique)


@dataclass(frozen=True)
class UnfinishedJob:
    """An unfinished job with a unique key."""

    alias: str
    id: int
    key: str | None


def unfinished_jobs() -> set[UnfinishedJob]:
    return {
        UnfinishedJob(alias, *row)
        for alias in BOTH
        for row in Job.objects.using(alias).filter(finished_at=None).values_list("id", "unique_key")
    }


steps_of_a_run = st.lists(
    st.one_of(
        st.tuples(st.just("defer"), st.integers(0, 3)),
        st.tuples(st.just("defer_many"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
        st.tuples(st.just("finish"), st.integers(0, 3)),
        st.tuples(st.just("change settings"), st.integers(0, len(DATABASE_SETTINGS) - 1)),
    ),
    max_size=14,
)


@pytest.mark.django_db(databases=["default", "other"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps_of_a_run)
def test_at_most_one_unfinished_job_has_a_unique_key(task: Any, steps: list[tuple[str, Any]]) -> None:
    """The test compares jobs since the last change of DATABASES, or all jobs if the placement finds all older keys."""
    for alias in BOTH:
        Job.objects.using(alias).all().delete()
    current_settings, older_jobs, finds_all_keys = DATABASE_SETTINGS[0], set[UnfinishedJob](), True
    for step, value in steps:
        if step == "change settings":
            current_settings, older_jobs = DATABASE_SETTINGS[value], unfinished_jobs()
            finds_all_keys = not older_jobs or (
                finds_all_keys and all(would_be_found(job, current_settings) for job in older_jobs)
            )
            continue
        with override_settings(SKIPQUEUE=current_settings):
            run_step(task, step, value)
        for jobs_to_compare in [unfinished_jobs() - older_jobs, *([unfinished_jobs()] if finds_all_keys else [])]:
            keys = [job.key for job in jobs_to_compare]
            assert len(keys) == len(set(keys))


def would_be_found(holder: UnfinishedJob, current_settings: dict[str, Any]) -> bool:
    """Whether an enqueue with the key of this job would find the job."""
    with override_settings(SKIPQUEUE=current_settings):
        return holder.alias in current_settings["RETIRING"] or database_of_key(holder.key) == holder.alias


def run_step(task: Any, step: str, value: Any) -> None:
    if step == "defer":
        task.defer(value)
    elif step == "defer_many":
        task.defer_many([(number,) for number in value])
    else:
        for alias in BOTH:
            Job.objects.using(alias).filter(args=[value]).discard()


def database_of_key(key: str | None) -> str | None:
    """The database of a unique key."""
    return SeveralDatabases().bound_to(JobSpec("t"), EncodedCall("[]", "{}").with_unique_key(key))


def databases_of_keys(*aliases: str) -> list[str | None]:
    with override_settings(SKIPQUEUE={"DATABASES": aliases, "PLACEMENT": "spread"}):
        return [database_of_key(f"key {number}") for number in range(KEYS)]


@given(number=st.integers(1, 7))
@settings(max_examples=7, deadline=None)
def test_a_new_database_takes_its_share_of_the_keys_and_no_other_key_moves(number: int) -> None:
    aliases = [f"queue_{place}" for place in range(number)]
    databases_before, databases_after = databases_of_keys(*aliases), databases_of_keys(*aliases, "new")
    moves = [
        (old_alias, new_alias)
        for old_alias, new_alias in zip(databases_before, databases_after, strict=True)
        if old_alias != new_alias
    ]
    assert {new_alias for _, new_alias in moves} == {"new"}
    share = KEYS / (number + 1)
    assert 0.5 * share < len(moves) < 1.7 * share
    assert databases_of_keys(*reversed(aliases)) == databases_before, "the order of the list means nothing"

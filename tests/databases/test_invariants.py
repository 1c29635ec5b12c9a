"""Properties: only one unfinished job has a unique key, and a new database takes its share."""

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

LISTS: tuple[dict[str, Any], ...] = tuple(
    {"DATABASES": taking, "RETIRING": retiring, "PLACEMENT": "spread"}
    for taking, retiring in (
        (BOTH, ()),
        (("default",), ("other",)),
        (("other",), ("default",)),
        (("default",), ()),
        (("other",), ()),
    )
)
"""Both databases take jobs, or one of them does, and the other is on its way out, or forgotten."""


def unique(number: int) -> None:
    """A task with a key takes this function."""


@pytest.fixture
def task(registry: Registry) -> Any:
    return job(unique=unique_by("number"))(unique)


@dataclass(frozen=True)
class Holder:
    """An unfinished job with a unique key."""

    alias: str
    id: int
    key: str | None


def holders() -> set[Holder]:
    return {
        Holder(alias, *row)
        for alias in BOTH
        for row in Job.objects.using(alias).filter(finished_at=None).values_list("id", "unique_key")
    }


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("defer"), st.integers(0, 3)),
        st.tuples(st.just("defer_many"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
        st.tuples(st.just("finish"), st.integers(0, 3)),
        st.tuples(st.just("list"), st.integers(0, len(LISTS) - 1)),
    ),
    max_size=14,
)


@pytest.mark.django_db(databases=["default", "other"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_key_is_alive_once(task: Any, steps: list[tuple[str, Any]]) -> None:
    """Count the jobs since the last change of DATABASES, or all jobs if the placement finds each older key."""
    for alias in BOTH:
        Job.objects.using(alias).all().delete()
    chosen, before, is_whole = LISTS[0], set[Holder](), True
    for step, value in steps:
        if step == "list":
            chosen, before = LISTS[value], holders()
            is_whole = not before or (is_whole and all(is_looked_for(each, chosen) for each in before))
            continue
        with override_settings(SKIPQUEUE=chosen):
            do(task, step, value)
        for counted in [holders() - before, *([holders()] if is_whole else [])]:
            keys = [each.key for each in counted]
            assert len(keys) == len(set(keys))


def is_looked_for(holder: Holder, chosen: dict[str, Any]) -> bool:
    """Return whether an enqueue with this key would find its holder."""
    with override_settings(SKIPQUEUE=chosen):
        return holder.alias in chosen["RETIRING"] or place_of(holder.key) == holder.alias


def do(task: Any, step: str, value: Any) -> None:
    if step == "defer":
        task.defer(value)
    elif step == "defer_many":
        task.defer_many([(number,) for number in value])
    else:
        for alias in BOTH:
            Job.objects.using(alias).filter(args=[value]).discard()


def place_of(key: str | None) -> str | None:
    """The database of a unique key."""
    return SeveralDatabases().bound_to(JobSpec("t"), EncodedCall("[]", "{}").with_unique_key(key))


def places(*aliases: str) -> list[str | None]:
    with override_settings(SKIPQUEUE={"DATABASES": aliases, "PLACEMENT": "spread"}):
        return [place_of(f"key {number}") for number in range(KEYS)]


@given(number=st.integers(1, 7))
@settings(max_examples=7, deadline=None)
def test_a_new_database_takes_its_share_of_the_keys_and_no_other_key_moves(number: int) -> None:
    aliases = [f"queue_{place}" for place in range(number)]
    before, after = places(*aliases), places(*aliases, "new")
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {"new"}
    share = KEYS / (number + 1)
    assert 0.5 * share < len(moved) < 1.7 * share
    assert places(*reversed(aliases)) == before, "the order of the list means nothing"

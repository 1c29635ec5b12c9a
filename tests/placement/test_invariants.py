"""Whatever is deferred, finished and reconfigured: a unique key is alive once, and a new database takes its share."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_skipqueue import job, unique_by
from django_skipqueue.models import Job
from django_skipqueue.placement.choose import bound_to
from django_skipqueue.tasks.registry import Registry
from django_skipqueue.values.records import EncodedCall, JobSpec

from .conftest import BOTH

KEYS = 200

LISTS: tuple[dict[str, Any], ...] = (
    {"DATABASES": ("default",)},
    {"DATABASES": ("default",), "RETIRING": ("other",)},
    {"DATABASES": ("other",), "RETIRING": ("default",)},
)
"""One database takes the jobs, and the other one is on its way out, or empty."""


def unique(number: int) -> None:
    """A task with a key takes this function."""


@pytest.fixture
def task(registry: Registry) -> Any:
    return job(unique=unique_by("number"))(unique)


def alive() -> Iterator[str | None]:
    for alias in BOTH:
        for status in ("queued", "running", "scheduled", "blocked"):
            yield from Job.objects.using(alias).filter(status=status).values_list("unique_key", flat=True)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("defer"), st.integers(0, 3)),
        st.tuples(st.just("defer_many"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
        st.tuples(st.just("finish"), st.integers(0, 3)),
        st.tuples(st.just("list"), st.integers(0, 2)),
    ),
    max_size=12,
)


@pytest.mark.django_db(databases=["default", "other"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_key_is_alive_once_while_databases_retire(task: Any, steps: list[tuple[str, Any]]) -> None:
    for alias in BOTH:
        Job.objects.using(alias).all().delete()
    chosen = LISTS[0]
    for step, value in steps:
        if step == "list":
            is_listed = "other" in LISTS[value].get("RETIRING", ()) or "other" in LISTS[value]["DATABASES"]
            if is_listed or not Job.objects.using("other").filter(status="queued").exists():
                chosen = LISTS[value]
            continue
        with override_settings(SKIPQUEUE=chosen):
            if step == "defer":
                task.defer(value)
            elif step == "defer_many":
                task.defer_many([(number,) for number in value])
            else:
                for alias in BOTH:
                    Job.objects.using(alias).filter(kwargs__number=value).discard()
                    Job.objects.using(alias).filter(args=[value]).discard()
        found = list(alive())
        assert len(found) == len(set(found))


def places(*aliases: str) -> list[str | None]:
    with override_settings(SKIPQUEUE={"DATABASES": aliases, "PLACEMENT": "spread"}):
        return [bound_to(JobSpec("t"), EncodedCall("[]", "{}", unique_key=f"key {number}")) for number in range(KEYS)]


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

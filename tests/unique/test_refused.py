"""Unique keys that cannot be used, and the errors about them."""

import hashlib
from itertools import product
from typing import Any

import pytest

from django_skipqueue import job, unique_by
from django_skipqueue.exceptions import InvalidArguments, InvalidOption
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job

from ..app import jobs
from ..app.waiting import within
from ..harness.table import Row
from ..management.skipqueue.running import skipqueue

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("key", [5, "a\0b", "\ud800"], ids=ascii)
def test_a_key_that_cannot_be_used_is_refused_and_named(key: Any) -> None:
    with pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
        jobs.noop.using(unique_key=key).defer()
    assert not Job.objects.exists()


def constant(key: Any) -> Any:
    return lambda *_: key


def test_the_key_of_a_task_is_an_option(registry: Registry) -> None:
    assert job(name="sums", unique_key="one")(jobs.noop.function).options.fixed_key == "one"


def test_calls_by_s_have_keys_of_their_own() -> None:
    urgent = jobs.add.using(priority=5, unique=unique_by("a"))
    assert urgent.defer_many([urgent.s(1), urgent.s(1)]).outcomes == ["created", "existing"]


def test_a_function_that_makes_no_text_for_a_unique_key_is_refused(row: Row) -> None:
    keys: list[Any] = [5, True, 1.5, ["a"], {"a": 1}, b"x"]
    for key, many in product(keys, [False, True]):
        with row(key=key, many=many):
            task = jobs.add.using(unique_key=constant(key))
            with within(20), pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
                task.defer_many([(1,)]) if many else task.defer(1)
            assert not Job.objects.exists()


@pytest.mark.parametrize("key", ["a\0b", "\ud800"], ids=ascii)
def test_a_function_that_makes_a_key_postgresql_cannot_store_is_refused(key: str) -> None:
    with pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
        jobs.add.using(unique_key=lambda a: key).defer(1)


def test_a_key_too_long_for_the_index_is_refused_like_any_other_option() -> None:
    key = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(200))
    with pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
        jobs.noop.using(unique_key=key).defer()


def test_an_error_of_a_key_function_is_raised_and_no_job_is_written() -> None:
    with pytest.raises(ZeroDivisionError):
        jobs.add.using(unique_key=lambda a: str(a / 0)).defer(1)
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_job_that_holds_the_unique_key_is_printed_and_no_job_is_enqueued(registry: Registry) -> None:
    job(name="only", unique_key="one")(jobs.echo_length.function)
    first = skipqueue("defer", "only", '["a"]')
    second = skipqueue("defer", "only", '["a"]')
    assert (second.code, second.out) == (3, first.out)
    assert "holds the unique key" in second.err

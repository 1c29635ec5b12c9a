"""Unique keys that cannot be used, and the errors about them."""

import hashlib
from itertools import product
from typing import Any

import pytest

from django_skipqueue import job, unique_by
from django_skipqueue.exceptions import InvalidArguments, InvalidOption
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job

from ...app import jobs
from ...app.waiting import within
from ...console.cli.running import skipqueue
from ...harness.table import Case

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("key", [5, "a\0b", "\ud800"], ids=ascii)
def test_an_invalid_unique_key_is_refused_by_using_or_defer(key: Any) -> None:
    with pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
        jobs.noop.using(unique_key=key).defer()
    assert not Job.objects.exists()


def function_that_returns(key: Any) -> Any:
    return lambda *_: key


def test_unique_key_is_an_option_of_the_decorator(registry: Registry) -> None:
    assert job(name="sums", unique_key="one")(jobs.noop.function).options.fixed_key == "one"


def test_two_equal_calls_made_by_s_share_one_unique_job() -> None:
    urgent = jobs.add.using(priority=5, unique=unique_by("a"))
    assert urgent.defer_many([urgent.s(1), urgent.s(1)]).outcomes == ["created", "existing"]


def test_a_unique_key_function_that_returns_no_text_is_refused(case: Case) -> None:
    keys: list[Any] = [5, True, 1.5, ["a"], {"a": 1}, b"x"]
    for key, use_defer_many in product(keys, [False, True]):
        with case(key=key, many=use_defer_many):
            task = jobs.add.using(unique_key=function_that_returns(key))
            with within(20), pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
                task.defer_many([(1,)]) if use_defer_many else task.defer(1)
            assert not Job.objects.exists()


@pytest.mark.parametrize("key", ["a\0b", "\ud800"], ids=ascii)
def test_a_unique_key_function_that_returns_an_unstorable_text_is_refused(key: str) -> None:
    with pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
        jobs.add.using(unique_key=lambda a: key).defer(1)


def test_a_unique_key_too_long_for_the_index_is_refused() -> None:
    key = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(200))
    with pytest.raises((InvalidOption, InvalidArguments), match="unique_key"):
        jobs.noop.using(unique_key=key).defer()


def test_an_error_of_a_unique_key_function_is_raised_and_no_job_is_written() -> None:
    with pytest.raises(ZeroDivisionError):
        jobs.add.using(unique_key=lambda a: str(a / 0)).defer(1)
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_defer_command_prints_the_existing_job_with_the_same_unique_key(registry: Registry) -> None:
    job(name="only", unique_key="one")(jobs.echo_length.function)
    first = skipqueue("defer", "only", '["a"]')
    second = skipqueue("defer", "only", '["a"]')
    assert (second.code, second.out) == (3, first.out)
    assert "holds the unique key" in second.err

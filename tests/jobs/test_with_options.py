"""`@with_options` stands between Django's `@task` and the function. It checks its options at import."""

from typing import Any

import pytest

from django_skipqueue import job, with_options
from django_skipqueue.exceptions import InvalidOption, InvalidTask
from django_skipqueue.jobs.decorator import options_given_to
from django_skipqueue.jobs.options import Options, RunOptions
from django_skipqueue.jobs.registry import Registry


def return_payment_id(payment_id: int) -> int:
    return payment_id


def make_function() -> Any:
    """A new function like `return_payment_id`, without options."""

    def return_payment_id(payment_id: int) -> int:
        return payment_id

    return_payment_id.__qualname__ = "return_payment_id"
    return return_payment_id


def test_with_options_returns_the_function_itself() -> None:
    function = make_function()
    assert with_options(timeout=5)(function) is function
    assert function(3) == 3


def test_a_function_without_with_options_has_no_options() -> None:
    assert options_given_to(return_payment_id) is None


def test_every_option_given_to_with_options_can_be_read_back() -> None:
    def slowly(attempt: int) -> float:
        return 60.0 * attempt

    function = make_function()
    with_options(
        unique_key="k",
        timeout=5,
        max_attempts=3,
        backoff=slowly,
        retry_on=OSError,
        discard_on=(KeyError,),
        redact="iban",
    )(function)
    checked_options = options_given_to(function)
    assert checked_options is not None
    assert checked_options.options == Options(timeout=5, max_attempts=3).changed({"unique_key": "k"})
    assert (checked_options.policy.backoff, checked_options.policy.retry_on, checked_options.policy.discard_on) == (
        slowly,
        (OSError,),
        (KeyError,),
    )
    assert checked_options.redact == ("iban",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout must be"),
        ({"max_attempts": 0}, "max_attempts must be"),
        ({"unique_key": 5}, "unique_key must be a str"),
        ({"retry_on": "OSError"}, "retry_on must be a tuple"),
        ({"redact": 5}, "redact must be a tuple"),
        ({"backoff": 5}, "backoff"),
        ({"queue_name": "mail"}, r"Give queue_name to @task itself: @task\(queue_name=…\)"),
        ({"priority": 5}, "Give priority to @task itself"),
    ],
)
def test_with_options_refuses_an_invalid_option(options: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        with_options(**options)


@pytest.mark.parametrize("name", ["name", "atomic", "takes_context", "run_after", "database", "max_retries"])
def test_with_options_refuses_an_option_that_only_job_or_other_queues_have(name: str) -> None:
    with pytest.raises(TypeError, match=rf"with_options\(\) has no option '{name}'"):
        with_options(**{name: 1})  # type: ignore[arg-type]


def test_job_refuses_a_function_with_with_options_and_the_other_way_round(registry: Registry) -> None:
    with pytest.raises(InvalidTask, match=r"has @with_options, which is for Django's @task. Give @job the options"):
        job(with_options(timeout=5)(make_function()))
    with pytest.raises(InvalidTask, match="give @job the options themselves"):
        with_options(timeout=5)(job(return_payment_id))
    assert [task.name for task in registry] == ["tests.jobs.test_with_options.return_payment_id"]


def test_with_options_may_decorate_a_function_only_once() -> None:
    with pytest.raises(InvalidTask, match="Put all options into one"):
        with_options(timeout=5)(with_options(max_attempts=2)(make_function()))


def test_with_options_has_every_option_that_job_and_using_share() -> None:
    """`@with_options` takes the options of `RunOptions`."""
    assert set(RunOptions.__annotations__) >= {"unique_key", "timeout", "max_attempts", "backoff", "redact"}

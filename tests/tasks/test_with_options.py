"""`@with_options` is put between Django's `@task` and the function, and checks its options at import."""

from typing import Any

import pytest

from django_skipqueue import job, with_options
from django_skipqueue.exceptions import InvalidOption, InvalidTask
from django_skipqueue.jobs.decorator import options_given_to
from django_skipqueue.jobs.options import Options, RunOptions
from django_skipqueue.jobs.registry import Registry


def plain(payment_id: int) -> int:
    return payment_id


def fresh() -> Any:
    """A function like `plain`, on which nothing is kept."""

    def plain(payment_id: int) -> int:
        return payment_id

    plain.__qualname__ = "plain"
    return plain


def test_the_function_stays_what_it_was() -> None:
    function = fresh()
    assert with_options(timeout=5)(function) is function
    assert function(3) == 3


def test_a_function_without_with_options_has_no_options() -> None:
    assert options_given_to(plain) is None


def test_with_options_keeps_every_option() -> None:
    def slowly(attempt: int) -> float:
        return 60.0 * attempt

    function = fresh()
    with_options(
        unique_key="k",
        timeout=5,
        max_attempts=3,
        backoff=slowly,
        retry_on=OSError,
        discard_on=(KeyError,),
        redact="iban",
    )(function)
    given = options_given_to(function)
    assert given is not None
    assert given.options == Options(timeout=5, max_attempts=3).changed({"unique_key": "k"})
    assert (given.policy.backoff, given.policy.retry_on, given.policy.discard_on) == (slowly, (OSError,), (KeyError,))
    assert given.redact == ("iban",)


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
def test_a_value_that_cannot_be_used_is_refused_at_import(options: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        with_options(**options)


@pytest.mark.parametrize("name", ["name", "atomic", "takes_context", "run_after", "database", "max_retries"])
def test_an_option_that_with_options_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"with_options\(\) has no option '{name}'"):
        with_options(**{name: 1})  # type: ignore[arg-type]


def test_job_takes_its_options_itself(registry: Registry) -> None:
    with pytest.raises(InvalidTask, match=r"has @with_options, which is for Django's @task. Give @job the options"):
        job(with_options(timeout=5)(fresh()))
    with pytest.raises(InvalidTask, match="give @job the options themselves"):
        with_options(timeout=5)(job(plain))
    assert [task.name for task in registry] == ["tests.tasks.test_with_options.plain"]


def test_a_second_with_options_is_refused() -> None:
    with pytest.raises(InvalidTask, match="Put all options into one"):
        with_options(timeout=5)(with_options(max_attempts=2)(fresh()))


def test_with_options_has_every_option_that_job_and_using_share() -> None:
    """An option that is added to `JobOptions` is then an option of `@with_options` as well."""
    assert set(RunOptions.__annotations__) >= {"unique_key", "timeout", "max_attempts", "backoff", "redact"}

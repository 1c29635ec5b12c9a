"""`RetryPolicy` decides the outcome of an attempt that has ended with an exception."""

import math
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue import Discard, Retry, Snooze
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.values.backoff import RetryPolicy
from django_skipqueue.values.outcomes import Outcome, seconds

ERROR_ENTRY = {"exception": "builtins.ValueError"}


def decide(error: BaseException, *, attempt: int = 1, max_attempts: int = 3, **options_of_policy: Any) -> Outcome:
    retry_policy = RetryPolicy(**{"backoff": lambda attempt: attempt * 10, **options_of_policy})
    return retry_policy.decide(error, ERROR_ENTRY, attempt=attempt, max_attempts=max_attempts)


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_exception_is_retried_after_the_backoff_of_its_attempt(attempt: int) -> None:
    outcome = decide(ValueError("no"), attempt=attempt)
    assert outcome == Outcome("scheduled", delay=attempt * 10, last_error="ValueError: no", error=ERROR_ENTRY)


@pytest.mark.parametrize("attempt", [3, 4])
@pytest.mark.parametrize("error", [ValueError("no"), Retry("no"), Retry("no", after=5)], ids=repr)
def test_an_exception_in_the_last_attempt_fails_the_job(error: Exception, attempt: int) -> None:
    outcome = decide(error, attempt=attempt)
    assert outcome.status == "failed"
    assert outcome.error == ERROR_ENTRY
    assert outcome.last_error == f"{type(error).__name__}: no"


@pytest.mark.parametrize("after", [5, 5.0, timedelta(seconds=5)])
def test_the_exception_retry_sets_the_delay(after: Any) -> None:
    assert decide(Retry("not yet", after=after)) == Outcome(
        "scheduled", delay=5, last_error="Retry: not yet", error=ERROR_ENTRY
    )


@pytest.mark.parametrize("after", ["soon", [60], object()], ids=["text", "list", "object"])
@pytest.mark.parametrize("exception_class", [Retry, Snooze])
def test_retry_and_snooze_refuse_an_invalid_delay(exception_class: Any, after: Any) -> None:
    with pytest.raises(
        InvalidOption, match=f"after of {exception_class.__name__} must be a number of seconds or a timedelta"
    ):
        exception_class("not yet", after=after)


@pytest.mark.parametrize("delay", [60, 1.5, timedelta(minutes=1)])
@pytest.mark.parametrize("exception_class", [Retry, Snooze])
def test_retry_and_snooze_refuse_a_delay_as_first_argument(exception_class: Any, delay: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"For a delay say {exception_class.__name__}\(after=…\)"):
        exception_class(delay, after=5)


def test_a_retry_without_a_delay_takes_the_delay_of_the_backoff() -> None:
    assert decide(Retry()).delay == 10
    assert decide(Retry(after=0)).delay == 0


def test_the_exception_retry_is_retried_although_retry_on_lists_other_exceptions() -> None:
    assert decide(Retry(), retry_on=(OSError,)).status == "scheduled"


@pytest.mark.parametrize("attempt", [1, 3, 30])
@pytest.mark.parametrize("after", [60, timedelta(minutes=1)])
def test_a_snooze_gives_its_attempt_back_and_adds_no_error(attempt: int, after: Any) -> None:
    assert decide(Snooze(after=after), attempt=attempt) == Outcome("scheduled", delay=60, refund=1)


@pytest.mark.parametrize("attempt", [1, 3])
def test_the_exception_discard_ends_the_job_with_its_reason(attempt: int) -> None:
    outcome = decide(Discard("the payment was refunded"), attempt=attempt)
    assert outcome == Outcome("discarded", last_error="the payment was refunded", error=ERROR_ENTRY)


def test_only_exceptions_listed_in_retry_on_are_retried() -> None:
    options: dict[str, Any] = {"retry_on": (OSError, KeyError)}
    assert decide(ConnectionError(), **options).status == "scheduled", "a subclass counts"
    assert decide(KeyError("x"), **options).status == "scheduled"
    assert decide(ValueError("x"), **options).status == "failed"


def test_an_empty_retry_on_retries_no_exception() -> None:
    assert decide(ValueError("x"), retry_on=()).status == "failed"


def test_an_exception_in_discard_on_and_retry_on_is_discarded() -> None:
    outcome = decide(ConnectionError("gone"), retry_on=(OSError,), discard_on=(ConnectionError,))
    assert outcome == Outcome("discarded", last_error="ConnectionError: gone", error=ERROR_ENTRY)


def test_an_exception_in_discard_on_is_discarded_in_the_last_attempt_too() -> None:
    assert decide(KeyError("x"), attempt=3, discard_on=(LookupError,)).status == "discarded"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_a_base_exception_is_retried_too(error: BaseException) -> None:
    assert decide(error).status == "scheduled"


@pytest.mark.parametrize("delay", [-1, -1e300, -math.inf, math.nan, timedelta(days=-1)], ids=repr)
def test_a_negative_delay_counts_as_zero(delay: Any) -> None:
    assert seconds(delay) == 0
    assert decide(Retry(after=delay)).delay == 0
    assert decide(ValueError(), backoff=lambda attempt: delay).delay == 0


@pytest.mark.parametrize("delay", [1e12, 1e300, math.inf, timedelta.max], ids=repr)
def test_a_very_long_delay_is_cut_to_1000_years(delay: Any) -> None:
    assert seconds(delay) == 1000 * 365 * 86_400
    assert decide(Retry(after=delay)).delay == decide(Snooze(after=delay)).delay == seconds(delay)
    assert decide(ValueError(), backoff=lambda attempt: delay).delay == seconds(delay)


def test_a_backoff_may_return_a_timedelta() -> None:
    assert decide(ValueError(), backoff=lambda attempt: timedelta(minutes=attempt)).delay == 60


def test_the_default_backoff_is_exponential_with_jitter() -> None:
    delays = {RetryPolicy().decide(ValueError(), ERROR_ENTRY, attempt=3, max_attempts=10).delay for _ in range(50)}
    assert len(delays) > 40
    assert all(7.2 <= delay <= 8.8 for delay in delays), "2 to the power of the attempt, and a tenth of it as jitter"


@pytest.mark.parametrize("reason", ["x" * 100_000, "first\nsecond"], ids=["long", "two lines"])
def test_the_reason_of_a_discard_is_one_short_line_in_lists(reason: str) -> None:
    line = decide(Discard(reason)).last_error or ""
    assert len(line.splitlines()) == 1
    assert len(line) <= 500

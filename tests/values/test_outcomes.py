"""What an attempt came to: decided by exceptions and policy, before anything is written."""

import json
import math
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue import Discard, Retry, Snooze
from django_skipqueue.values.outcomes import COMPLETED, Outcome, RetryPolicy, error_entry, seconds, summary

ENTRY = {"exception": "builtins.ValueError"}


def decide(error: BaseException, *, attempt: int = 1, max_attempts: int = 3, **policy: Any) -> Outcome:
    chosen = RetryPolicy(**{"backoff": lambda attempt: attempt * 10, **policy})
    return chosen.decide(error, ENTRY, attempt=attempt, max_attempts=max_attempts)


class TestJudging:
    @pytest.mark.parametrize("attempt", [1, 2])
    def test_an_exception_is_retried_after_the_backoff_of_its_attempt(self, attempt: int) -> None:
        outcome = decide(ValueError("no"), attempt=attempt)
        assert outcome == Outcome("scheduled", delay=attempt * 10, last_error="ValueError: no", error=ENTRY)

    @pytest.mark.parametrize("attempt", [3, 4])
    @pytest.mark.parametrize("error", [ValueError("no"), Retry("no"), Retry("no", after=5)], ids=repr)
    def test_the_last_attempt_fails(self, error: Exception, attempt: int) -> None:
        outcome = decide(error, attempt=attempt)
        assert outcome.status == "failed"
        assert outcome.error == ENTRY
        assert outcome.last_error == f"{type(error).__name__}: no"

    @pytest.mark.parametrize("after", [5, 5.0, timedelta(seconds=5)])
    def test_a_retry_says_when(self, after: Any) -> None:
        assert decide(Retry("not yet", after=after)) == Outcome(
            "scheduled", delay=5, last_error="Retry: not yet", error=ENTRY
        )

    def test_a_retry_without_a_time_takes_the_backoff(self) -> None:
        assert decide(Retry()).delay == 10
        assert decide(Retry(after=0)).delay == 0

    def test_a_retry_is_granted_whatever_is_listed_to_be_retried(self) -> None:
        assert decide(Retry(), retry_on=(OSError,)).status == "scheduled"

    @pytest.mark.parametrize("attempt", [1, 3, 30])
    @pytest.mark.parametrize("after", [60, timedelta(minutes=1)])
    def test_a_snooze_costs_no_attempt_and_is_no_error(self, attempt: int, after: Any) -> None:
        assert decide(Snooze(after=after), attempt=attempt) == Outcome("scheduled", delay=60, refund=1)

    @pytest.mark.parametrize("attempt", [1, 3])
    def test_a_discard_ends_the_job_with_its_reason(self, attempt: int) -> None:
        outcome = decide(Discard("the payment was refunded"), attempt=attempt)
        assert outcome == Outcome("discarded", last_error="the payment was refunded", error=ENTRY)

    def test_only_what_is_listed_is_retried(self) -> None:
        policy: dict[str, Any] = {"retry_on": (OSError, KeyError)}
        assert decide(ConnectionError(), **policy).status == "scheduled", "a subclass counts"
        assert decide(KeyError("x"), **policy).status == "scheduled"
        assert decide(ValueError("x"), **policy).status == "failed"

    def test_nothing_is_retried_by_an_empty_list(self) -> None:
        assert decide(ValueError("x"), retry_on=()).status == "failed"

    def test_what_is_listed_to_be_discarded_comes_before_what_is_to_be_retried(self) -> None:
        outcome = decide(ConnectionError("gone"), retry_on=(OSError,), discard_on=(ConnectionError,))
        assert outcome == Outcome("discarded", last_error="ConnectionError: gone", error=ENTRY)

    def test_what_is_to_be_discarded_is_discarded_on_the_last_attempt_as_well(self) -> None:
        assert decide(KeyError("x"), attempt=3, discard_on=(LookupError,)).status == "discarded"

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
    def test_what_is_no_exception_is_judged_as_well(self, error: BaseException) -> None:
        assert decide(error).status == "scheduled"

    @pytest.mark.parametrize("delay", [-1, -1e300, -math.inf, math.nan, timedelta(days=-1)], ids=repr)
    def test_a_delay_is_never_below_zero(self, delay: Any) -> None:
        assert seconds(delay) == 0
        assert decide(Retry(after=delay)).delay == 0
        assert decide(ValueError(), backoff=lambda attempt: delay).delay == 0

    @pytest.mark.parametrize("delay", [1e12, 1e300, math.inf, timedelta.max], ids=repr)
    def test_a_delay_ends_within_the_years_that_python_has(self, delay: Any) -> None:
        assert seconds(delay) == 1000 * 365 * 86_400
        assert decide(Retry(after=delay)).delay == decide(Snooze(after=delay)).delay == seconds(delay)
        assert decide(ValueError(), backoff=lambda attempt: delay).delay == seconds(delay)

    def test_a_backoff_may_return_a_timedelta(self) -> None:
        assert decide(ValueError(), backoff=lambda attempt: timedelta(minutes=attempt)).delay == 60

    def test_the_default_backoff_is_exponential_with_jitter(self) -> None:
        delays = {RetryPolicy().decide(ValueError(), ENTRY, attempt=3, max_attempts=10).delay for _ in range(50)}
        assert len(delays) > 40
        assert all(7.2 <= delay <= 8.8 for delay in delays)


class TestDescribing:
    def test_an_entry_says_what_happened_where_and_how_long_it_took(self) -> None:
        try:
            raise KeyError("payment 7")
        except KeyError as error:
            entry = error_entry(error, attempt=2, worker="web-1", duration_ms=1.23456)
        assert entry.pop("traceback").endswith("KeyError: 'payment 7'\n")
        assert entry == {
            "attempt": 2,
            "worker": "web-1",
            "duration_ms": 1.235,
            "exception": "builtins.KeyError",
            "message": "'payment 7'",
        }

    def test_the_traceback_names_the_line_and_the_cause(self) -> None:
        try:
            try:
                int("x")
            except ValueError as cause:
                raise RuntimeError("outer") from cause
        except RuntimeError as error:
            traceback = error_entry(error, attempt=1, worker="", duration_ms=0)["traceback"]
        assert 'int("x")' in traceback
        assert "direct cause" in traceback
        assert "RuntimeError: outer" in traceback

    def test_an_exception_of_many_megabytes_is_kept_short(self) -> None:
        entry = error_entry(ValueError("x" * 10_000_000), attempt=1, worker="", duration_ms=0)
        assert len(entry["message"]) <= 2_000
        assert len(entry["traceback"]) <= 16_000
        assert len(json.dumps(entry)) < 20_000

    @pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\udfff", "🐘\0"], ids=ascii)
    def test_what_postgresql_refuses_is_made_visible(self, text: str) -> None:
        error = ValueError(text)
        told = json.dumps(error_entry(error, attempt=1, worker="", duration_ms=0), ensure_ascii=False) + summary(error)
        assert "\0" not in told
        assert "\\u0000" not in told
        told.encode()

    def test_an_exception_whose_message_cannot_be_read_has_an_entry_all_the_same(self) -> None:
        class Broken(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no message")

        entry = error_entry(Broken(), attempt=1, worker="", duration_ms=0)
        assert entry["message"] == "<its message could not be read: RuntimeError>"
        assert summary(Broken()) == "Broken: <its message could not be read: RuntimeError>"
        assert decide(Broken()).status == "scheduled"

    def test_exceptions_that_cause_each_other_have_an_entry(self) -> None:
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        assert "first" in error_entry(first, attempt=1, worker="", duration_ms=0)["traceback"]

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (ValueError("no"), "ValueError: no"),
            (ValueError(), "ValueError"),
            (ValueError("  \n "), "ValueError"),
            (ValueError("\nfirst\nsecond"), "ValueError: first"),
            (KeyError("x"), "KeyError: 'x'"),
        ],
        ids=repr,
    )
    def test_a_summary_is_the_class_and_the_first_line(self, error: Exception, line: str) -> None:
        assert summary(error) == line

    @pytest.mark.parametrize(
        "error", [ValueError("x" * 100_000), ValueError("a\nb"), ValueError("\r\na\r\nb")], ids=["long", "two", "crlf"]
    )
    def test_a_summary_is_one_short_line(self, error: Exception) -> None:
        assert len(summary(error).splitlines()) == 1
        assert len(summary(error)) <= 500

    @pytest.mark.parametrize("reason", ["x" * 100_000, "first\nsecond"], ids=["long", "two lines"])
    def test_the_reason_of_a_discard_is_one_short_line_in_lists(self, reason: str) -> None:
        line = decide(Discard(reason)).last_error or ""
        assert len(line.splitlines()) == 1
        assert len(line) <= 500


def test_outcomes_are_values() -> None:
    assert Outcome("completed") == COMPLETED
    with pytest.raises(AttributeError):
        COMPLETED.status = "failed"  # type: ignore[misc]

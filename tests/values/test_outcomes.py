"""Outcomes of attempts, and the entries and summaries that describe their exceptions."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.values.backoff import RetryPolicy
from django_skipqueue.values.outcomes import COMPLETED, Outcome, error_entry, summary


def entry_of_exception_raised_by(fail: Callable[[], object]) -> dict[str, Any]:
    """The entry for the exception that this function raises."""
    with pytest.raises(Exception) as error_info:  # noqa: PT011 (whichever it is)
        fail()
    return error_entry(error_info.value, attempt=1, worker="", duration_ms=0)


class TestErrorEntry:
    def test_an_error_entry_has_the_exception_its_place_and_the_duration(self) -> None:
        try:
            raise KeyError("payment 7")
        except KeyError as error:
            entry = error_entry(error, attempt=2, worker="web-1", duration_ms=1.23456)
        assert entry.pop("traceback").endswith("KeyError: 'payment 7'\n")
        assert entry.pop("line") > 10
        assert entry == {
            "attempt": 2,
            "worker": "web-1",
            "duration_ms": 1.235,
            "exception": "builtins.KeyError",
            "place": (
                "tests.values.test_outcomes.TestErrorEntry.test_an_error_entry_has_the_exception_its_place_and_the_duration"
            ),
            "message": "'payment 7'",
        }

    def test_the_traceback_of_an_entry_has_the_line_and_the_cause(self) -> None:
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

    def test_the_entry_of_an_exception_of_ten_megabytes_is_short(self) -> None:
        entry = error_entry(ValueError("x" * 10_000_000), attempt=1, worker="", duration_ms=0)
        assert len(entry["message"]) <= 2_000
        assert len(entry["traceback"]) <= 16_000
        assert len(json.dumps(entry)) < 20_000

    @pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\udfff", "🐘\0"], ids=ascii)
    def test_characters_that_postgresql_refuses_are_replaced(self, text: str) -> None:
        error = ValueError(text)
        stored_text = json.dumps(error_entry(error, attempt=1, worker="", duration_ms=0), ensure_ascii=False) + summary(
            error
        )
        assert "\0" not in stored_text
        assert "\\u0000" not in stored_text
        stored_text.encode()

    def test_an_exception_whose_str_fails_has_an_entry(self) -> None:
        class Broken(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no message")

        entry = error_entry(Broken(), attempt=1, worker="", duration_ms=0)
        assert entry["message"] == "<its message could not be read: RuntimeError>"
        assert summary(Broken()) == "Broken: <its message could not be read: RuntimeError>"
        assert RetryPolicy().decide(Broken(), entry, attempt=1, max_attempts=3).status == "scheduled"

    @pytest.mark.parametrize("name", ["x" * 1_000_000, "\ud800", "\0"], ids=["long", "surrogate", "NUL"])
    def test_long_or_unstorable_names_of_classes_and_functions_are_made_storable(self, name: str) -> None:
        def fail() -> None:
            raise Named

        class Named(Exception):
            pass

        Named.__qualname__ = name
        fail.__code__ = fail.__code__.replace(co_qualname=name)
        entry = entry_of_exception_raised_by(fail)
        for text in (entry["exception"], entry["place"]):
            assert len(text) <= 200
            assert "\0" not in text
            text.encode()

    def test_an_exception_of_a_module_whose_name_cannot_be_read_has_an_entry(self) -> None:
        class UnreadableName:
            def __format__(self, spec: str) -> str:
                raise RuntimeError("no name")

        class Error(Exception):
            __module__ = UnreadableName()  # type: ignore[assignment]

        names: dict[str, Any] = {"__name__": UnreadableName(), "Error": Error}
        exec(compile("def fail():\n    raise Error", "/shop/jobs.py", "exec"), names)
        entry = entry_of_exception_raised_by(names["fail"])
        assert (entry["exception"], entry["place"], entry["line"]) == ("Error", "?.fail", 2)

    def test_two_exceptions_that_are_the_cause_of_each_other_have_an_entry(self) -> None:
        first_error, second_error = ValueError("first"), ValueError("second")
        first_error.__cause__, second_error.__cause__ = second_error, first_error
        assert "first" in error_entry(first_error, attempt=1, worker="", duration_ms=0)["traceback"]

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ValueError("no"), "ValueError: no"),
            (ValueError(), "ValueError"),
            (ValueError("  \n "), "ValueError"),
            (ValueError("\nfirst\nsecond"), "ValueError: first"),
            (KeyError("x"), "KeyError: 'x'"),
        ],
        ids=repr,
    )
    def test_a_summary_has_the_class_and_the_first_line_of_the_message(self, error: Exception, expected: str) -> None:
        assert summary(error) == expected

    @pytest.mark.parametrize(
        "error", [ValueError("x" * 100_000), ValueError("a\nb"), ValueError("\r\na\r\nb")], ids=["long", "two", "crlf"]
    )
    def test_a_summary_is_one_line_of_at_most_500_characters(self, error: Exception) -> None:
        assert len(summary(error).splitlines()) == 1
        assert len(summary(error)) <= 500


def test_outcomes_can_be_compared_and_cannot_be_changed() -> None:
    assert Outcome("completed") == COMPLETED
    with pytest.raises(AttributeError):
        COMPLETED.status = "failed"  # type: ignore[misc]

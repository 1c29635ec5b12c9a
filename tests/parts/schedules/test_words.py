"""The times of schedules in plain language, which can be translated."""

from datetime import timedelta

import pytest

from django_skipqueue.parts.schedules.console import in_words

from ...harness.languages import outside_of_brackets, put_into_brackets

EXPRESSIONS_IN_ENGLISH = [
    ("* * * * *", "every 1 min"),
    ("*/10 * * * *", "every 10 min"),
    ("*/15 * * * * *", "every 15 s"),
    ("0 * * * *", "every hour"),
    ("15,45 * * * *", "every hour at :15 and :45"),
    ("0 9 * * *", "at 09:00, every day"),
    ("30 8,20 * * *", "at 08:30 and 20:30, every day"),
    ("0 9 * * mon-fri", "at 09:00, Monday to Friday"),
    ("0 9 * * sat,sun", "at 09:00, Saturday and Sunday"),
    ("0 9 * * 7", "at 09:00, Sunday"),
    ("0 0 1 * *", "at 00:00, on day 1 of the month"),
    ("0 0 1,15 * *", "at 00:00, on day 1 and day 15 of the month"),
    ("0 0 L * *", "at 00:00, on the last day of the month"),
    ("0 0 LW * *", "at 00:00, on the last working day of the month"),
    ("0 12 * * mon#1", "at 12:00, Monday number 1 of the month"),
    ("0 12 * * 5L", "at 12:00, the last Friday of the month"),
    ("0 0 1 3,9 *", "at 00:00, on day 1 of the month, only in March and September"),
    ("0 0 1 * mon", "at 00:00, on day 1 of the month or Monday"),
    ("*/10 * * * sat", "every 10 min, Saturday"),
    ("0 9 * 12 *", "at 09:00, every day, only in December"),
]  # fmt: skip


@pytest.mark.parametrize(("cron", "english"), EXPRESSIONS_IN_ENGLISH)
def test_a_cron_expression_is_described_in_words(cron: str, english: str) -> None:
    assert in_words(cron=cron, interval=None) == english


def test_each_word_can_be_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_brackets(monkeypatch)
    for cron, _ in EXPRESSIONS_IN_ENGLISH:
        assert outside_of_brackets(in_words(cron=cron, interval=None)) == set(), cron
    assert outside_of_brackets(in_words(cron="", interval=timedelta(seconds=30))) == set()


@pytest.mark.parametrize("cron", ["*/7 1-9 * * *", "never", "1 2 3", "5-50 * * * *", "7 0 9 * * *"])
def test_a_complicated_expression_is_shown_unchanged(cron: str) -> None:
    assert in_words(cron=cron, interval=None) == cron


def test_an_interval_is_described_in_words() -> None:
    assert in_words(cron="", interval=timedelta(minutes=90)) == "every 1 h 30 min"

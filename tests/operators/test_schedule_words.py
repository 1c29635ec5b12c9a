"""Schedules in plain language, in English and in German."""

from datetime import timedelta

import pytest
from django.utils.translation import override

from django_skipqueue.operators.schedule_words import in_words

CASES = [
    ("* * * * *", "every 1 min", "alle 1 min"),
    ("*/10 * * * *", "every 10 min", "alle 10 min"),
    ("*/15 * * * * *", "every 15 s", "alle 15 s"),
    ("0 * * * *", "every hour", "jede Stunde"),
    ("15,45 * * * *", "every hour at :15 and :45", "jede Stunde um :15 und :45"),
    ("0 9 * * *", "at 09:00, every day", "um 09:00, jeden Tag"),
    ("30 8,20 * * *", "at 08:30 and 20:30, every day", "um 08:30 und 20:30, jeden Tag"),
    ("0 9 * * mon-fri", "at 09:00, Monday to Friday", "um 09:00, Montag bis Freitag"),
    ("0 9 * * sat,sun", "at 09:00, Saturday and Sunday", "um 09:00, Samstag und Sonntag"),
    ("0 9 * * 7", "at 09:00, Sunday", "um 09:00, Sonntag"),
    ("0 0 1 * *", "at 00:00, on day 1 of the month", "um 00:00, am 1. des Monats"),
    ("0 0 1,15 * *", "at 00:00, on day 1 and day 15 of the month", "um 00:00, am 1. und 15. des Monats"),
    ("0 0 L * *", "at 00:00, on the last day of the month", "um 00:00, am letzten Tag des Monats"),
    ("0 0 LW * *", "at 00:00, on the last working day of the month", "um 00:00, am letzten Werktag des Monats"),
    ("0 12 * * mon#1", "at 12:00, Monday number 1 of the month", "um 12:00, der 1. Montag des Monats"),
    ("0 12 * * 5L", "at 12:00, the last Friday of the month", "um 12:00, der letzte Freitag des Monats"),
    ("0 0 1 3,9 *", "at 00:00, on day 1 of the month, only in March and September",
     "um 00:00, am 1. des Monats, nur im März und September"),
    ("0 0 1 * mon", "at 00:00, on day 1 of the month or Monday", "um 00:00, am 1. des Monats oder Montag"),
    ("*/10 * * * sat", "every 10 min, Saturday", "alle 10 min, Samstag"),
    ("0 9 * 12 *", "at 09:00, every day, only in December", "um 09:00, jeden Tag, nur im Dezember"),
]  # fmt: skip


@pytest.mark.parametrize(("cron", "english", "german"), CASES)
def test_an_expression_in_words(cron: str, english: str, german: str) -> None:
    assert in_words(cron=cron, interval=None) == english
    with override("de"):
        assert in_words(cron=cron, interval=None) == german


@pytest.mark.parametrize("cron", ["*/7 1-9 * * *", "never", "1 2 3", "5-50 * * * *", "7 0 9 * * *"])
def test_what_has_no_short_words_is_shown_as_it_is(cron: str) -> None:
    assert in_words(cron=cron, interval=None) == cron


def test_an_interval() -> None:
    assert in_words(cron="", interval=timedelta(minutes=90)) == "every 1 h 30 min"
    with override("de"):
        assert in_words(cron="", interval=timedelta(seconds=30)) == "alle 30 s"

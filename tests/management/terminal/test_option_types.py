"""`option_types`: what may be typed, and what it means."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.events.log_format import in_words
from django_skipqueue.management.terminal.option_types import argument, duration, job_id, positive


def test_a_duration_has_units(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, float]] = [
        ("90s", 90),
        ("15m", 900),
        ("1h", 3_600),
        ("2d", 172_800),
        ("1h30m", 5_400),
        ("45", 45),
        ("0.5s", 0.5),
    ]
    for text, seconds in cases:
        with subtests.test(text=text, seconds=seconds):
            assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("seconds", [42, 200, 7_500, 273_600])
def test_a_duration_that_is_printed_can_be_typed(seconds: int) -> None:
    assert duration(in_words(seconds)) == timedelta(seconds=seconds)


def test_what_is_no_such_value_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Callable[[str], Any], str]] = [
        *(
            (duration, text)
            for text in ("", "soon", "-5m", "5 m", "1w", "0", "0s", "1h30", "99999d", "1e3", "nan", "٣m")
        ),
        *((job_id, text) for text in ("", "x", "-1", "1.5", "##1", str(2**63))),
        *((argument, text) for text in ("", "payment_id", "=42")),
        *((positive, text) for text in ("0", "-1", "x")),
    ]
    for read, text in cases:
        with subtests.test(read=read, text=text), pytest.raises(ArgumentTypeError):
            read(text)


def test_an_argument_has_a_name_and_a_value() -> None:
    assert argument("order.id=a=b") == ("order.id", "a=b")


def test_an_id_may_be_written_as_in_the_admin() -> None:
    assert job_id("#42") == job_id("42") == 42

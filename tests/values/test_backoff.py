"""How long to wait before the next attempt."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.values import backoff


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        (backoff.exponential(jitter=0), [2, 4, 8, 16, 32]),
        (backoff.exponential(3, jitter=0), [3, 9, 27, 81, 243]),
        (backoff.exponential(10, cap=500, jitter=0), [10, 100, 500, 500, 500]),
        (backoff.linear(jitter=0), [30, 60, 90, 120, 150]),
        (backoff.linear(5, cap=12, jitter=0), [5, 10, 12, 12, 12]),
        (backoff.constant(jitter=0), [60] * 5),
        (backoff.constant(0, jitter=0), [0] * 5),
    ],
    ids=["exponential", "base 3", "exponential capped", "linear", "linear capped", "constant", "no delay"],
)
def test_the_delays_after_the_first_five_attempts(delays: backoff.Backoff, expected: list[float]) -> None:
    assert [delays(attempt) for attempt in range(1, 6)] == expected


@pytest.mark.parametrize("attempt", [10, 100, 1_000, 32_767])
def test_an_exponential_delay_stops_growing_at_fifteen_minutes(attempt: int) -> None:
    assert backoff.exponential(jitter=0)(attempt) == 900
    assert backoff.exponential(2, jitter=0)(attempt) == 900, (
        "an integer base is not raised to a number of thousands of digits"
    )


@pytest.mark.parametrize("jitter", [0, 0.1, 0.9])
@pytest.mark.parametrize("make_backoff", [backoff.exponential, backoff.linear])
def test_no_delay_exceeds_the_cap_and_jitter_spreads_delays_at_the_cap(
    make_backoff: Callable[..., backoff.Backoff], jitter: float
) -> None:
    delays = {make_backoff(50, cap=3600, jitter=jitter)(100) for _ in range(300)}
    assert max(delays) <= 3600
    assert len(delays) > 250 or not jitter


@pytest.mark.parametrize("make_backoff", [backoff.exponential, backoff.linear, backoff.constant])
def test_jitter_spreads_the_retries_of_jobs_that_failed_together(make_backoff: Callable[..., backoff.Backoff]) -> None:
    delay_without_jitter = make_backoff(jitter=0)(3)
    delays = [make_backoff()(3) for _ in range(1_000)]
    assert delay_without_jitter * 0.9 <= min(delays) < delay_without_jitter * 0.93
    assert delay_without_jitter * 1.07 < max(delays) <= delay_without_jitter * 1.1
    assert len(set(delays)) > 900, "few of the 1,000 delays are equal"


@pytest.mark.parametrize(
    # `argument_name` is the argument that the error names.
    ("make_backoff", "arguments", "argument_name"),
    [
        (backoff.constant, {"seconds": "60"}, "seconds"),
        (backoff.constant, {"seconds": timedelta(minutes=1)}, "seconds"),
        (backoff.constant, {"seconds": -1}, "seconds"),
        (backoff.constant, {"seconds": True}, "seconds"),
        (backoff.constant, {"seconds": float("nan")}, "seconds"),
        (backoff.constant, {"seconds": 60, "jitter": 2}, "jitter"),
        (backoff.constant, {"seconds": 60, "jitter": -0.1}, "jitter"),
        (backoff.linear, {"step": -3}, "step"),
        (backoff.linear, {"jitter": None}, "jitter"),
        (backoff.linear, {"cap": "900"}, "cap"),
        (backoff.exponential, {"base": "3"}, "base"),
        (backoff.exponential, {"base": 0}, "base"),
        (backoff.exponential, {"base": 0.5}, "base"),
        (backoff.exponential, {"cap": -1}, "cap"),
    ],
)
def test_a_backoff_refuses_a_number_from_which_no_delay_can_be_computed(
    make_backoff: Any, arguments: dict[str, Any], argument_name: str
) -> None:
    with pytest.raises(InvalidOption, match=f"{argument_name} of a backoff must be a number"):
        make_backoff(**arguments)


@pytest.mark.parametrize("attempt", [1, 2_000, 32_767])
def test_an_integer_base_without_a_cap_gives_a_delay(attempt: int) -> None:
    assert backoff.exponential(2, cap=float("inf"), jitter=0)(attempt) >= 2

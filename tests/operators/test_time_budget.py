"""`TimeBudget`: all parts together take no longer than the budget, and each part has its turn."""

import pytest

from django_skipqueue.console.counts import TimeBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list with the time that the budget reads."""
    now = [100.0]
    monkeypatch.setattr("django_skipqueue.console.counts.time.monotonic", lambda: now[0])
    return now


def test_parts_that_take_all_of_their_shares_keep_within_it(clock: list[float]) -> None:
    budget = TimeBudget(5.0, parts=15, most=1.0, least=0.1)
    shares = []
    for _ in range(15):
        shares.append(budget.share())
        clock[0] += shares[-1]
    assert sum(shares) == pytest.approx(5.0)
    assert shares[:3] == [1.0, 1.0, 1.0]
    assert shares[4:] == pytest.approx([0.1] * 11)


def test_parts_that_are_quick_leave_the_most_to_the_others(clock: list[float]) -> None:
    budget = TimeBudget(5.0, parts=15, most=1.0, least=0.1)
    for _ in range(15):
        assert budget.share() == 1.0
        clock[0] += 0.01


def test_once_it_is_used_up_the_least_is_left(clock: list[float]) -> None:
    budget = TimeBudget(5.0, parts=3, most=1.0, least=0.1)
    clock[0] += 60.0
    assert [budget.share() for _ in range(3)] == [0.1, 0.1, 0.1]

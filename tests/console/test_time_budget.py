"""`TimeBudget`: all parts together take no longer than the budget, and each part has its turn."""

import pytest

from django_skipqueue.console.counts import TimeBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock that the budget reads. Return a list whose only item is the time of the clock."""
    now = [100.0]
    monkeypatch.setattr("django_skipqueue.console.counts.time.monotonic", lambda: now[0])
    return now


def test_parts_that_use_their_whole_shares_stay_within_the_budget(clock: list[float]) -> None:
    budget = TimeBudget(5.0, steps=15, most=1.0, least=0.1)
    shares = []
    for _ in range(15):
        shares.append(budget.next_seconds())
        clock[0] += shares[-1]
    assert sum(shares) == pytest.approx(5.0)
    assert shares[:3] == [1.0, 1.0, 1.0]
    assert shares[4:] == pytest.approx([0.1] * 11)


def test_quick_parts_leave_the_largest_share_to_later_parts(clock: list[float]) -> None:
    budget = TimeBudget(5.0, steps=15, most=1.0, least=0.1)
    for _ in range(15):
        assert budget.next_seconds() == 1.0
        clock[0] += 0.01


def test_after_the_budget_is_used_up_each_part_gets_the_least_share(clock: list[float]) -> None:
    budget = TimeBudget(5.0, steps=3, most=1.0, least=0.1)
    clock[0] += 60.0
    assert [budget.next_seconds() for _ in range(3)] == [0.1, 0.1, 0.1]

"""`Contention`: when a machine answers a notification. The tests simulate many machines, without a database."""

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Self

import pytest

from django_skipqueue.supervisor.calls import ANSWER_PAUSE, WIN_SECONDS, Contention


def machines(number: int) -> list[Contention]:
    made = [Contention() for _ in range(number)]
    for contention in made:
        contention.see([f"m{other}/1:0" for other in range(number - 1)])
    return made


def test_alone_every_notification_is_answered_at_once() -> None:
    (contention,) = machines(1)
    contention.lost(10.0)
    assert contention.answer_at(1, 10.0) == 10.0


def test_who_lost_waits_a_tenth_of_a_second_at_most_and_who_won_does_not() -> None:
    contention, _ = machines(2)
    assert contention.answer_at(1, 10.0) == 10.0
    contention.lost(10.0)
    assert 10.0 < contention.answer_at(1, 10.0) <= 10.0 + ANSWER_PAUSE
    assert contention.answer_at(1, 10.2) == 10.2
    contention.won(10.2)
    assert contention.answer_at(1, 10.2) == 10.2


def test_a_claim_in_vain_just_after_a_win_counts_for_nothing() -> None:
    """The claim that won came before the notification of its job, so the answer to the notification finds no job."""
    contention, _ = machines(2)
    contention.won(10.0)
    contention.lost(10.0 + WIN_SECONDS / 2)
    assert contention.answer_at(1, 10.1) == 10.1
    contention.lost(10.2)
    assert contention.answer_at(1, 10.2) > 10.2


def test_who_lost_answers_at_once_where_there_are_jobs_for_all() -> None:
    contention, *_ = machines(5)
    contention.lost(10.0)
    assert contention.answer_at(4, 10.0) > 10.0
    assert contention.answer_at(5, 10.0) == 10.0


def test_the_workers_of_one_supervisor_are_one_machine() -> None:
    contention = Contention()
    contention.see(["a/1:0", "a/2:1", "b/c/1:2"])
    assert contention.machines == 3


def test_machines_that_lost_at_the_same_time_answer_at_different_times() -> None:
    many = machines(50)
    for contention in many:
        contention.lost(10.0)
    assert len({contention.answer_at(1, 10.0) for contention in many}) == 50


@pytest.mark.parametrize("number", [1, 2, 8, 25, 200])
def test_a_machine_that_wins_nothing_claims_ten_times_a_second(number: int) -> None:
    """An empty job comes every 20 ms. A machine that answers every notification claims fifty times a second."""
    result = Simulation(number, seconds=0.0).run()
    assert result.claims / JOBS < 1.1 + 1.3 * number * APART / ANSWER_PAUSE
    assert percentile(result.waits, 0.95) <= 2 * CLAIM, "the winner is idle, and answers at once"


@pytest.mark.parametrize("number", [25, 200])
def test_a_busy_winner_delays_the_next_job_by_a_pause_at_most(number: int) -> None:
    """While a job runs, seven jobs come, so machines that have lost before find most of the jobs."""
    result = Simulation(number, seconds=0.15).run()
    assert max(result.waits) <= ANSWER_PAUSE + 2 * CLAIM


JOBS = 1000
APART = 0.02
"""Seconds between two jobs."""
CLAIM = 0.002
"""Average seconds from the answer to a notification until the claim has returned."""


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


class Simulation:
    """Simulates machines with one slot each, whose jobs take some seconds. Events come in the order of time."""

    def __init__(self, number: int, *, seconds: float) -> None:
        random.seed(number)
        self.claims = 0
        self.waits: list[float] = []
        self._seconds = seconds
        self._machines = machines(number)
        self._is_free = [True] * number
        self._answer_at = [-1.0] * number
        self._waiting: list[float] = []
        self._order = count()
        self._events: list[tuple[float, int, Callable[[float, int], None], int]] = [
            (job * APART, next(self._order), self._job, 0) for job in range(JOBS)
        ]

    def run(self) -> Self:
        while self._events:
            now, _, happen, machine = heapq.heappop(self._events)
            happen(now, machine)
        assert len(self.waits) == JOBS
        return self

    def _later(self, at: float, happen: Callable[[float, int], None], machine: int) -> None:
        heapq.heappush(self._events, (at, next(self._order), happen, machine))

    def _job(self, now: float, _: int) -> None:
        self._waiting.append(now)
        for machine in random.sample(range(len(self._machines)), len(self._machines)):
            if self._answer_at[machine] < now:
                self._answer_at[machine] = self._machines[machine].answer_at(1, now)
                self._later(self._answer_at[machine], self._answer, machine)

    def _answer(self, now: float, machine: int) -> None:
        self._answer_at[machine] = -1.0
        if self._is_free[machine]:
            self._later(now + CLAIM * random.uniform(0.5, 1.5), self._claim, machine)

    def _claim(self, now: float, machine: int) -> None:
        if not self._is_free[machine]:
            return
        self.claims += 1
        if self._waiting:
            self.waits.append(now - self._waiting.pop(0))
            self._machines[machine].won(now)
            self._is_free[machine] = False
            self._later(now + self._seconds, self._end, machine)
        else:
            self._machines[machine].lost(now)

    def _end(self, now: float, machine: int) -> None:
        self._is_free[machine] = True
        if self._waiting:
            self._claim(now, machine)

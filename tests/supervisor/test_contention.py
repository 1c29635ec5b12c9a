"""`Contention`: when a machine reacts to a notification that several machines get. Whoever claims first wins the job.

The tests simulate many machines, without a database.
"""

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Self

import pytest

from django_skipqueue.supervisor.calls import ANSWER_PAUSE, WIN_SECONDS, Contention


def make_machines(machine_count: int) -> list[Contention]:
    """Make the `Contention` objects of this number of machines. Each knows the workers of all other machines."""
    machines = [Contention() for _ in range(machine_count)]
    for contention in machines:
        contention.see([f"m{other_number}/1:0" for other_number in range(machine_count - 1)])
    return machines


def test_a_machine_without_others_reacts_to_every_notification_at_once() -> None:
    (contention,) = make_machines(1)
    contention.lost(10.0)
    assert contention.answer_at(1, 10.0) == 10.0


def test_a_machine_waits_briefly_after_a_lost_claim_but_not_after_a_won_claim() -> None:
    contention, _ = make_machines(2)
    assert contention.answer_at(1, 10.0) == 10.0
    contention.lost(10.0)
    assert 10.0 < contention.answer_at(1, 10.0) <= 10.0 + ANSWER_PAUSE
    assert contention.answer_at(1, 10.2) == 10.2  # the pause after the lost claim is over
    contention.won(10.2)
    assert contention.answer_at(1, 10.2) == 10.2


def test_a_claim_without_a_job_just_after_a_won_claim_is_ignored() -> None:
    """The won claim may come before the notification of its job. Then the reaction to the notification finds no job."""
    contention, _ = make_machines(2)
    contention.won(10.0)
    contention.lost(10.0 + WIN_SECONDS / 2)
    assert contention.answer_at(1, 10.1) == 10.1  # at once, as after a won claim
    contention.lost(10.2)
    assert contention.answer_at(1, 10.2) > 10.2


def test_a_machine_that_lost_reacts_at_once_if_there_is_a_job_for_each_machine() -> None:
    contention, *_ = make_machines(5)
    contention.lost(10.0)
    assert contention.answer_at(4, 10.0) > 10.0  # four jobs, five machines
    assert contention.answer_at(5, 10.0) == 10.0


def test_the_workers_of_one_supervisor_count_as_one_machine() -> None:
    contention = Contention()
    contention.see(["a/1:0", "a/2:1", "b/c/1:2"])
    assert contention.machines == 3  # the supervisors a and b/c, and this one


def test_machines_that_lost_at_the_same_time_react_at_different_times() -> None:
    machines = make_machines(50)
    for contention in machines:
        contention.lost(10.0)
    assert len({contention.answer_at(1, 10.0) for contention in machines}) == 50  # all times differ


@pytest.mark.parametrize("machine_count", [1, 2, 8, 25, 200])
def test_a_machine_that_never_wins_claims_at_most_ten_times_a_second(machine_count: int) -> None:
    """A job that does nothing comes every 20 ms. A machine that reacted to each would claim fifty times a second."""
    result = Simulation(machine_count, job_seconds=0.0).run()
    # One claim finds the job. Each other machine claims ten times a second, or somewhat more often by chance.
    assert result.claims / NUMBER_OF_JOBS < 1.1 + 1.3 * machine_count * SECONDS_BETWEEN_JOBS / ANSWER_PAUSE
    assert percentile(result.waits, 0.95) <= 2 * CLAIM_SECONDS, "the last winner is idle, and reacts at once"


@pytest.mark.parametrize("machine_count", [25, 200])
def test_while_the_last_winner_is_busy_a_job_waits_for_one_pause_at_most(machine_count: int) -> None:
    """Seven further jobs come while a job runs, so machines that have lost before start most of the jobs."""
    result = Simulation(machine_count, job_seconds=0.15).run()
    assert max(result.waits) <= ANSWER_PAUSE + 2 * CLAIM_SECONDS


NUMBER_OF_JOBS = 1000
SECONDS_BETWEEN_JOBS = 0.02
CLAIM_SECONDS = 0.002
"""Average seconds from the answer to a notification until the claim has returned."""


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


class Simulation:
    """Simulates machines with one slot each. Events are handled in the order of their times."""

    def __init__(self, machine_count: int, *, job_seconds: float) -> None:
        random.seed(machine_count)
        self.claims = 0
        self.waits: list[float] = []
        self._job_seconds = job_seconds
        self._machines = make_machines(machine_count)
        self._is_free = [True] * machine_count
        self._answer_at = [-1.0] * machine_count
        self._waiting: list[float] = []
        self._event_order = count()
        self._events: list[tuple[float, int, Callable[[float, int], None], int]] = [
            (job * SECONDS_BETWEEN_JOBS, next(self._event_order), self._job_comes, 0) for job in range(NUMBER_OF_JOBS)
        ]

    def run(self) -> Self:
        while self._events:
            now, _, handle_event, machine = heapq.heappop(self._events)
            handle_event(now, machine)
        assert len(self.waits) == NUMBER_OF_JOBS
        return self

    def _schedule(self, at: float, handle_event: Callable[[float, int], None], machine: int) -> None:
        heapq.heappush(self._events, (at, next(self._event_order), handle_event, machine))

    def _job_comes(self, now: float, _: int) -> None:
        self._waiting.append(now)
        for machine in random.sample(range(len(self._machines)), len(self._machines)):
            if self._answer_at[machine] < now:
                self._answer_at[machine] = self._machines[machine].answer_at(1, now)
                self._schedule(self._answer_at[machine], self._react, machine)

    def _react(self, now: float, machine: int) -> None:
        self._answer_at[machine] = -1.0
        if self._is_free[machine]:
            self._schedule(now + CLAIM_SECONDS * random.uniform(0.5, 1.5), self._claim, machine)

    def _claim(self, now: float, machine: int) -> None:
        if not self._is_free[machine]:
            return
        self.claims += 1
        if self._waiting:
            self.waits.append(now - self._waiting.pop(0))
            self._machines[machine].won(now)
            self._is_free[machine] = False
            self._schedule(now + self._job_seconds, self._job_ends, machine)
        else:
            self._machines[machine].lost(now)

    def _job_ends(self, now: float, machine: int) -> None:
        self._is_free[machine] = True
        if self._waiting:
            self._claim(now, machine)

"""`ClaimPolicy`: how many jobs a worker claims, from which queues, and when.

A claim "from the front" begins with the jobs of the highest priority; other claims go on after the last claimed job.
"""

from typing import Any

import pytest
from django.db import OperationalError

from django_skipqueue.jobs.registry import THREADS, Registry
from django_skipqueue.values.records import ClaimedJob
from django_skipqueue.worker.claiming import (
    FEW_QUEUES,
    FULL_SCAN_SHARE,
    MOST_CHARACTERS_HELD,
    MOST_QUEUES_FOUND,
    ClaimPolicy,
    QueueSearch,
    pause_after,
)
from django_skipqueue.worker.options import WorkerOptions
from django_skipqueue.worker.protocol import SharedCounts

JOB = ClaimedJob(
    id=1, lease=1, task="task", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=10,
    priority=0, run_after=9.0, locked_at=9.0, metadata="{}", claim_seconds=0.02,
)  # fmt: skip


def make_policy(shared: SharedCounts | None = None, **options: Any) -> ClaimPolicy:
    """The policy of a worker with four slots, which looks for jobs every two seconds."""
    return ClaimPolicy(
        WorkerOptions(name="w", database="default", **{"concurrency": 4, "poll_interval": 2.0, **options}), shared
    )


NAMES = ["default"]


def claim_from_front(policy: ClaimPolicy, jobs: list[ClaimedJob], *, room: int) -> bool:
    """Make a claim, from 100.0 to 100.5, that returns these jobs. Returns whether all queues count as empty."""
    assert policy.after(NAMES, now=100.0) == {}  # no position: from the front
    return policy.claimed(jobs, room=room, names=NAMES, after={}, started=100.0, ended=100.5)


def fail_if_searched(*, after: str, limit: int) -> list[str]:
    raise AssertionError("There was nothing to search for.")


def search_that_finds(*names: str) -> QueueSearch:
    return lambda *, after, limit: list(names)


def test_after_an_error_the_next_claim_is_made_at_once_and_from_the_front() -> None:
    policy = make_policy()
    claim_from_front(policy, [JOB], room=4)
    assert policy.next_check > 100.5
    policy.start_over()
    assert policy.next_check == 0.0  # at once
    assert policy.after(NAMES, now=100.5) == {}  # no position: from the front


def test_after_an_error_queues_with_jobs_are_searched_again() -> None:
    policy = make_policy(poll_interval=3600.0)
    assert policy.choose_queues(search_that_finds(), clock=lambda: 100.0, room=1) == []
    policy.start_over()
    assert policy.choose_queues(search_that_finds("a"), clock=lambda: 100.1, room=1) == ["a"]


def test_a_failed_search_for_queues_is_not_repeated_at_once() -> None:
    """The search would fail again, and the worker would serve no known queue."""
    policy = make_policy()

    def fail(*, after: str, limit: int) -> list[str]:
        raise OperationalError("canceling statement due to statement timeout")

    with pytest.raises(OperationalError):
        policy.choose_queues(fail, clock=lambda: 100.0, room=1)
    policy.start_over()
    policy.choose_queues(fail_if_searched, clock=lambda: 100.1, room=1)


def test_a_queue_that_a_carrier_runs_is_served_only_if_it_is_listed() -> None:
    external_queues = frozenset({"pdf"})
    policy = make_policy(external_queues=external_queues)
    assert policy.choose_queues(search_that_finds("a", "pdf"), clock=lambda: 100.0, room=1) == ["a"]
    policy.queues_notified({"pdf"})
    assert policy.choose_queues(fail_if_searched, clock=lambda: 100.1, room=1) == ["a"]
    policy_with_list = make_policy(queue_names=("pdf",), external_queues=external_queues)
    assert policy_with_list.choose_queues(fail_if_searched, clock=lambda: 100.0, room=1) == ["pdf"]


def test_after_a_failed_search_no_carried_queue_is_served() -> None:
    def fail(*, after: str, limit: int) -> list[str]:
        raise OperationalError("canceling statement due to statement timeout")

    policy = make_policy(external_queues=frozenset({"default"}))
    with pytest.raises(OperationalError):
        policy.choose_queues(fail, clock=lambda: 100.0, room=1)
    assert "default" not in policy.queue_names
    other_policy = make_policy()
    with pytest.raises(OperationalError):
        other_policy.choose_queues(fail, clock=lambda: 100.0, room=1)
    assert "default" in other_policy.queue_names


def test_listed_queues_are_served_in_the_order_of_the_list() -> None:
    policy = make_policy(queue_names=("b", "a"))
    for _ in range(2):
        assert policy.choose_queues(fail_if_searched, clock=lambda: 0.0, room=1) == ["b", "a"]
        policy.queues_notified({"c"})


def test_queues_are_searched_for_sometimes_and_served_in_turn() -> None:
    policy = make_policy()
    turns = [policy.choose_queues(search_that_finds("a", "b", "c"), clock=lambda: 100.0, room=1)]
    turns += [policy.choose_queues(fail_if_searched, clock=lambda: 101.9, room=1) for _ in range(2)]
    assert sorted(names[0] for names in turns) == ["a", "b", "c"]
    assert all(sorted(names) == ["a", "b", "c"] for names in turns)
    assert policy.choose_queues(search_that_finds("d"), clock=lambda: 102.0, room=1) == ["d"]


def test_workers_that_start_together_begin_with_different_queues() -> None:
    """Otherwise jobs that hang in one queue would fill all workers, and starve the other queues."""
    first_queues = {
        make_policy().choose_queues(search_that_finds("a", "b", "c"), clock=lambda: 0.0, room=1)[0] for _ in range(100)
    }
    assert first_queues == {"a", "b", "c"}


def test_a_claim_looks_at_no_more_queues_than_it_has_room_for_jobs() -> None:
    names = [f"{number:04}" for number in range(1_000)]
    policy = make_policy()
    assert len(policy.choose_queues(search_that_finds(*names), clock=lambda: 0.0, room=1)) == FEW_QUEUES
    turns = [policy.choose_queues(fail_if_searched, clock=lambda: 0.0, room=300) for _ in range(3)]
    assert [len(names) for names in turns] == [300, 300, 300]
    assert len(set().union(*turns)) == 900
    assert policy.after(turns[-1], now=0.0) == {}  # queues that take turns are claimed from their fronts


def test_empty_queues_are_not_looked_at_again() -> None:
    names = [f"{number:04}" for number in range(2 * FEW_QUEUES)]
    policy = make_policy()
    for turn in range(2):
        chosen = policy.choose_queues(search_that_finds(*names), clock=lambda: 0.0, room=4)
        all_queues_are_empty = policy.claimed([], room=4, names=chosen, after={}, started=0.0, ended=0.5)
        assert not all_queues_are_empty  # other queues may have jobs
        assert len(policy.queue_names) == FEW_QUEUES * (1 - turn)  # without the queues that were empty
        assert policy.next_check == 0.5
    assert policy.choose_queues(search_that_finds("found"), clock=lambda: 0.5, room=4) == ["found"]


def test_an_incomplete_queue_search_resumes_soon() -> None:
    names = [f"{number:05}" for number in range(2 * MOST_QUEUES_FOUND)]
    searched_after: list[str] = []

    def search(*, after: str, limit: int) -> list[str]:
        searched_after.append(after)
        return [name for name in names if name > after][:limit]

    policy = make_policy()
    for number in range(4):
        policy.choose_queues(search, clock=lambda number=number: float(number), room=4)  # type: ignore[misc]
        assert set(policy.queue_names) == set(names[MOST_QUEUES_FOUND:] if number % 2 else names[:MOST_QUEUES_FOUND])
    assert searched_after == ["", names[MOST_QUEUES_FOUND - 1], names[-1], "", names[MOST_QUEUES_FOUND - 1]]


def test_a_slow_search_for_queues_is_made_rarely() -> None:
    policy = make_policy(poll_interval=0.1)
    clock_times = iter([100.0, 100.0, 100.02])
    policy.choose_queues(search_that_finds("a"), clock=lambda: next(clock_times), room=1)
    policy.choose_queues(fail_if_searched, clock=lambda: 100.02 + pause_after(0.02) - 0.1, room=1)
    policy.choose_queues(search_that_finds("b"), clock=lambda: 100.02 + pause_after(0.02) + 0.1, room=1)
    assert policy.queue_names == ["b"]


def test_a_full_claim_is_followed_by_the_next_claim_at_once() -> None:
    policy = make_policy()
    all_queues_are_empty = claim_from_front(policy, [JOB], room=1)
    assert not all_queues_are_empty
    assert policy.next_check == 100.5  # at once


@pytest.mark.parametrize(("jobs", "all_queues_are_empty"), [([], True), ([JOB], False)])
def test_a_claim_from_the_front_that_is_not_full_is_followed_by_a_pause(
    jobs: list[ClaimedJob], all_queues_are_empty: bool
) -> None:
    policy = make_policy()
    assert claim_from_front(policy, jobs, room=4) == all_queues_are_empty
    assert policy.next_check == 102.5  # two seconds, the poll interval, after the claim


def test_a_short_claim_leads_to_an_early_claim_from_the_front() -> None:
    policy = make_policy()
    claim_from_front(policy, [JOB], room=1)
    after = policy.after(NAMES, now=100.5)
    assert after  # the next claim is not from the front
    all_queues_are_empty = policy.claimed([], room=4, names=NAMES, after=after, started=100.5, ended=100.6)
    assert not all_queues_are_empty  # jobs may be before the position
    assert policy.next_check == pytest.approx(100.5 + JOB.claim_seconds * (1 / FULL_SCAN_SHARE - 1))


def test_a_notification_for_a_served_queue_leads_to_a_claim_at_once() -> None:
    policy = make_policy(queue_names=("a",))
    policy.check_at(500.0)
    policy.queues_notified({"b"})
    assert policy.next_check == 500.0  # unchanged: this worker does not serve the queue b
    policy.queues_notified({"a", "b"})
    assert policy.next_check == 0.0


def test_a_queue_that_gets_its_first_jobs_is_served_without_a_search() -> None:
    policy = make_policy()
    policy.check_at(500.0)
    policy.queues_notified({"b", "a"})
    assert policy.queue_names == ["a", "b"]
    assert policy.next_check == 0.0


def test_a_worker_holds_only_a_few_large_jobs(registry: Registry) -> None:
    policy = make_policy()
    policy.capacities[THREADS].finished(1000, now=0.0)
    assert policy.room({THREADS: 0}, 0, now=0.0) == 502  # half of 4 slots and 1,000 jobs ahead
    large_job = JOB._replace(args="x" * 1_000_000)
    policy.claimed([large_job, JOB], room=502, names=NAMES, after={}, started=0.0, ended=0.0)
    assert policy.next_check == 0.0, "the claim may have stopped because of the large job"
    # The two jobs have 500,000 characters each, on average. A claim takes at most half of what the worker may hold.
    assert policy.room({THREADS: 0}, 0, now=0.0) == MOST_CHARACTERS_HELD // 500_000 // 2 - 1
    policy.claimed([JOB], room=63, names=NAMES, after={}, started=0.0, ended=0.0)
    assert policy.room({THREADS: 0}, 0, now=0.0) == 502


class TestWhileTheSupervisorWatches:
    """The supervisor looks for jobs in place of an idle worker, and calls the worker."""

    @pytest.fixture
    def shared(self) -> SharedCounts:
        shared = SharedCounts()
        shared.watched_until = 1000.0
        return shared

    def test_an_idle_worker_looks_for_jobs_when_the_supervisor_stops_watching(self, shared: SharedCounts) -> None:
        policy = make_policy(shared, queue_names=("default",))
        policy.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        assert policy.next_check == 1000.0  # until then the supervisor has promised to watch the queues
        shared.watched_until = 1003.0
        assert policy.next_check == 1003.0
        shared.watched_until = 0.0
        assert policy.next_check == 102.1  # the poll interval after the claim

    def test_a_draining_worker_looks_for_jobs_itself(self, shared: SharedCounts) -> None:
        policy = make_policy(shared, queue_names=("default",), drain=True)
        policy.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        assert policy.next_check == 102.1  # the poll interval after the claim

    def test_a_full_claim_is_followed_by_another_while_the_supervisor_watches(self, shared: SharedCounts) -> None:
        policy = make_policy(shared, queue_names=("default",))
        policy.claimed([JOB] * 4, room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        assert policy.next_check == 100.1  # at once

    def test_a_call_for_a_single_job_is_followed_by_no_claim_from_the_front(self, shared: SharedCounts) -> None:
        policy = make_policy(shared, queue_names=("default",))
        policy.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        policy.called("default")
        assert policy.next_check == 0.0
        after = policy.after(NAMES, now=100.2)
        policy.claimed([JOB], room=4, names=NAMES, after=after, started=100.2, ended=100.3)
        policy.claimed([], room=4, names=NAMES, after={"default": JOB.position}, started=100.4, ended=100.5)
        assert policy.next_check == 1000.0  # when the supervisor's promise to watch the queues ends

    @pytest.mark.parametrize("called_queue", ["default", ""], ids=["for one queue", "for all queues"])
    def test_an_empty_claim_after_a_call_is_followed_by_a_claim_from_the_front(
        self, shared: SharedCounts, called_queue: str
    ) -> None:
        policy = make_policy(shared, queue_names=("default",))
        policy.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        policy.called(called_queue)
        policy.claimed([], room=4, names=NAMES, after={"default": JOB.position}, started=100.2, ended=100.3)
        assert policy.next_check < 102.3  # earlier than by polling

    def test_a_call_for_all_queues_searches_for_queues_and_a_call_for_one_does_not(self, shared: SharedCounts) -> None:
        policy = make_policy(shared)
        names = policy.choose_queues(search_that_finds("a"), clock=lambda: 100.0, room=4)
        policy.claimed([], room=4, names=names, after={}, started=100.0, ended=100.0)
        policy.called("a")
        assert policy.choose_queues(fail_if_searched, clock=lambda: 200.0, room=4) == ["a"]
        policy.called("a")
        policy.called("")
        assert "z" in policy.choose_queues(search_that_finds("a", "z"), clock=lambda: 201.0, room=4)


class TestHangingQueues:
    """A hanging queue is a queue whose jobs have lately had many attempts that were given up as stuck."""

    NAMES = ("mail", "hung", "pdf", "dead")

    def make_policy(self, jobs_held: int, *, names: tuple[str, ...] = NAMES, concurrency: int = 8) -> ClaimPolicy:
        """The policy of a worker that has given up attempts of two queues, and holds some jobs of these queues now."""
        shared = SharedCounts()
        policy = ClaimPolicy(
            WorkerOptions(name="w", database="default", concurrency=concurrency, queue_names=names),
            shared,
            # The policy asks how many jobs the worker holds of the queues that a function selects.
            holds=lambda selects: jobs_held if [name for name in names if selects(name)] == ["hung", "dead"] else 0,
        )
        for name in ("hung", "dead") * 4:
            policy.gave_up(JOB._replace(queue_name=name), 90.0, 100.0)
        return policy

    def turns(self, policy: ClaimPolicy, count: int = 4, now: float = 100.0) -> list[tuple[list[str], int]]:
        """The queues and the limit of each of the next claims."""
        turns = []
        for _ in range(count):
            names = policy.choose_queues(fail_if_searched, clock=lambda: now, room=8)
            turns.append((names, policy.limit(8, {})))
        return turns

    def test_hanging_queues_share_half_of_the_slots_and_every_second_claim(self) -> None:
        hanging_queues, other_queues = ["hung", "dead"], ["mail", "pdf"]
        assert self.turns(self.make_policy(jobs_held=0)) == [(hanging_queues, 4), (other_queues, 8)] * 2
        assert self.turns(self.make_policy(jobs_held=3)) == [(hanging_queues, 1), (other_queues, 8)] * 2
        assert self.turns(self.make_policy(jobs_held=4)) == [(other_queues, 8)] * 4
        assert self.turns(self.make_policy(jobs_held=9)) == [(other_queues, 8)] * 4

    def test_a_claim_from_hanging_queues_is_followed_by_a_claim_from_the_others(self) -> None:
        policy = self.make_policy(jobs_held=0)
        for names, next_check in ((["hung", "dead"], 100.2), (["mail", "pdf"], 101.2)):
            assert policy.choose_queues(fail_if_searched, clock=lambda: 100.1, room=8) == names
            policy.claimed([], room=4, names=names, after={}, started=100.1, ended=100.2)
            assert policy.next_check == pytest.approx(next_check)

    def test_hanging_queues_have_all_slots_again_after_a_while(self) -> None:
        assert self.turns(self.make_policy(jobs_held=4), now=300.0) == [([*self.NAMES], 8)] * 4

    def test_a_worker_with_only_hanging_queues_keeps_slots_free(self) -> None:
        names = ("hung", "dead")
        assert self.turns(self.make_policy(jobs_held=1, names=names)) == [([*names], 3)] * 4
        assert self.turns(self.make_policy(jobs_held=4, names=names)) == [([], 8)] * 4

    def test_a_worker_with_one_queue_gives_it_all_slots(self) -> None:
        policy = make_policy(queue_names=("hung",))
        for _ in range(4):
            policy.gave_up(JOB._replace(queue_name="hung"), 90.0, 100.0)
        assert self.turns(policy) == [(["hung"], 8)] * 4

    def test_a_worker_of_all_queues_limits_a_hanging_queue(self) -> None:
        policy = make_policy()
        for _ in range(2):
            assert policy.choose_queues(search_that_finds("hung"), clock=lambda: 100.0, room=8) == ["hung"]
            assert policy.limit(8, {}) == 8
            policy.gave_up(JOB._replace(queue_name="hung"), 90.0, 100.0)
        assert policy.choose_queues(search_that_finds("hung"), clock=lambda: 100.0, room=8) == ["hung"]
        assert policy.limit(8, {}) == 2

"""`ClaimPolicy`: how many jobs, from which queues, and when."""

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

JOB = ClaimedJob(1, 1, "task", "default", "[]", "{}", 1, 10, 0, 9.0, 9.0, "{}", claim_seconds=0.02)


def claiming(shared: SharedCounts | None = None, **options: Any) -> ClaimPolicy:
    return ClaimPolicy(
        WorkerOptions(name="w", database="default", **{"concurrency": 4, "poll_interval": 2.0, **options}), shared
    )


NAMES = ["default"]


def never(*, after: str, limit: int) -> list[str]:
    raise AssertionError("There was nothing to search for.")


def finding(*names: str) -> QueueSearch:
    return lambda *, after, limit: list(names)


def test_after_an_error_it_claims_at_once_and_from_the_front() -> None:
    claims = claiming()
    claims.after(NAMES, now=100.0)
    claims.claimed([JOB], room=4, names=NAMES, after={}, started=100.0, ended=100.5)
    assert claims.next_check > 100.5
    claims.start_over()
    assert claims.next_check == 0.0
    assert claims.after(NAMES, now=100.5) == {}


def test_after_an_error_it_searches_for_queues_that_got_jobs_unheard() -> None:
    claims = claiming(poll_interval=3600.0)
    assert claims.choose_queues(finding(), clock=lambda: 100.0, room=1) == []
    claims.start_over()
    assert claims.choose_queues(finding("a"), clock=lambda: 100.1, room=1) == ["a"]


def test_a_search_that_failed_is_not_made_again_at_once() -> None:
    """The search would fail again, and the worker would serve no known queue."""
    claims = claiming()

    def fail(*, after: str, limit: int) -> list[str]:
        raise OperationalError("canceling statement due to statement timeout")

    with pytest.raises(OperationalError):
        claims.choose_queues(fail, clock=lambda: 100.0, room=1)
    claims.start_over()
    claims.choose_queues(never, clock=lambda: 100.1, room=1)


def test_a_queue_that_a_carrier_runs_is_served_only_if_it_is_listed() -> None:
    carried = frozenset({"pdf"})
    claims = claiming(external_queues=carried)
    assert claims.choose_queues(finding("a", "pdf"), clock=lambda: 100.0, room=1) == ["a"]
    claims.queues_notified({"pdf"})
    assert claims.choose_queues(never, clock=lambda: 100.1, room=1) == ["a"]
    listed = claiming(queue_names=("pdf",), external_queues=carried)
    assert listed.choose_queues(never, clock=lambda: 100.0, room=1) == ["pdf"]


def test_after_a_search_that_failed_the_carried_queues_of_tasks_are_left_alone() -> None:
    def fail(*, after: str, limit: int) -> list[str]:
        raise OperationalError("canceling statement due to statement timeout")

    claims = claiming(external_queues=frozenset({"default"}))
    with pytest.raises(OperationalError):
        claims.choose_queues(fail, clock=lambda: 100.0, room=1)
    assert "default" not in claims.queue_names
    others = claiming()
    with pytest.raises(OperationalError):
        others.choose_queues(fail, clock=lambda: 100.0, room=1)
    assert "default" in others.queue_names


def test_queues_that_were_listed_stay_as_listed() -> None:
    claims = claiming(queue_names=("b", "a"))
    for _ in range(2):
        assert claims.choose_queues(never, clock=lambda: 0.0, room=1) == ["b", "a"]
        claims.queues_notified({"c"})


def test_queues_that_were_not_listed_are_searched_for_now_and_then_and_served_in_turn() -> None:
    claims = claiming()
    turns = [claims.choose_queues(finding("a", "b", "c"), clock=lambda: 100.0, room=1)]
    turns += [claims.choose_queues(never, clock=lambda: 101.9, room=1) for _ in range(2)]
    assert sorted(names[0] for names in turns) == ["a", "b", "c"]
    assert all(sorted(names) == ["a", "b", "c"] for names in turns)
    assert claims.choose_queues(finding("d"), clock=lambda: 102.0, room=1) == ["d"]


def test_workers_that_start_at_once_begin_in_different_queues() -> None:
    """Otherwise jobs that hang in one queue would fill all workers, and starve the other queues."""
    firsts = {claiming().choose_queues(finding("a", "b", "c"), clock=lambda: 0.0, room=1)[0] for _ in range(100)}
    assert firsts == {"a", "b", "c"}


def test_of_many_queues_each_claim_looks_at_no_more_than_it_has_room_for() -> None:
    names = [f"{number:04}" for number in range(1_000)]
    claims = claiming()
    assert len(claims.choose_queues(finding(*names), clock=lambda: 0.0, room=1)) == FEW_QUEUES
    turns = [claims.choose_queues(never, clock=lambda: 0.0, room=300) for _ in range(3)]
    assert [len(names) for names in turns] == [300, 300, 300]
    assert len(set().union(*turns)) == 900
    assert claims.after(turns[-1], now=0.0) == {}


def test_of_many_queues_those_that_are_empty_are_not_looked_at_again() -> None:
    names = [f"{number:04}" for number in range(2 * FEW_QUEUES)]
    claims = claiming()
    for turn in range(2):
        chosen = claims.choose_queues(finding(*names), clock=lambda: 0.0, room=4)
        assert claims.claimed([], room=4, names=chosen, after={}, started=0.0, ended=0.5) is False
        assert len(claims.queue_names) == FEW_QUEUES * (1 - turn)
        assert claims.next_check == 0.5
    assert claims.choose_queues(finding("found"), clock=lambda: 0.5, room=4) == ["found"]


def test_an_incomplete_queue_search_resumes_soon() -> None:
    names = [f"{number:05}" for number in range(2 * MOST_QUEUES_FOUND)]
    searched: list[str] = []

    def search(*, after: str, limit: int) -> list[str]:
        searched.append(after)
        return [name for name in names if name > after][:limit]

    claims = claiming()
    for number in range(4):
        claims.choose_queues(search, clock=lambda number=number: float(number), room=4)  # type: ignore[misc]
        assert set(claims.queue_names) == set(names[MOST_QUEUES_FOUND:] if number % 2 else names[:MOST_QUEUES_FOUND])
    assert searched == ["", names[MOST_QUEUES_FOUND - 1], names[-1], "", names[MOST_QUEUES_FOUND - 1]]


def test_a_search_that_takes_long_comes_seldom() -> None:
    claims = claiming(poll_interval=0.1)
    times = iter([100.0, 100.0, 100.02])
    claims.choose_queues(finding("a"), clock=lambda: next(times), room=1)
    claims.choose_queues(never, clock=lambda: 100.02 + pause_after(0.02) - 0.1, room=1)
    claims.choose_queues(finding("b"), clock=lambda: 100.02 + pause_after(0.02) + 0.1, room=1)
    assert claims.queue_names == ["b"]


def test_after_a_claim_that_brought_all_it_asked_for_comes_the_next_at_once() -> None:
    claims = claiming()
    claims.after(NAMES, now=100.0)
    assert claims.claimed([JOB], room=1, names=NAMES, after={}, started=100.0, ended=100.5) is False
    assert claims.next_check == 100.5


@pytest.mark.parametrize(("jobs", "empty"), [([], True), ([JOB], False)])
def test_after_a_claim_from_the_front_that_brought_less_it_waits(jobs: list[ClaimedJob], empty: bool) -> None:
    claims = claiming()
    claims.after(NAMES, now=100.0)
    assert claims.claimed(jobs, room=4, names=NAMES, after={}, started=100.0, ended=100.5) is empty
    assert claims.next_check == 102.5


def test_a_short_claim_leads_to_an_early_claim_from_the_front() -> None:
    claims = claiming()
    claims.after(NAMES, now=100.0)
    claims.claimed([JOB], room=1, names=NAMES, after={}, started=100.0, ended=100.5)
    after = claims.after(NAMES, now=100.5)
    assert after
    assert claims.claimed([], room=4, names=NAMES, after=after, started=100.5, ended=100.6) is False
    assert claims.next_check == pytest.approx(100.5 + JOB.claim_seconds * (1 / FULL_SCAN_SHARE - 1))


def test_it_looks_at_once_when_a_queue_of_its_own_gets_jobs() -> None:
    claims = claiming(queue_names=("a",))
    claims.check_at(500.0)
    claims.queues_notified({"b"})
    assert claims.next_check == 500.0
    claims.queues_notified({"a", "b"})
    assert claims.next_check == 0.0


def test_a_queue_that_gets_its_first_jobs_is_served_without_a_search() -> None:
    claims = claiming()
    claims.check_at(500.0)
    claims.queues_notified({"b", "a"})
    assert claims.queue_names == ["a", "b"]
    assert claims.next_check == 0.0


def test_large_jobs_are_held_in_small_numbers(registry: Registry) -> None:
    claims = claiming()
    claims.capacities[THREADS].finished(1000, now=0.0)
    assert claims.room({THREADS: 0}, 0, now=0.0) == 502
    large = JOB._replace(args="x" * 1_000_000)
    claims.claimed([large, JOB], room=502, names=NAMES, after={}, started=0.0, ended=0.0)
    assert claims.next_check == 0.0, "it may have stopped because they are large"
    assert claims.room({THREADS: 0}, 0, now=0.0) == MOST_CHARACTERS_HELD // 500_000 // 2 - 1
    claims.claimed([JOB], room=63, names=NAMES, after={}, started=0.0, ended=0.0)
    assert claims.room({THREADS: 0}, 0, now=0.0) == 502


class TestWhileTheSupervisorWatches:
    """The supervisor looks for jobs in the worker's place, and calls the worker."""

    @pytest.fixture
    def shared(self) -> SharedCounts:
        shared = SharedCounts()
        shared.watched_until = 1000.0
        return shared

    def test_an_idle_worker_looks_when_the_promise_ends(self, shared: SharedCounts) -> None:
        claims = claiming(shared, queue_names=("default",))
        claims.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        assert claims.next_check == 1000.0
        shared.watched_until = 1003.0
        assert claims.next_check == 1003.0
        shared.watched_until = 0.0
        assert claims.next_check == 102.1

    def test_with_drain_it_looks_nevertheless(self, shared: SharedCounts) -> None:
        claims = claiming(shared, queue_names=("default",), drain=True)
        claims.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        assert claims.next_check == 102.1

    def test_a_claim_that_brought_all_it_asked_for_is_followed_by_another(self, shared: SharedCounts) -> None:
        claims = claiming(shared, queue_names=("default",))
        claims.claimed([JOB] * 4, room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        assert claims.next_check == 100.1

    def test_a_lone_job_is_followed_by_no_claim_from_the_front(self, shared: SharedCounts) -> None:
        claims = claiming(shared, queue_names=("default",))
        claims.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        claims.called("default")
        assert claims.next_check == 0.0
        after = claims.after(NAMES, now=100.2)
        claims.claimed([JOB], room=4, names=NAMES, after=after, started=100.2, ended=100.3)
        claims.claimed([], room=4, names=NAMES, after={"default": JOB.position}, started=100.4, ended=100.5)
        assert claims.next_check == 1000.0

    @pytest.mark.parametrize("call", ["default", ""])
    def test_a_job_may_have_come_in_before_the_position_of_a_claim(self, shared: SharedCounts, call: str) -> None:
        claims = claiming(shared, queue_names=("default",))
        claims.claimed([], room=4, names=NAMES, after={}, started=100.0, ended=100.1)
        claims.called(call)
        claims.claimed([], room=4, names=NAMES, after={"default": JOB.position}, started=100.2, ended=100.3)
        assert claims.next_check < 102.3

    def test_a_call_for_a_queue_makes_no_search_and_a_call_for_all_does(self, shared: SharedCounts) -> None:
        claims = claiming(shared)
        names = claims.choose_queues(finding("a"), clock=lambda: 100.0, room=4)
        claims.claimed([], room=4, names=names, after={}, started=100.0, ended=100.0)
        claims.called("a")
        assert claims.choose_queues(never, clock=lambda: 200.0, room=4) == ["a"]
        claims.called("a")
        claims.called("")
        assert "z" in claims.choose_queues(finding("a", "z"), clock=lambda: 201.0, room=4)


class TestHangingQueues:
    """Queues whose jobs have lately had many attempts that were given up as stuck."""

    NAMES = ("mail", "hung", "pdf", "dead")

    def claiming(self, held: int, *, names: tuple[str, ...] = NAMES, concurrency: int = 8) -> ClaimPolicy:
        """A worker that has given up attempts of two queues, and now holds some jobs of these two queues."""
        shared = SharedCounts()
        policy = ClaimPolicy(
            WorkerOptions(name="w", database="default", concurrency=concurrency, queue_names=names),
            shared,
            holds=lambda are_meant: held if [name for name in names if are_meant(name)] == ["hung", "dead"] else 0,
        )
        for name in ("hung", "dead") * 4:
            policy.gave_up(JOB._replace(queue_name=name), 90.0, 100.0)
        return policy

    def turns(self, policy: ClaimPolicy, number: int = 4, now: float = 100.0) -> list[tuple[list[str], int]]:
        turns = []
        for _ in range(number):
            names = policy.choose_queues(never, clock=lambda: now, room=8)
            turns.append((names, policy.limit(8, {})))
        return turns

    def test_hanging_queues_share_half_of_the_slots_and_every_second_claim(self) -> None:
        hanging, others = ["hung", "dead"], ["mail", "pdf"]
        assert self.turns(self.claiming(held=0)) == [(hanging, 4), (others, 8)] * 2
        assert self.turns(self.claiming(held=3)) == [(hanging, 1), (others, 8)] * 2
        assert self.turns(self.claiming(held=4)) == [(others, 8)] * 4
        assert self.turns(self.claiming(held=9)) == [(others, 8)] * 4

    def test_a_claim_of_hanging_queues_is_followed_by_one_of_the_others_at_once(self) -> None:
        policy = self.claiming(held=0)
        for names, look in ((["hung", "dead"], 100.2), (["mail", "pdf"], 101.2)):
            assert policy.choose_queues(never, clock=lambda: 100.1, room=8) == names
            policy.claimed([], room=4, names=names, after={}, started=100.1, ended=100.2)
            assert policy.next_check == pytest.approx(look)

    def test_hanging_queues_have_all_slots_again_after_a_while(self) -> None:
        assert self.turns(self.claiming(held=4), now=300.0) == [([*self.NAMES], 8)] * 4

    def test_if_no_queue_but_hanging_ones_is_served_slots_are_spared_for_jobs_to_come(self) -> None:
        names = ("hung", "dead")
        assert self.turns(self.claiming(held=1, names=names)) == [([*names], 3)] * 4
        assert self.turns(self.claiming(held=4, names=names)) == [([], 8)] * 4

    def test_a_worker_with_one_queue_gives_it_all_slots(self) -> None:
        policy = claiming(queue_names=("hung",))
        for _ in range(4):
            policy.gave_up(JOB._replace(queue_name="hung"), 90.0, 100.0)
        assert self.turns(policy) == [(["hung"], 8)] * 4

    def test_a_worker_that_serves_all_queues_knows_those_of_the_tasks(self) -> None:
        policy = claiming()
        for _ in range(2):
            assert policy.choose_queues(finding("hung"), clock=lambda: 100.0, room=8) == ["hung"]
            assert policy.limit(8, {}) == 8
            policy.gave_up(JOB._replace(queue_name="hung"), 90.0, 100.0)
        assert policy.choose_queues(finding("hung"), clock=lambda: 100.0, room=8) == ["hung"]
        assert policy.limit(8, {}) == 2

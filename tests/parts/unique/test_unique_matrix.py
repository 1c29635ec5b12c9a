"""Unique jobs in all combinations: how long a job holds its key, and what one or many calls do if the key is taken."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from django_skipqueue.exceptions import InvalidOption, UniqueKeyDeadlock, UniqueKeyTaken
from django_skipqueue.jobs.task import Task
from django_skipqueue.models import Job
from django_skipqueue.queue import enqueue
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement

from ...app import jobs
from ...app.rows import state
from ...app.sessions import Session
from ...harness.table import Case

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

ONE_HOUR = timedelta(hours=1)
KEY_HELD_UNTIL = ["finished", "started", ONE_HOUR]
HOLDER_STATES = [
    "scheduled",
    "queued",
    "running",
    "retrying",
    "released",
    "recovered",
    "completed",
    "failed",
    "discarded",
]
HOLDER_CASES = list(product(HOLDER_STATES, KEY_HELD_UNTIL, [False, True]))
"""For each case: the state of the job that holds the key, how long it holds it, and whether `defer_many` is called."""


def add_with_key(*, until: Any = "finished", on_conflict: Any = "skip", **options: Any) -> Task[..., Any]:
    return jobs.add.using(unique_key="k", until=until, on_conflict=on_conflict, **options)


def claim() -> Job:
    (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    return job


def make_in_state(name: str, key_held_until: Any) -> Job:
    """Make a job with the key, and bring it into this state as workers do."""
    holder = add_with_key(until=key_held_until).using(run_after=ONE_HOUR if name == "scheduled" else None).defer(1)
    if name in ("scheduled", "queued"):
        return holder
    if name == "discarded":
        assert holder.discard()
        return holder
    job = claim()
    outcomes = {"retrying": Outcome("scheduled", delay=60.0), "completed": COMPLETED, "failed": Outcome("failed")}
    if name in outcomes:
        assert store.settle([Settlement(job.pk, job.lease, outcomes[name])])
    elif name == "released":
        job.release()
    elif name == "recovered":
        assert store.recover(worker_ids=["w"])
    return Job.objects.get(pk=job.pk)


def is_promised_to_hold(name: str, key_held_until: Any) -> bool:
    """Whether the documentation promises that the job holds its key."""
    if key_held_until == "started":
        return name in ("scheduled", "queued")
    return name not in ("completed", "failed", "discarded") or key_held_until == ONE_HOUR


def defer_one(add_with_key: Task[..., Any], use_defer_many: bool, value: int) -> tuple[int, str]:
    """Make one call by `defer` or `defer_many`. Returns the id of its job, and the outcome of the call."""
    if use_defer_many:
        deferred = add_with_key.defer_many([(value,)])
        return deferred[0], deferred.outcomes[0]
    job = add_with_key.defer(value)
    return job.pk, "created" if job.created else "replaced" if job.replaced else "existing"


class TestEachStateOfTheJobThatHoldsTheKey:
    def test_an_enqueue_with_skip_returns_the_job_that_holds_the_key(self, case: Case) -> None:
        for name, key_held_until, use_defer_many in HOLDER_CASES:
            with case(name=name, until=key_held_until, many=use_defer_many):
                holder = make_in_state(name, key_held_until)
                state_before = state(holder)
                id_and_outcome = defer_one(add_with_key(until=key_held_until), use_defer_many, 2)
                if is_promised_to_hold(name, key_held_until):
                    assert id_and_outcome == (holder.pk, "existing")
                else:
                    assert id_and_outcome == (Job.objects.latest("pk").pk, "created")
                    assert id_and_outcome[0] != holder.pk
                assert state(Job.objects.get(pk=holder.pk)) == state_before

    def test_an_enqueue_with_raise_names_the_job_that_holds_the_key(self, case: Case) -> None:
        for name, key_held_until, use_defer_many in HOLDER_CASES:
            with case(name=name, until=key_held_until, many=use_defer_many):
                holder = make_in_state(name, key_held_until)
                if not is_promised_to_hold(name, key_held_until):
                    _, outcome = defer_one(add_with_key(until=key_held_until, on_conflict="raise"), use_defer_many, 2)
                    assert outcome == "created"
                    continue
                with pytest.raises(UniqueKeyTaken, match=rf"held by job {holder.pk}\.$") as caught:
                    defer_one(add_with_key(until=key_held_until, on_conflict="raise"), use_defer_many, 2)
                assert (caught.value.job_id, caught.value.handle) == (holder.pk, holder.handle)
                assert Job.objects.count() == 1

    def test_an_enqueue_with_replace_changes_only_a_waiting_job(self, case: Case) -> None:
        for name, key_held_until, use_defer_many in HOLDER_CASES:
            with case(name=name, until=key_held_until, many=use_defer_many):
                holder = make_in_state(name, key_held_until)
                is_waiting = name in ("scheduled", "queued", "retrying", "released", "recovered")
                id_and_outcome = defer_one(
                    add_with_key(until=key_held_until, on_conflict="replace", run_after=2 * ONE_HOUR), use_defer_many, 2
                )
                holder_after = Job.objects.get(pk=holder.pk)
                if not is_promised_to_hold(name, key_held_until):
                    assert id_and_outcome[1] == "created"
                elif is_waiting:
                    assert id_and_outcome == (holder.pk, "replaced")
                    assert (holder_after.args, holder_after.status) == ([2], "scheduled")
                    assert holder_after.run_after > holder_after.enqueued_at + ONE_HOUR
                else:
                    assert id_and_outcome == (holder.pk, "existing")
                if id_and_outcome[1] != "replaced":
                    assert state(holder_after) == state(holder)

    def test_a_failed_job_is_not_retried_by_hand_while_another_job_holds_its_key(self, case: Case) -> None:
        for name, key_held_until, use_defer_many in HOLDER_CASES:
            with case(name=name, until=key_held_until, many=use_defer_many):
                failed_job = make_in_state("failed", "finished")
                make_in_state(name, key_held_until)
                retried = Job.objects.filter(pk=failed_job.pk).retry() if use_defer_many else int(failed_job.retry())
                assert retried == (not is_promised_to_hold(name, key_held_until))


@pytest.mark.parametrize("key_held_until", KEY_HELD_UNTIL, ids=str)
class TestJobsOfOneKey:
    def test_claim_release_retry_and_recovery_work_beside_other_jobs_of_the_same_key(self, key_held_until: Any) -> None:
        """A job goes through claim, release, retry, recovery and failure while other jobs with its key are enqueued."""
        first_job = add_with_key(until=key_held_until).defer(1)
        for _ in range(3):
            claimed = claim()
            add_with_key(until=key_held_until).defer(2)
            claimed.release()
            for job in Job.objects.claim(queue_names=["default"], limit=9, worker_id="w"):
                add_with_key(until=key_held_until).defer(3)
                assert store.settle([Settlement(job.pk, job.lease, Outcome("scheduled", delay=0.0))])
            for _job in Job.objects.claim(queue_names=["default"], limit=9, worker_id="w"):
                add_with_key(until=key_held_until).defer(4)
            store.recover(worker_ids=["w"])
            Job.objects.filter(status="scheduled").run_now()
        while running := Job.objects.claim(queue_names=["default"], limit=9, worker_id="w"):
            for job in running:
                assert store.settle([Settlement(job.pk, job.lease, Outcome("failed"))])
        assert Job.objects.get(pk=first_job.pk).status == "failed"
        Job.objects.all().retry()
        Job.objects.all().cancel()
        Job.objects.all().retry()
        assert Job.objects.unfinished().count() >= 1

    def test_a_failed_job_is_retried_by_hand_if_its_key_is_free(self, key_held_until: Any) -> None:
        failed_job = make_in_state("failed", key_held_until)
        assert failed_job.retry()
        assert add_with_key(until=key_held_until).defer(2).created == (key_held_until == "started")

    def test_calls_of_one_batch_share_a_job_if_their_keys_are_equal(self, key_held_until: Any) -> None:
        keyed_by_first_argument = jobs.add.using(unique_key=lambda a, b=0: f"k{a}", until=key_held_until)
        key_holder = keyed_by_first_argument.defer(1)
        deferred = keyed_by_first_argument.defer_many([(1, 5), (2, 1), (3,), (2, 2)])
        assert deferred.outcomes == ["existing", "created", "created", "existing"]
        assert deferred == [key_holder.pk, deferred[1], deferred[2], deferred[1]]
        assert (deferred.created, deferred.existing) == ([deferred[1], deferred[2]], [key_holder.pk, deferred[1]])
        replaced = keyed_by_first_argument.using(on_conflict="replace").defer_many([(1, 6), (4, 1), (1, 7), (4, 2)])
        assert replaced.outcomes == ["existing", "existing", "replaced", "created"]
        assert replaced.replaced == [key_holder.pk]
        assert Job.objects.get(pk=key_holder.pk).args == [1, 7], "the newest arguments"
        assert Job.objects.get(pk=replaced[3]).args == [4, 2]

    def test_a_batch_that_raises_unique_key_taken_writes_nothing(self, key_held_until: Any) -> None:
        keyed_by_first_argument = jobs.add.using(
            unique_key=lambda a, b=0: f"k{a}", until=key_held_until, on_conflict="raise"
        )
        assert keyed_by_first_argument.defer_many([(1,), (2,)]).outcomes == ["created", "created"]
        with pytest.raises(UniqueKeyTaken, match="Nothing was written"):
            keyed_by_first_argument.defer_many([(5,), (2,), (6,)])
        with pytest.raises(UniqueKeyTaken, match="call 2: call 0 has the same unique key"):
            keyed_by_first_argument.defer_many([(7,), (8,), (7,)])
        assert Job.objects.count() == 2


@pytest.mark.parametrize("use_defer_many", [False, True], ids=["defer", "defer_many"])
class TestKeyHeldForOneHour:
    def end_time_of_key(self) -> None:
        """Move the enqueue of every job two hours back, so that the hour for which it holds its key is over."""
        Job.objects.update(enqueued_at=Job.objects.first().enqueued_at - 2 * ONE_HOUR)  # type: ignore[union-attr]

    @pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
    def test_the_key_of_a_completed_job_is_free_after_the_hour(self, use_defer_many: bool, on_conflict: str) -> None:
        holder = make_in_state("completed", ONE_HOUR)
        self.end_time_of_key()
        pk, outcome = defer_one(add_with_key(until=ONE_HOUR, on_conflict=on_conflict), use_defer_many, 2)
        assert outcome == "created"
        assert pk != holder.pk
        assert defer_one(add_with_key(until=ONE_HOUR), use_defer_many, 3) == (pk, "existing")

    def test_an_unfinished_job_keeps_its_key_after_the_hour(self, use_defer_many: bool) -> None:
        holder = make_in_state("running", ONE_HOUR)
        self.end_time_of_key()
        assert defer_one(add_with_key(until=ONE_HOUR), use_defer_many, 2) == (holder.pk, "existing")

    def test_a_call_with_another_option_until_respects_a_held_key(self, use_defer_many: bool) -> None:
        holder = make_in_state("completed", ONE_HOUR)
        assert defer_one(add_with_key(until="finished"), use_defer_many, 2) == (holder.pk, "existing")
        assert defer_one(add_with_key(until="started"), use_defer_many, 2) == (holder.pk, "existing")

    def test_a_deleted_job_holds_no_key(self, use_defer_many: bool) -> None:
        make_in_state("completed", ONE_HOUR).delete()
        _, outcome = defer_one(add_with_key(until=ONE_HOUR), use_defer_many, 2)
        assert outcome == "created"

    def test_a_failed_job_can_be_retried_by_hand_after_the_hour_of_another_job(self, use_defer_many: bool) -> None:
        failed_job = make_in_state("failed", "finished")
        make_in_state("completed", ONE_HOUR)
        assert not failed_job.retry()
        self.end_time_of_key()
        assert failed_job.retry()
        assert defer_one(add_with_key(until=ONE_HOUR), use_defer_many, 2) == (failed_job.pk, "existing")

    def test_a_key_held_for_longer_than_the_retention_is_refused(self, use_defer_many: bool) -> None:
        with pytest.raises(InvalidOption, match=r"completed jobs are deleted after 1 day.*RETENTION.*completed"):
            defer_one(add_with_key(until=timedelta(days=2)), use_defer_many, 1)
        assert not Job.objects.exists()


# Races


@pytest.mark.parametrize("key_held_until", KEY_HELD_UNTIL, ids=str)
@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
@pytest.mark.parametrize("use_defer_many", [False, True], ids=["defer", "defer_many"])
def test_six_callers_that_enqueue_one_key_at_once_make_one_job(
    key_held_until: Any, on_conflict: str, use_defer_many: bool
) -> None:
    barrier, turns = threading.Barrier(6), 8

    def enqueue_in_each_turn(caller: int) -> list[tuple[int, str]]:
        ids_and_outcomes = []
        try:
            for turn in range(turns):
                keyed_task = jobs.add.using(unique_key=f"k{turn}", until=key_held_until, on_conflict=on_conflict)  # type: ignore[arg-type]
                barrier.wait()
                with transaction.atomic():
                    try:
                        ids_and_outcomes.append(defer_one(keyed_task, use_defer_many, caller))
                    except UniqueKeyTaken as error:
                        ids_and_outcomes.append((error.job_id or 0, "raised"))
            return ids_and_outcomes
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(enqueue_in_each_turn, range(6)))
    outcome_of_the_others = {"skip": "existing", "replace": "replaced", "raise": "raised"}[on_conflict]
    for turn in range(turns):
        calls_of_turn = [result[turn] for result in results]
        assert len({pk for pk, _ in calls_of_turn}) == 1
        assert sorted(outcome for _, outcome in calls_of_turn) == sorted(["created", *[outcome_of_the_others] * 5])
    assert Job.objects.count() == turns


def test_a_waiting_job_is_not_claimed_until_the_caller_that_found_it_commits(
    session: Callable[[], Session],
) -> None:
    """The job may read data that the caller has changed and not yet committed."""
    holder = add_with_key(until="started").defer(1)
    caller = session()
    caller.begin()
    assert caller(add_with_key(until="started").defer, 2).pk == holder.pk
    assert Job.objects.claim(queue_names=["default"], limit=1, worker_id="w") == []
    caller.commit()
    assert claim().pk == holder.pk


def test_two_open_transactions_can_find_the_same_waiting_job(session: Callable[[], Session]) -> None:
    holder = add_with_key(until="started").defer(1)
    first, second = session(), session()
    first.begin()
    second.begin()
    assert first(add_with_key(until="started").defer, 2).pk == holder.pk
    assert second(add_with_key(until="started").defer_many, [(3,)]) == [holder.pk]
    first.commit()
    second.commit()


@pytest.mark.parametrize("use_defer_many", [False, True], ids=["defer", "defer_many"])
def test_a_caller_that_waits_for_the_claim_of_a_job_makes_another_job(
    session: Callable[[], Session], use_defer_many: bool
) -> None:
    holder = add_with_key(until="started").defer(1)
    worker, caller = session(), session()
    worker.begin()
    worker(claim)
    id_and_outcome = caller.start(defer_one, add_with_key(until="started"), use_defer_many, 2)
    caller.wait_until_blocked()
    worker.commit()
    pk, outcome = id_and_outcome.result(20)
    assert (pk != holder.pk, outcome) == (True, "created")


@pytest.mark.parametrize("use_defer_many", [False, True], ids=["defer", "defer_many"])
def test_a_replacement_that_waits_for_the_claim_of_a_job_leaves_the_running_job(
    session: Callable[[], Session], use_defer_many: bool
) -> None:
    holder = add_with_key().defer(1)
    worker, caller = session(), session()
    worker.begin()
    worker(claim)
    id_and_outcome = caller.start(defer_one, add_with_key(on_conflict="replace"), use_defer_many, 2)
    caller.wait_until_blocked()
    worker.commit()
    assert id_and_outcome.result(20) == (holder.pk, "existing")
    assert Job.objects.get().args == [1]


def test_workers_are_notified_of_a_replaced_job_that_is_due(connect: Callable[..., Any]) -> None:
    listener = connect()
    add_with_key(run_after=ONE_HOUR).defer(1)
    listener.execute("LISTEN skipqueue")
    assert add_with_key(on_conflict="replace").defer(2).status == "queued"
    assert [notify.payload for notify in listener.notifies(timeout=5, stop_after=1)] == ["default"]


def test_concurrent_callers_and_a_worker_never_make_two_unfinished_jobs_of_one_key() -> None:
    """While callers of every kind, claims, settles and releases run at once, two unfinished jobs never hold the key."""
    stop, problems = threading.Event(), list[str]()

    def enqueue(kind: str) -> None:
        try:
            while not stop.is_set():
                with suppress(UniqueKeyTaken):
                    defer_one(add_with_key(on_conflict=kind), kind == "skip", 1)
        finally:
            connections.close_all()

    def claim_and_settle() -> None:
        try:
            for turn in range(150):
                for job in Job.objects.claim(queue_names=["default"], limit=5, worker_id="w"):
                    if Job.objects.unfinished().count() != 1:
                        problems.append(str(list(Job.objects.unfinished().values("pk", "status"))))
                    job.release() if turn % 3 == 0 else job.complete()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(enqueue, kind) for kind in ("skip", "replace", "raise")]
        pool.submit(claim_and_settle).result(60)
        stop.set()
        for caller in callers:
            caller.result(30)
    assert problems == []


# Deadlocks between callers


@pytest.fixture
def two_transactions_with_a_key(session: Callable[[], Session]) -> Iterator[tuple[Session, Session]]:
    """Two open transactions: the first has enqueued a job with the key "a", the second a job with the key "b"."""
    first, second = session(), session()
    first.begin()
    second.begin()
    first(jobs.add.using(unique_key="a").defer, 1)
    second(jobs.add.using(unique_key="b").defer, 1)
    yield first, second
    first.rollback()
    second.rollback()


@pytest.mark.parametrize("use_defer_many", [False, True], ids=["defer", "defer_many"])
@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
def test_a_deadlock_over_unique_keys_raises_an_error_with_advice(
    two_transactions_with_a_key: tuple[Session, Session], use_defer_many: bool, on_conflict: str
) -> None:
    """Each transaction waits for the other's uncommitted key. PostgreSQL ends one of them, and the other goes on."""
    first, second = two_transactions_with_a_key
    task_with_key_b = jobs.add.using(unique_key="b", on_conflict=on_conflict)  # type: ignore[arg-type]
    task_with_key_a = jobs.add.using(unique_key="a", on_conflict=on_conflict)  # type: ignore[arg-type]
    first_call = first.start(defer_one, task_with_key_b, use_defer_many, 2)
    first.wait_until_blocked()
    second_call = second.start(defer_one, task_with_key_a, use_defer_many, 2)
    ended, _ = wait([first_call, second_call], timeout=30, return_when=FIRST_EXCEPTION)
    (victim,) = [call for call in ended if call.exception()]
    error = victim.exception()
    assert isinstance(error, UniqueKeyDeadlock)
    assert "defer_many" in str(error)
    assert "on_commit" in str(error)
    loser, winner = (first, second) if victim is first_call else (second, first)
    loser.rollback()
    other_call = second_call if victim is first_call else first_call
    _, outcome = other_call.result(30)
    assert outcome == "created"
    winner.rollback()
    first.begin()
    second.begin()


def test_calls_in_the_order_of_keys_or_in_one_batch_or_on_commit_do_not_deadlock(
    session: Callable[[], Session],
) -> None:
    """There is no deadlock if callers keep the order of the keys, use defer_many, or commit between the keys."""
    first, second = session(), session()
    first.begin()
    second.begin()
    for key in ("a", "b"):
        first(jobs.add.using(unique_key=key).defer, 1)
    with_value_as_key = jobs.echo.using(unique_key=lambda value: value)
    deferred_together = second.start(with_value_as_key.defer_many, [("b",), ("a",)])
    second.wait_until_blocked()
    first.commit()
    assert deferred_together.result(20).outcomes == ["existing", "existing"]
    second.commit()
    with transaction.atomic():
        transaction.on_commit(lambda: jobs.add.using(unique_key="c").defer(1) and None)
    assert Job.objects.count() == 3


def test_a_deadlock_without_a_unique_key_is_raised_as_an_operational_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No unique key has caused this deadlock."""
    raise_deadlock = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"
    monkeypatch.setattr(enqueue, "ENQUEUE", raise_deadlock)
    with pytest.raises(OperationalError) as raised, transaction.atomic():
        jobs.add.using(run_after=timedelta(hours=1)).defer(1)
    assert raised.type is OperationalError

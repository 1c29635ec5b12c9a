"""Unique jobs as a matrix: how long a job holds its key, what an enqueue does if the key is taken, one call or many."""

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

from ..app import jobs
from ..app.rows import state
from ..app.sessions import Session
from ..harness.table import Row

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
UNTILS = ["finished", "started", HOUR]
STATES = ["scheduled", "queued", "running", "retrying", "released", "recovered", "completed", "failed", "discarded"]
MATRIX = list(product(STATES, UNTILS, [False, True]))
"""State of the holder, how long it holds its key, and whether many are enqueued at once."""


def task(until: Any = "finished", on_conflict: Any = "skip", **options: Any) -> Task[..., Any]:
    return jobs.add.using(unique_key="k", until=until, on_conflict=on_conflict, **options)


def claim() -> Job:
    (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    return job


def brought_to(name: str, until: Any) -> Job:
    """Make a job with the key, and bring it into this state as workers do."""
    holder = task(until).using(run_after=HOUR if name == "scheduled" else None).defer(1)
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


def holds(name: str, until: Any) -> bool:
    """Whether the documentation promises that the job holds its key."""
    if until == "started":
        return name in ("scheduled", "queued")
    return name not in ("completed", "failed", "discarded") or until == HOUR


def call(task: Task[..., Any], many: bool, value: int) -> tuple[int, str]:
    """Make one call by `defer` or `defer_many`. Returns the id of its job, and the outcome of the call."""
    if many:
        deferred = task.defer_many([(value,)])
        return deferred[0], deferred.outcomes[0]
    job = task.defer(value)
    return job.pk, "created" if job.created else "replaced" if job.replaced else "existing"


class TestMatrix:
    def test_an_enqueue_that_skips_returns_the_holder(self, row: Row) -> None:
        for name, until, many in MATRIX:
            with row(name=name, until=until, many=many):
                holder = brought_to(name, until)
                before = state(holder)
                found = call(task(until), many, 2)
                if holds(name, until):
                    assert found == (holder.pk, "existing")
                else:
                    assert found == (Job.objects.latest("pk").pk, "created")
                    assert found[0] != holder.pk
                assert state(Job.objects.get(pk=holder.pk)) == before

    def test_an_enqueue_that_raises_names_the_holder(self, row: Row) -> None:
        for name, until, many in MATRIX:
            with row(name=name, until=until, many=many):
                holder = brought_to(name, until)
                if not holds(name, until):
                    assert call(task(until, "raise"), many, 2)[1] == "created"
                    continue
                with pytest.raises(UniqueKeyTaken, match=f"job {holder.pk}: ") as caught:
                    call(task(until, "raise"), many, 2)
                assert (caught.value.job_id, caught.value.handle) == (holder.pk, holder.handle)
                assert Job.objects.count() == 1

    def test_an_enqueue_that_replaces_changes_a_waiting_holder(self, row: Row) -> None:
        for name, until, many in MATRIX:
            with row(name=name, until=until, many=many):
                holder = brought_to(name, until)
                waits = name in ("scheduled", "queued", "retrying", "released", "recovered")
                found = call(task(until, "replace", run_after=2 * HOUR), many, 2)
                after = Job.objects.get(pk=holder.pk)
                if not holds(name, until):
                    assert found[1] == "created"
                elif waits:
                    assert found == (holder.pk, "replaced")
                    assert (after.args, after.status) == ([2], "scheduled")
                    assert after.run_after > after.enqueued_at + HOUR
                else:
                    assert found == (holder.pk, "existing")
                if found[1] != "replaced":
                    assert state(after) == state(holder)

    def test_a_manual_retry_takes_no_key_that_is_taken(self, row: Row) -> None:
        for name, until, many in MATRIX:
            with row(name=name, until=until, many=many):
                old = brought_to("failed", "finished")
                brought_to(name, until)
                retried = Job.objects.filter(pk=old.pk).retry() if many else int(old.retry())
                assert retried == (not holds(name, until))


@pytest.mark.parametrize("until", UNTILS, ids=str)
class TestLife:
    def test_nothing_that_happens_to_a_job_collides_with_another_of_its_key(self, until: Any) -> None:
        """A job goes through claim, release, retry, recovery and failure while other jobs of the key come and go."""
        first = task(until).defer(1)
        for _ in range(3):
            claimed = claim()
            task(until).defer(2)
            claimed.release()
            for job in Job.objects.claim(queue_names=["default"], limit=9, worker_id="w"):
                task(until).defer(3)
                assert store.settle([Settlement(job.pk, job.lease, Outcome("scheduled", delay=0.0))])
            for _job in Job.objects.claim(queue_names=["default"], limit=9, worker_id="w"):
                task(until).defer(4)
            store.recover(worker_ids=["w"])
            Job.objects.filter(status="scheduled").run_now()
        while running := Job.objects.claim(queue_names=["default"], limit=9, worker_id="w"):
            for job in running:
                assert store.settle([Settlement(job.pk, job.lease, Outcome("failed"))])
        assert Job.objects.get(pk=first.pk).status == "failed"
        Job.objects.all().retry()
        Job.objects.all().cancel()
        Job.objects.all().retry()
        assert Job.objects.unfinished().count() >= 1

    def test_a_failed_job_is_retried_by_hand_if_its_key_is_free(self, until: Any) -> None:
        old = brought_to("failed", until)
        assert old.retry()
        assert task(until).defer(2).created == (until == "started")

    def test_many_calls_in_one_batch(self, until: Any) -> None:
        by_value = jobs.add.using(unique_key=lambda a, b=0: f"k{a}", until=until)
        held = by_value.defer(1)
        deferred = by_value.defer_many([(1, 5), (2, 1), (3,), (2, 2)])
        assert deferred.outcomes == ["existing", "created", "created", "existing"]
        assert deferred == [held.pk, deferred[1], deferred[2], deferred[1]]
        assert (deferred.created, deferred.existing) == ([deferred[1], deferred[2]], [held.pk, deferred[1]])
        replaced = by_value.using(on_conflict="replace").defer_many([(1, 6), (4, 1), (1, 7), (4, 2)])
        assert replaced.outcomes == ["existing", "existing", "replaced", "created"]
        assert replaced.replaced == [held.pk]
        assert Job.objects.get(pk=held.pk).args == [1, 7], "the newest arguments"
        assert Job.objects.get(pk=replaced[3]).args == [4, 2]

    def test_a_batch_that_raises_has_written_nothing(self, until: Any) -> None:
        by_value = jobs.add.using(unique_key=lambda a, b=0: f"k{a}", until=until, on_conflict="raise")
        assert by_value.defer_many([(1,), (2,)]).outcomes == ["created", "created"]
        with pytest.raises(UniqueKeyTaken, match="Nothing was written"):
            by_value.defer_many([(5,), (2,), (6,)])
        with pytest.raises(UniqueKeyTaken, match="call 2: call 0 has the same unique key"):
            by_value.defer_many([(7,), (8,), (7,)])
        assert Job.objects.count() == 2


@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
class TestWindow:
    def over(self) -> None:
        """Move the enqueue of every job into the past, so that the time of its key is over."""
        Job.objects.update(enqueued_at=Job.objects.first().enqueued_at - 2 * HOUR)  # type: ignore[union-attr]

    @pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
    def test_the_key_is_free_after_the_time(self, many: bool, on_conflict: str) -> None:
        holder = brought_to("completed", HOUR)
        self.over()
        pk, outcome = call(task(HOUR, on_conflict), many, 2)
        assert outcome == "created"
        assert pk != holder.pk
        assert call(task(HOUR), many, 3) == (pk, "existing")

    def test_an_unfinished_job_keeps_its_key_after_the_time(self, many: bool) -> None:
        holder = brought_to("running", HOUR)
        self.over()
        assert call(task(HOUR), many, 2) == (holder.pk, "existing")

    def test_any_other_enqueue_respects_the_key(self, many: bool) -> None:
        holder = brought_to("completed", HOUR)
        assert call(task("finished"), many, 2) == (holder.pk, "existing")
        assert call(task("started"), many, 2) == (holder.pk, "existing")

    def test_a_deleted_job_holds_no_key(self, many: bool) -> None:
        brought_to("completed", HOUR).delete()
        assert call(task(HOUR), many, 2)[1] == "created"

    def test_a_retry_by_hand_is_possible_after_the_time_of_another_jobs_key(self, many: bool) -> None:
        old = brought_to("failed", "finished")
        brought_to("completed", HOUR)
        assert not old.retry()
        self.over()
        assert old.retry()
        assert call(task(HOUR), many, 2) == (old.pk, "existing")

    def test_a_time_beyond_the_retention_is_refused(self, many: bool) -> None:
        with pytest.raises(InvalidOption, match=r"completed jobs are deleted after 1 day.*RETENTION.*completed"):
            call(task(timedelta(days=2)), many, 1)
        assert not Job.objects.exists()


# Races


@pytest.mark.parametrize("until", UNTILS, ids=str)
@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
def test_callers_that_race_for_a_key_make_one_job(until: Any, on_conflict: str, many: bool) -> None:
    together, turns = threading.Barrier(6), 8

    def race(caller: int) -> list[tuple[int, str]]:
        found = []
        try:
            for turn in range(turns):
                keyed = jobs.add.using(unique_key=f"k{turn}", until=until, on_conflict=on_conflict)  # type: ignore[arg-type]
                together.wait()
                with transaction.atomic():
                    try:
                        found.append(call(keyed, many, caller))
                    except UniqueKeyTaken as error:
                        found.append((error.job_id or 0, "raised"))
            return found
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(race, range(6)))
    other = {"skip": "existing", "replace": "replaced", "raise": "raised"}[on_conflict]
    for turn in range(turns):
        found = [result[turn] for result in results]
        assert len({pk for pk, _ in found}) == 1
        assert sorted(outcome for _, outcome in found) == sorted(["created", *[other] * 5])
    assert Job.objects.count() == turns


def test_a_unique_job_starts_only_after_its_finder_commits(
    session: Callable[[], Session],
) -> None:
    """The caller has changed data that the job reads, and relies on the waiting job."""
    holder = task("started").defer(1)
    caller = session()
    caller.begin()
    assert caller(task("started").defer, 2).pk == holder.pk
    assert Job.objects.claim(queue_names=["default"], limit=1, worker_id="w") == []
    caller.commit()
    assert claim().pk == holder.pk


def test_callers_who_rely_on_the_same_waiting_job_do_not_wait_for_each_other(session: Callable[[], Session]) -> None:
    holder = task("started").defer(1)
    one, two = session(), session()
    one.begin()
    two.begin()
    assert one(task("started").defer, 2).pk == holder.pk
    assert two(task("started").defer_many, [(3,)]) == [holder.pk]
    one.commit()
    two.commit()


@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
def test_a_caller_that_meets_the_claim_of_the_waiting_job_makes_another_job(
    session: Callable[[], Session], many: bool
) -> None:
    holder = task("started").defer(1)
    worker, caller = session(), session()
    worker.begin()
    worker(claim)
    found = caller.start(call, task("started"), many, 2)
    caller.wait_until_blocked()
    worker.commit()
    pk, outcome = found.result(20)
    assert (pk != holder.pk, outcome) == (True, "created")


@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
def test_a_replacement_that_meets_the_claim_leaves_the_running_job(session: Callable[[], Session], many: bool) -> None:
    holder = task().defer(1)
    worker, caller = session(), session()
    worker.begin()
    worker(claim)
    found = caller.start(call, task(on_conflict="replace"), many, 2)
    caller.wait_until_blocked()
    worker.commit()
    assert found.result(20) == (holder.pk, "existing")
    assert Job.objects.get().args == [1]


def test_workers_are_notified_of_a_replaced_job_that_is_due(connect: Callable[..., Any]) -> None:
    listener = connect()
    task(run_after=HOUR).defer(1)
    listener.execute("LISTEN skipqueue")
    assert task(on_conflict="replace").defer(2).status == "queued"
    assert [notify.payload for notify in listener.notifies(timeout=5, stop_after=1)] == ["default"]


def test_a_storm_of_callers_never_runs_two_jobs_of_one_key() -> None:
    """Callers of every kind, claims, settles and releases at once: at no time do two unfinished jobs hold the key."""
    stop, problems = threading.Event(), list[str]()

    def enqueue(kind: str) -> None:
        try:
            while not stop.is_set():
                with suppress(UniqueKeyTaken):
                    call(task(on_conflict=kind), kind == "skip", 1)
        finally:
            connections.close_all()

    def work() -> None:
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
        pool.submit(work).result(60)
        stop.set()
        for caller in callers:
            caller.result(30)
    assert problems == []


# Deadlocks


@pytest.fixture
def opposed(session: Callable[[], Session]) -> Iterator[tuple[Session, Session]]:
    """Two transactions, each of which has enqueued a key that the other transaction will ask for."""
    one, two = session(), session()
    one.begin()
    two.begin()
    one(jobs.add.using(unique_key="a").defer, 1)
    two(jobs.add.using(unique_key="b").defer, 1)
    yield one, two
    one.rollback()
    two.rollback()


@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
def test_the_victim_of_a_deadlock_gets_a_clear_error(
    opposed: tuple[Session, Session], many: bool, on_conflict: str
) -> None:
    """Each transaction waits for the other's uncommitted key. PostgreSQL ends one of them, and the other goes on."""
    one, two = opposed
    for_b = jobs.add.using(unique_key="b", on_conflict=on_conflict)  # type: ignore[arg-type]
    for_a = jobs.add.using(unique_key="a", on_conflict=on_conflict)  # type: ignore[arg-type]
    first = one.start(call, for_b, many, 2)
    one.wait_until_blocked()
    second = two.start(call, for_a, many, 2)
    ended, _ = wait([first, second], timeout=30, return_when=FIRST_EXCEPTION)
    (victim,) = [each for each in ended if each.exception()]
    error = victim.exception()
    assert isinstance(error, UniqueKeyDeadlock)
    assert "defer_many" in str(error)
    assert "on_commit" in str(error)
    loser, winner = (one, two) if victim is first else (two, one)
    loser.rollback()
    assert (second if victim is first else first).result(30)[1] == "created", "the other goes on"
    winner.rollback()
    one.begin()
    two.begin()


def test_three_ways_avoid_the_deadlock(session: Callable[[], Session]) -> None:
    """There is no deadlock if callers keep the order of the keys, use defer_many, or commit between the keys."""
    one, two = session(), session()
    one.begin()
    two.begin()
    for key in ("a", "b"):
        one(jobs.add.using(unique_key=key).defer, 1)
    by_value = jobs.echo.using(unique_key=lambda value: value)
    found = two.start(by_value.defer_many, [("b",), ("a",)])
    two.wait_until_blocked()
    one.commit()
    assert found.result(20).outcomes == ["existing", "existing"]
    two.commit()
    with transaction.atomic():
        transaction.on_commit(lambda: jobs.add.using(unique_key="c").defer(1) and None)
    assert Job.objects.count() == 3


def test_a_deadlock_without_a_unique_key_stays_an_error_of_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    """No unique key has caused this deadlock."""
    deadlock = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"
    monkeypatch.setattr(enqueue, "ENQUEUE", deadlock)
    with pytest.raises(OperationalError) as raised, transaction.atomic():
        jobs.add.using(run_after=timedelta(hours=1)).defer(1)
    assert raised.type is OperationalError

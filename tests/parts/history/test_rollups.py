"""Roll-ups in the database: workers and supervisors write them, and supervisors prune them."""

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models import Sum
from django.db.models.functions import Now

from django_skipqueue.events.events import AttemptsCompleted, AttemptsFailed
from django_skipqueue.models import FailureRollUp, Job, RollUp, RollUpProgress
from django_skipqueue.parts.history.models import Span
from django_skipqueue.parts.history.rollups import (
    PRUNE_GRACE_SECONDS,
    CountEnqueued,
    PruneRollUps,
    RollUpTally,
    SampleDepths,
    WriteRollUps,
    count_enqueued,
    depths_are_due,
    prune_rollups,
    roll_up,
    roll_up_depths,
    start_counting,
)
from django_skipqueue.queue.observe import queues_now
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import PruneJobs
from django_skipqueue.values.bounds import DAY_SECONDS
from django_skipqueue.worker.protocol import EXIT_CLEAN

from ...app import jobs
from ...app.rows import make_job
from ...app.sessions import Session
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, wait_for_statuses
from ...harness.threads import WorkerThread
from .test_tally import NOON, attempt, failed_attempt

StartWorker = Callable[..., WorkerThread]

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")


def total_outcomes(**filters: Any) -> dict[str, int]:
    """The outcomes counted for all queues since the beginning, without zeros."""
    columns = ("enqueued", "completed", "retried", "snoozed", "failed", "discarded", "recovered", "lost")
    filters = {"span": Span.EVER, "queue_name": "", "task": ""} | filters
    sums = RollUp.objects.filter(**filters).aggregate(**{name: Sum(name) for name in columns})
    return {name: number for name, number in sums.items() if number}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


WRITES_OFTEN = (
    "import django_skipqueue.parts.history.rollups\n\ndjango_skipqueue.parts.history.rollups.WRITE_INTERVAL = 0.2\n"
)
"""A module of tasks, without a task. With it, a worker writes its counts five times a second."""


def write_tally(tally: RollUpTally) -> None:
    roll_up(store, *tally.take())


def test_counts_are_added_and_never_replaced() -> None:
    for number in (1, 2):
        tally = RollUpTally()
        tally.ended(AttemptsCompleted, [attempt()] * number)
        tally.ended(AttemptsFailed, [failed_attempt()] * number)
        write_tally(tally)
    for span in Span:
        rollup = RollUp.objects.get(span=span, queue_name="q", task="t")
        assert (rollup.completed, rollup.failed) == (3, 3)
        assert sum(rollup.ran or []) == sum(rollup.waited or []) == 6
        assert (rollup.waited_seconds, rollup.ran_seconds) == (24.0, 12.0)
        failure = FailureRollUp.objects.get(span=span)
        assert (failure.task, failure.place, failure.number, failure.last_line) == ("t", "shop.send", 3, 12)
        assert failure.last_at.timestamp() == NOON + 6


def test_a_worker_writes_what_it_has_counted_before_it_ends(worker_thread: StartWorker) -> None:
    jobs.add.defer_many([(number, number) for number in range(20)])
    jobs.fail.using(queue_name="mail").defer()
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert total_outcomes() == {"completed": 20, "retried": 2, "failed": 1}
    assert total_outcomes(queue_name="mail") == {"retried": 2, "failed": 1}
    rollup_of_all_queues = RollUp.objects.get(span=Span.HOUR, queue_name="", task="")
    assert sum(rollup_of_all_queues.ran or []) == 23
    assert rollup_of_all_queues.claims > 0
    assert sum(rollup_of_all_queues.claim_times or []) == rollup_of_all_queues.claims
    failure = FailureRollUp.objects.get(span=Span.EVER)
    assert failure.task == "tests.app.jobs.fail"
    assert failure.place == "tests.app.jobs.fail"
    assert failure.last_job_id == Job.objects.failed().get().pk
    error = Job.objects.failed().get().errors[-1]
    assert (error["place"], error["line"]) == (failure.place, failure.last_line)


def test_a_worker_that_is_killed_loses_one_interval_at_most(runworker: Callable[..., ManagePy]) -> None:
    worker = runworker(jobs=WRITES_OFTEN)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    wait_until(lambda: total_outcomes() == {"completed": 1}, "the first job is counted")
    worker.send_to_group(signal.SIGKILL)
    assert total_outcomes() == {"completed": 1}


def test_the_supervisor_counts_recovered_jobs(runworker: Callable[..., ManagePy]) -> None:
    runworker(jobs=WRITES_OFTEN)
    jobs.record_and_die.defer("recovered")
    wait_for_statuses(completed=1)
    wait_until(lambda: total_outcomes() == {"recovered": 1, "completed": 1}, "both are counted")


def test_counts_that_cannot_be_written_are_kept(session: Callable[[], Session]) -> None:
    tally = RollUpTally()
    service = WriteRollUps(store, tally)
    tally.ended(AttemptsCompleted, [attempt()])
    other_session = session()
    other_session.begin()
    other_session(execute, "LOCK TABLE skipqueue_rollup IN EXCLUSIVE MODE")
    with pytest.raises(OperationalError, match="lock timeout"):
        service.run(time.monotonic())
    tally.ended(AttemptsCompleted, [attempt()])
    other_session.commit()
    service.run(time.monotonic())
    assert total_outcomes() == {"completed": 2}


def test_counts_that_the_database_refuses_are_dropped() -> None:
    tally = RollUpTally()
    service = WriteRollUps(store, tally)
    tally.ended(AttemptsCompleted, [attempt(task="\0")])
    with pytest.raises(Exception, match="Unicode") as raised:
        service.run(time.monotonic())
    service.refused(raised.value)
    tally.ended(AttemptsCompleted, [attempt()])
    service.run(time.monotonic())
    assert total_outcomes() == {"completed": 1}


@pytest.mark.parametrize(
    "statement",
    [
        partial(start_counting, store),
        partial(count_enqueued, store, interval=0.0),
        partial(depths_are_due, store),
        partial(roll_up_depths, store, []),
        partial(prune_rollups, store, {0: DAY_SECONDS}),
    ],
    ids=lambda statement: statement.func.__name__,
)
def test_no_statement_waits_long_for_a_lock(statement: Callable[[], object], session: Callable[[], Session]) -> None:
    start_counting(store)
    jobs.noop.defer()
    RollUpProgress.objects.update(ready_xid=0, ready_to=2**62)  # so that all jobs are ready to be counted
    execute("SET statement_timeout = '5s'")
    other_session = session()
    other_session.begin()
    other_session(execute, "LOCK TABLE skipqueue_rollup, skipqueue_rollup_progress IN ACCESS EXCLUSIVE MODE")
    try:
        with pytest.raises(OperationalError, match="lock timeout"):
            statement()
    finally:
        other_session.rollback()
        execute("RESET statement_timeout")


def test_no_statement_is_sent_if_nothing_was_counted(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        WriteRollUps(store, RollUpTally()).run(time.monotonic())


# Counting of enqueued jobs


def count_new_jobs(times: int = 3) -> None:
    """Count the enqueued jobs this number of times, as if an interval had passed between two runs."""
    start_counting(store)
    for _ in range(times):
        while count_enqueued(store, interval=0.0):
            pass


def count_until(number: int) -> None:
    """Count until this number of jobs is counted: counting waits for transactions in all databases of the server."""

    def is_counted() -> bool:
        count_new_jobs(1)
        return total_outcomes().get("enqueued") == number

    wait_until(is_counted, f"{number} jobs are counted")


def test_enqueued_jobs_are_counted_by_task_queue_and_the_minute_of_their_insert() -> None:
    count_new_jobs()
    jobs.noop.defer()
    jobs.add.using(queue_name="mail").defer_many([(1, 1), (2, 2)])
    old_job = jobs.noop.defer()
    Job.objects.filter(pk=old_job.pk).update(enqueued_at=Now() - timedelta(hours=2))
    assert total_outcomes() == {}
    count_until(4)
    assert total_outcomes(queue_name="mail", task="tests.app.jobs.add") == {"enqueued": 2}
    assert RollUp.objects.filter(span=Span.HOUR, queue_name="", task="").count() == 2
    count_new_jobs()
    assert total_outcomes() == {"enqueued": 4}, "none is counted twice"


def test_a_supervisor_prunes_no_job_before_it_is_counted(settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    count_new_jobs()
    job, job_with_retention = jobs.noop.defer(), jobs.noop.defer()
    Job.objects.filter(pk=job_with_retention.pk).update(retention={"completed": 0})
    Job.objects.update(status="completed", finished_at=Now())
    pruning = PruneJobs(store)
    pruning.run(time.monotonic())
    count_until(2)
    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk, job_with_retention.pk}
    Job.objects.update(finished_at=Now() - timedelta(seconds=PRUNE_GRACE_SECONDS + 1))
    pruning.run(time.monotonic())
    assert not Job.objects.exists()


def test_jobs_from_before_the_beginning_are_not_counted() -> None:
    jobs.noop.defer()
    count_new_jobs()
    assert total_outcomes() == {}


def test_a_job_that_is_committed_late_is_counted(session: Callable[[], Session]) -> None:
    count_new_jobs()
    late_session = session()
    late_session.begin()
    late_session(jobs.noop.defer)
    jobs.noop.defer()  # this job has a higher id, and is committed first
    count_new_jobs(5)
    assert total_outcomes() == {}, "both wait for the older transaction"
    late_session.commit()
    count_until(2)


def test_the_count_does_not_wait_for_a_transaction_that_takes_too_long(session: Callable[[], Session]) -> None:
    count_new_jobs()
    late_session = session()
    late_session.begin()
    late_session(jobs.noop.defer)
    jobs.noop.defer()
    count_new_jobs(5)

    def is_counted() -> bool:
        RollUpProgress.objects.update(ready_at=Now() - timedelta(seconds=61))
        count_new_jobs(1)
        return total_outcomes() == {"enqueued": 1}

    wait_until(is_counted, "the other job is counted")
    late_session.commit()
    jobs.noop.defer()
    count_until(2)
    assert total_outcomes() == {"enqueued": 2}, "without the job that was committed too late"


def test_many_jobs_are_counted_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.parts.history.rollups.MOST_ENQUEUED_COUNTED", 7)
    count_new_jobs()
    jobs.add.defer_many([(number, number) for number in range(30)])
    count_until(30)


def test_jobs_behind_a_large_gap_in_the_ids_are_counted_at_once() -> None:
    count_new_jobs()
    jobs.noop.defer()
    make_job(pk=2**62)

    def is_counted() -> bool:
        has_more = count_enqueued(store, interval=0.0)
        assert not has_more, "two jobs take one step"
        return total_outcomes() == {"enqueued": 2}

    wait_until(is_counted, "both are counted")


def test_jobs_are_counted_after_the_sequence_of_ids_was_reset() -> None:
    count_new_jobs()
    RollUpProgress.objects.update(counted_to=10**12, ready_to=10**12, seen_to=10**12)  # far above the new ids
    jobs.noop.defer()

    def has_noticed() -> bool:
        count_new_jobs(1)
        return RollUpProgress.objects.get().counted_to < 10**12

    wait_until(has_noticed, "the ids are known to be low again")
    jobs.noop.defer()
    count_until(1)


def test_only_one_of_two_supervisors_counts_enqueued_jobs(session: Callable[[], Session]) -> None:
    count_new_jobs()
    jobs.noop.defer()
    RollUpProgress.objects.update(ready_xid=0, ready_to=9, seen_to=9)  # so that the job is ready to be counted
    other_session = session()
    other_session.begin()
    other_session(execute, "SELECT FROM skipqueue_rollup_progress FOR UPDATE")
    assert not count_enqueued(store, interval=0.0)
    other_session.commit()
    assert total_outcomes() == {}
    assert not count_enqueued(store, interval=3600.0), "it is not time yet"
    assert total_outcomes() == {}
    count_until(1)


def test_the_service_counts_what_a_supervisor_sees() -> None:
    service = CountEnqueued(store)
    service.run(time.monotonic())
    jobs.noop.defer()

    def is_counted() -> bool:
        RollUpProgress.objects.update(changed_at=Now() - timedelta(minutes=1))
        service.run(time.monotonic())
        return total_outcomes() == {"enqueued": 1}

    wait_until(is_counted, "the job is counted")
    assert service.due_at > time.monotonic()


# Depths of queues


def test_the_depths_of_queues_are_written_once_a_minute() -> None:
    make_job(queue_name="mail", run_after=timedelta(seconds=-100))
    make_job(queue_name="mail")
    make_job(queue_name="reports")
    service = SampleDepths(store)
    service.run(time.monotonic())
    Job.objects.all().delete()
    service.run(time.monotonic())
    depths = {row.queue_name: row.depth for row in RollUp.objects.filter(span=Span.HOUR, task="")}
    assert depths == {"": 3, "mail": 2, "reports": 1}
    mail = RollUp.objects.get(span=Span.MINUTE, queue_name="mail")
    assert mail.oldest_seconds == pytest.approx(100, abs=20)
    assert not RollUp.objects.filter(span=Span.EVER).exists()


def test_the_row_of_an_hour_keeps_the_greatest_depth() -> None:
    make_job(queue_name="mail")
    for _ in range(2):
        roll_up_depths(store, queues_now(store))
        Job.objects.all().delete()
    assert RollUp.objects.get(span=Span.HOUR, queue_name="").depth == 1


# Pruning of roll-ups


def test_old_roll_ups_are_deleted_by_their_span() -> None:
    tally = RollUpTally()
    tally.ended(AttemptsCompleted, [attempt()])
    tally.ended(AttemptsFailed, [failed_attempt()])
    write_tally(tally)
    service = PruneRollUps(store)
    service.run(time.monotonic())
    assert RollUp.objects.count() == 9, "three spans of the task, of its queue, and of all queues"
    for days, spans_left in ((4, {0, 3600}), (91, set[int]())):
        RollUp.objects.exclude(span=Span.EVER).update(starts_at=Now() - timedelta(days=days))
        RollUp.objects.update(changed_at=Now() - timedelta(days=days))
        FailureRollUp.objects.exclude(span=Span.EVER).update(starts_at=Now() - timedelta(days=days))
        FailureRollUp.objects.update(last_at=Now() - timedelta(days=days))
        service.run(time.monotonic())
        assert set(RollUp.objects.values_list("span", flat=True)) == spans_left
        assert set(FailureRollUp.objects.values_list("span", flat=True)) == spans_left
    assert service.due_at > time.monotonic()


def test_pruning_goes_on_while_batches_are_full() -> None:
    tally = RollUpTally()
    tally.ended(AttemptsCompleted, [attempt()])
    write_tally(tally)
    RollUp.objects.update(starts_at=Now() - timedelta(days=4), changed_at=Now() - timedelta(days=4))
    assert prune_rollups(store, {60: 3 * DAY_SECONDS}, limit=2)
    assert not prune_rollups(store, {60: 3 * DAY_SECONDS}, limit=2)
    assert not RollUp.objects.filter(span=60).exists()

"""`observe` counts the jobs that are in the queues now, with a few index probes."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console import queues_and_workers
from django_skipqueue.console.queues_and_workers import blocked_now, estimated_blocked
from django_skipqueue.models import Job
from django_skipqueue.queue import observe
from django_skipqueue.queue.observe import held_now, queues_now
from django_skipqueue.queue.session import short_transaction
from django_skipqueue.queue.store import Store

from ..app.rows import make_job, make_worker, multiply

pytestmark = pytest.mark.django_db

store = Store("default")


def test_queues_now_has_the_depth_the_longest_wait_and_the_running_jobs_of_a_queue() -> None:
    make_job(queue_name="mail", priority=10, run_after=timedelta(seconds=-5))
    make_job(queue_name="mail", priority=-10, run_after=timedelta(seconds=-90))
    make_job("running", queue_name="mail", locked_at=timedelta(seconds=-30))
    make_job("running", queue_name="reports", locked_at=timedelta(seconds=-300))
    make_job("scheduled", queue_name="later")
    make_job("failed", queue_name="gone")
    mail, reports = queues_now(store)
    assert (mail.name, mail.queued, mail.is_estimate, mail.running) == ("mail", 2, False, 1)
    assert mail.oldest is not None
    assert 90 <= mail.oldest < 120, "the job of low priority waits longest"
    assert mail.longest is not None
    assert 30 <= mail.longest < 60
    assert (reports.name, reports.queued, reports.oldest, reports.running) == ("reports", 0, None, 1)


def test_an_empty_table_has_no_queues() -> None:
    assert queues_now(store) == []


def test_queues_come_in_alphabetical_order_whatever_their_priorities() -> None:
    for name, priority in (("b", 5), ("a", -5), ("b", -5), ("c", 100), ("a", 5)):
        make_job(queue_name=name, priority=priority)
    assert [(queue.name, queue.queued) for queue in queues_now(store)] == [("a", 2), ("b", 2), ("c", 1)]


@pytest.mark.parametrize(("most_counted", "is_estimate"), [(300, False), (299, True)])
def test_a_long_queue_is_estimated_from_the_statistics(most_counted: int, is_estimate: bool) -> None:
    Job.objects.bulk_create(Job(queue_name="long", task="t", status="queued") for _ in range(300))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE skipqueue_job")
    (queue,) = queues_now(store, most=most_counted)
    assert queue.is_estimate is is_estimate
    assert 290 <= queue.queued <= 310  # exact, or as the planner estimates


def test_with_many_queues_fewer_jobs_of_each_queue_are_counted() -> None:
    for name, number in (("a", 9), ("b", 12), ("c", 20)):
        Job.objects.bulk_create(Job(queue_name=name, task="t", status="queued") for _ in range(number))
    # At most `together` jobs of all queues are counted, but always `least` jobs of each queue.
    for together, least, estimated_queues in ((33, 5, {"b", "c"}), (3, 12, {"c"}), (90, 5, set())):
        queues = queues_now(store, together=together, least=least)
        assert {queue.name for queue in queues if queue.is_estimate} == estimated_queues


def test_the_running_jobs_of_queues_are_estimated_from_the_first_running_jobs() -> None:
    for name, number, minutes in (("a", 300, -2), ("b", 100, -2), ("a", 200, -1)):
        multiply(make_job("running", queue_name=name, locked_at=timedelta(minutes=minutes)), number - 1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE skipqueue_job")
    assert [(queue.name, queue.running) for queue in queues_now(store, most_running=601)] == [("a", 500), ("b", 100)]
    queue_a, queue_b = queues_now(store, most_running=400)
    # Of the 400 oldest jobs, 300 are of queue a: the 600 jobs are divided in this proportion.
    assert [queue_a.running, queue_b.running] == pytest.approx([450, 150], rel=0.05)
    assert queue_a.longest == pytest.approx(120, abs=30)


def test_blocked_jobs_are_counted_by_queue_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mail", "mail", "reports"):
        make_job("blocked", queue_name=name)
    assert blocked_now(store) == ({"mail": 2, "reports": 1}, False)
    monkeypatch.setattr(queues_and_workers, "MOST_BLOCKED", 1)
    assert blocked_now(store) == ({"mail": 2}, True), "there are more than it may count"


def test_many_blocked_jobs_are_estimated() -> None:
    multiply(make_job("blocked", queue_name="a"), 299)
    make_job("blocked", queue_name="b")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE skipqueue_job")
    assert estimated_blocked(store, most=302) == {"a": 300, "b": 1}
    assert estimated_blocked(store, most=100) == {"a": pytest.approx(301, rel=0.05)}


def test_estimated_running_jobs_are_never_below_the_counted_ones() -> None:
    multiply(make_job("running", queue_name="new"), 49)
    (queue,) = queues_now(store, most_running=20)
    assert queue.running >= 20


def test_estimated_queued_jobs_are_never_below_the_counted_ones() -> None:
    Job.objects.bulk_create(Job(queue_name="new", task="t", status="queued") for _ in range(50))
    (queue,) = queues_now(store, most=20)
    assert queue.is_estimate
    assert queue.queued >= 21


def test_only_the_long_queues_with_the_longest_wait_are_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observe, "MOST_ESTIMATED", 2)
    for number in range(5):
        for _ in range(2):
            make_job(queue_name=f"q{number}", run_after=timedelta(hours=-number))
    with CaptureQueriesContext(connection) as queries:
        queues_found = queues_now(store, most=1)
    estimates = [query["sql"] for query in queries if "EXPLAIN" in query["sql"]]
    queues_estimated = [
        name for name in ("q0", "q1", "q2", "q3", "q4") if any(f"'{name}'" in statement for statement in estimates)
    ]
    assert queues_estimated == ["q3", "q4"], "their jobs have waited longest"
    assert [(queue.name, queue.queued >= 2, queue.is_estimate) for queue in queues_found] == [
        (f"q{number}", True, True) for number in range(5)
    ]


def test_the_jobs_of_all_workers_are_read_in_one_statement() -> None:
    worker, other_worker = make_worker(), make_worker()
    jobs_of_worker = [make_job("running", task=task, locked_by=worker.pk) for task in ("a", "b", "a")]
    job_of_other_worker = make_job("running", task="c", locked_by=other_worker.pk, locked_at=timedelta(minutes=-1))
    make_job(locked_by=other_worker.pk)
    held_jobs = held_now(store, shown=2)
    assert held_jobs.keys() == {worker.pk, other_worker.pk}
    assert held_jobs[worker.pk].tasks == {"a": 2, "b": 1}
    assert [job["id"] for job in held_jobs[worker.pk].jobs] == [jobs_of_worker[0].pk, jobs_of_worker[1].pk]
    assert [(job["id"], job["task"]) for job in held_jobs[other_worker.pk].jobs] == [(job_of_other_worker.pk, "c")]


def test_short_transactions_forbid_sequential_scans_and_have_a_timeout() -> None:
    with CaptureQueriesContext(connection), short_transaction(store, 5), connection.cursor() as cursor:
        setting_values = []
        for name in ("statement_timeout", "jit", "enable_seqscan", "max_parallel_workers_per_gather"):
            cursor.execute(f"SHOW {name}")
            setting_values += cursor.fetchone()
    assert setting_values == ["5s", "off", "off", "0"]
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_seqscan")
        assert cursor.fetchone() == ("on",)


def test_a_savepoint_whose_rollback_was_cancelled_is_rolled_back_again() -> None:
    rollbacks = []

    def slow_down_first_rollback(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        if sql.startswith("ROLLBACK TO"):
            rollbacks.append(sql)
            if len(rollbacks) == 1:
                sql = "SELECT pg_sleep(20)"  # the statement timeout cancels it, as it would cancel a slow rollback
        return execute(sql, *arguments)

    with connection.execute_wrapper(slow_down_first_rollback), short_transaction(store, 0.1):
        make_job()
    assert not Job.objects.exists()
    assert len(rollbacks) == 2

"""`unique_key`: while a job with a key is not finished, no caller can enqueue a second job with the key."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement

from ...app import jobs
from ...app.rows import FINISHED, UNFINISHED, make_job, state
from ...app.sessions import Session
from ...app.unique.jobs import send_once
from ...app.waiting import within

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


def defer(key: str | Callable[..., str] = "k", payload: int = 1) -> Job:
    return jobs.add.using(unique_key=key).defer(payload)


@pytest.mark.parametrize("status", UNFINISHED)
def test_an_unfinished_job_with_the_key_is_returned_as_it_is(status: str) -> None:
    holder = make_job(status, unique_key="k", task="another task", queue_name="q", args=[5])
    returned = defer()
    assert returned.created is False
    assert {name: getattr(returned, name) for name in state(holder)} == state(holder)
    assert Job.objects.count() == 1


@pytest.mark.parametrize("status", FINISHED)
def test_a_finished_job_holds_no_key(status: str) -> None:
    holder = make_job(status, unique_key="k")
    job = defer()
    assert job.created is True
    assert job.pk != holder.pk


def test_jobs_without_a_unique_key_never_conflict() -> None:
    assert jobs.noop.defer().created
    assert jobs.noop.defer().created


def test_a_unique_key_is_shared_by_all_tasks_and_queues() -> None:
    first = jobs.noop.using(unique_key="k", queue_name="a").defer()
    assert jobs.add.using(unique_key="k", queue_name="b").defer(1).pk == first.pk


def test_a_unique_key_may_be_computed_from_the_arguments() -> None:
    first, second, other_payment = (send_once.defer(payment_id=number) for number in (1, 1, 2))
    assert (first.created, second.created, other_payment.created) == (True, False, True)
    assert second.pk == first.pk
    assert first.unique_key == "mail-1"
    assert send_once.using(unique_key="another").defer(payment_id=1).unique_key == "another"


@pytest.mark.parametrize("key", ["", " ", "Łódź 🐘", "{a,b}", "NULL", "a\\b", '"', "k" * 1000, "%s"], ids=ascii)
def test_unique_keys_may_contain_any_characters(key: str) -> None:
    first, second = defer(key), defer(key)
    (third_id,) = jobs.add.using(unique_key=key).defer_many([(1,)])
    assert (second.pk, third_id, first.unique_key, second.created) == (first.pk, first.pk, key, False)


def test_defer_many_makes_one_job_for_each_key_and_returns_it_for_each_call() -> None:
    holder = defer("key-3")
    task = jobs.add.using(unique_key=lambda a: f"key-{a}")
    ids = task.defer_many([(1,), (2,), (1,), (3,), (2,), (4,)])
    assert ids[0] == ids[2]
    assert ids[1] == ids[4]
    assert ids[3] == holder.pk
    assert len(set(ids)) == 4
    assert [Job.objects.get(pk=id).args for id in ids] == [[1], [2], [1], [1], [2], [4]]
    assert Job.objects.count() == 4
    assert task.defer_many([(4,), (1,)]) == [ids[5], ids[0]]


def test_defer_many_with_one_key_makes_one_job() -> None:
    ids = jobs.add.using(unique_key="k").defer_many([(number,) for number in range(10)])
    assert len(set(ids)) == 1
    assert Job.objects.get().args == [0], "the first call wins"


def test_defer_many_with_taken_keys_sends_two_statements() -> None:
    jobs.add.using(unique_key=lambda a: f"key-{a}").defer_many([(number,) for number in range(0, 100, 2)])
    with CaptureQueriesContext(connection) as queries:
        ids = jobs.add.using(unique_key=lambda a: f"key-{a}").defer_many([(number,) for number in range(100)])
    assert len([query for query in queries if "pg_notify" not in query["sql"]]) == 2
    assert len(set(ids)) == 100


def test_a_job_of_an_open_transaction_holds_its_key_within_the_transaction() -> None:
    with transaction.atomic():
        first = defer()
        assert defer().pk == first.pk
        transaction.set_rollback(True)
    assert defer().created


def test_threads_that_defer_one_key_at_the_same_moment_make_one_job() -> None:
    barrier = threading.Barrier(8)

    def defer_at_once(_: int) -> list[tuple[int, bool]]:
        try:
            ids_and_created = []
            for turn in range(20):
                barrier.wait()
                job = defer(f"key-{turn}")
                ids_and_created.append((job.pk, job.created))
            return ids_and_created
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(defer_at_once, range(8)))
    for turn in range(20):
        results_of_turn = [ids_and_created[turn] for ids_and_created in results]
        assert len({id for id, _ in results_of_turn}) == 1, "every caller got this one job"
        assert sum(created for _, created in results_of_turn) == 1, "one of the callers made the job"
    assert Job.objects.count() == 20


def test_batches_that_race_for_the_same_keys_make_one_job_each() -> None:
    barrier = threading.Barrier(4)
    task = jobs.add.using(unique_key=lambda a: f"key-{a % 100}")

    def defer_at_once(start: int) -> list[int]:
        try:
            barrier.wait()
            return task.defer_many([(number,) for number in range(300)])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(defer_at_once, range(4)))
    assert Job.objects.count() == 100
    assert all(ids == results[0] for ids in results)


def test_a_defer_waits_for_the_transaction_that_is_making_the_job(session: Callable[[], Session]) -> None:
    other_session = session()
    other_session.begin()
    job_of_other = other_session(defer)
    waiting_session = session()
    waiting_call = waiting_session.start(defer)
    waiting_session.wait_until_blocked()
    other_session.commit()
    job = waiting_call.result(20)
    assert (job.pk, job.created) == (job_of_other.pk, False)


def test_a_defer_makes_the_job_if_the_transaction_that_took_its_key_rolls_back(session: Callable[[], Session]) -> None:
    other_session = session()
    other_session.begin()
    other_session(defer)
    waiting_session = session()
    waiting_call = waiting_session.start(defer)
    waiting_session.wait_until_blocked()
    other_session.rollback()
    assert waiting_call.result(20).created
    assert Job.objects.count() == 1


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_defer_waits_while_the_holder_of_its_key_is_being_settled(
    session: Callable[[], Session], commits: bool
) -> None:
    defer()
    (holder,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    other_session, waiting_session = session(), session()
    other_session.begin()
    other_session(store.settle, [Settlement(holder.pk, holder.lease, COMPLETED)])
    waiting_call = waiting_session.start(defer)
    waiting_session.wait_until_blocked()
    other_session.commit() if commits else other_session.rollback()
    job = waiting_call.result(20)
    assert job.created == commits
    assert (job.pk == holder.pk) == (not commits)


def test_the_holder_is_found_by_the_unique_index_among_many_finished_jobs_of_its_key() -> None:
    """A key that is used often, to debounce a task for example, leaves a finished job behind each time."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, unique_key, finished_at) "
            "SELECT 'default', 't', '[]', '{}', 'completed', 'k', now() FROM generate_series(1, 20000)"
        )
        holder = defer()
        cursor.execute("ANALYZE skipqueue_job")
        with CaptureQueriesContext(connection) as queries:
            assert defer() == holder
        (holder_query,) = [query["sql"] for query in queries if query["sql"].startswith("SELECT")]
        cursor.execute(f"EXPLAIN {holder_query}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "skipqueue_job_unique" in plan, plan
    assert "Limit" not in plan


@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
def test_a_holder_that_finishes_after_the_conflict_frees_the_key(
    many: bool, monkeypatch: pytest.MonkeyPatch, connect: Callable[..., Any]
) -> None:
    make_job("running", unique_key="k")
    finishing_session = connect()

    def finish_holder_before_it_is_read(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.strip().startswith("SELECT") and "unique_key" in sql:
            finishing_session.execute(
                "UPDATE skipqueue_job SET status = 'completed', finished_at = now() WHERE status = 'running'"
            )
        return execute(sql, params, many, context)

    with within(10), connection.execute_wrapper(finish_holder_before_it_is_read):
        if many:
            (pk,) = jobs.add.using(unique_key="k").defer_many([(1,)])
        else:
            job = defer()
            assert job.created
            pk = job.pk
    assert Job.objects.unfinished().get().pk == pk


def test_batches_that_name_the_same_keys_in_opposite_order_do_not_deadlock(session: Callable[[], Session]) -> None:
    """A third transaction holds a key in the middle of both batches, so that both batches have begun."""
    task = jobs.echo.using(unique_key=lambda value: value)
    middle_locker, ascending, descending = session(), session(), session()
    middle_locker.begin()
    middle_locker(defer, "m")
    first = ascending.start(task.defer_many, [("a",), ("m",), ("z",)])
    ascending.wait_until_blocked()
    second = descending.start(task.defer_many, [("z",), ("m",), ("a",)])
    descending.wait_until_blocked()
    middle_locker.rollback()
    assert first.result(20) == second.result(20)[::-1]
    assert Job.objects.count() == 3


def test_a_scheduled_job_holds_its_key_while_it_waits() -> None:
    scheduled_job = jobs.noop.using(unique_key="k", run_after=timedelta(hours=1)).defer()
    second_call = jobs.noop.using(unique_key="k").defer()
    assert (second_call.pk, second_call.status, second_call.created) == (scheduled_job.pk, "scheduled", False)

"""The queue in another database of the project: by `.using(alias)`, or by `SKIPQUEUE["DATABASE"]`."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_skipqueue import JobContext
from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement

from ..app import jobs
from ..app.rows import make_job

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def no_query_of_default_database(transactional_db: None) -> Iterator[None]:
    """Fail the test if it sends a statement to the default database."""
    with CaptureQueriesContext(connections["default"]) as queries:
        yield
    assert not queries.captured_queries


def call_every_verb(store: Store, manager: Any, worker_manager: Any) -> None:
    """Call each operation on jobs once, from enqueue to prune."""
    worker_id = "w:0123456789ab"
    worker_row = {"id": worker_id, "name": "w", "hostname": "h", "pid": 1, "queues": [], "concurrency": 1}
    store.heartbeat_workers([worker_row])
    assert [worker.name for worker in worker_manager.live()] == ["w"]

    manager.enqueue("t", unique_key="k")
    assert manager.enqueue("t", unique_key="k").created is False
    manager.enqueue("t", run_after=timedelta(hours=1))
    (job,) = manager.claim(queue_names=["default"], limit=5, worker_id=worker_id)
    assert job._state.db == "other"
    manager.update(locked_at=Now() - timedelta(hours=1))  # as if the worker had claimed it an hour ago
    assert store.recover() == [], "its worker is alive"
    job.heartbeat()
    job.release()
    assert store.queues_with_jobs() == ["default"]
    assert store.claim(queue_names=["default"], limit=5, worker_id=worker_id)
    assert len(store.recover(worker_ids=[worker_id])) == 1
    (job,) = manager.claim(queue_names=["default"], limit=5, worker_id=worker_id)
    assert store.release_orphans(worker_id, known=[]) == {job.pk}
    (job,) = manager.claim(queue_names=["default"], limit=5, worker_id=worker_id)
    assert store.settle([Settlement(job.pk, job.lease, COMPLETED)]) == {job.pk}
    assert store.admit().by_queue == {}
    assert (store.next_due() or 0) > 0
    (scheduled_job,) = manager.scheduled()
    assert store.discard([scheduled_job.pk]).keys() == {scheduled_job.pk}
    assert scheduled_job.retry() is True
    store.prune()
    store.prune_workers([worker_id], age=60)
    store.delete_workers([worker_id])
    assert worker_manager.count() == 0


@pytest.mark.usefixtures("no_query_of_default_database")
def test_every_verb_works_on_the_database_that_using_names() -> None:
    call_every_verb(Store("other"), Job.objects.db_manager("other"), Worker.objects.using("other"))


@pytest.mark.usefixtures("no_query_of_default_database")
def test_every_verb_works_on_the_database_that_a_manager_is_bound_to() -> None:
    call_every_verb(Store("other"), Job.objects.db_manager("other"), Worker.objects.db_manager("other"))


@pytest.mark.usefixtures("no_query_of_default_database")
def test_every_verb_works_on_the_database_of_the_setting(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASE": "other"}
    call_every_verb(Store.default(), Job.objects, Worker.objects)


@pytest.mark.usefixtures("no_query_of_default_database")
def test_a_task_defers_into_the_database_of_the_setting(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASE": "other"}
    job = jobs.noop.defer()
    (second_id,) = jobs.noop.defer_many([()])
    assert set(Job.objects.using("other").values_list("pk", flat=True)) == {job.pk, second_id}
    job.refresh_from_db()
    assert job._state.db == "other"
    assert job.discard()
    assert job.retry()


def test_a_single_job_can_be_deferred_into_another_database() -> None:
    job_in_default, job_in_other = jobs.noop.defer(), jobs.noop.using(database="other").defer()
    assert (job_in_default._state.db, job_in_other._state.db) == ("default", "other")
    assert (Job.objects.count(), Job.objects.using("other").count()) == (1, 1)


def test_the_database_of_using_comes_before_the_setting(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert jobs.noop.using(database="default").defer()._state.db == "default"
    assert Job.objects.using("default").count() == 1
    assert Job.objects.count() == 0


def test_a_job_is_atomic_with_the_transaction_of_its_own_database() -> None:
    with transaction.atomic(using="other"):
        jobs.noop.using(database="other").defer()
        transaction.set_rollback(True, using="other")
    with transaction.atomic():
        jobs.noop.using(database="other").defer()
        transaction.set_rollback(True)
    assert Job.objects.using("other").count() == 1


def test_notify_is_sent_after_the_commit_of_the_queues_database() -> None:
    with CaptureQueriesContext(connections["other"]) as queries, transaction.atomic():
        with transaction.atomic(using="other"):
            jobs.noop.using(database="other").defer()
        assert "pg_notify" in queries[-1]["sql"]


def test_a_context_loads_its_job_from_the_database_that_holds_it() -> None:
    job = make_job(using="other")
    context = JobContext(job.pk, 1, 3, "default", "w", database="other")
    assert context.job == job
    with CaptureQueriesContext(connections["other"]) as queries:
        assert context.job._state.db == "other"
    assert not queries.captured_queries, "the job is loaded once"


@pytest.mark.parametrize("server_side_binding", [True, False])
def test_every_verb_works_with_either_way_of_binding_parameters(server_side_binding: bool) -> None:
    connection = connections["other"]
    original_options = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {
        **original_options,
        "server_side_binding": server_side_binding,
        "prepare_threshold": 0,
    }
    connection.close()
    try:
        call_every_verb(Store("other"), Job.objects.db_manager("other"), Worker.objects.using("other"))
    finally:
        connection.settings_dict["OPTIONS"] = original_options
        connection.close()

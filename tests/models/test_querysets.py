"""`JobQuerySet`: the methods for operators, such as `cancel`, change only the jobs in the query set."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, get_type_hints

import pytest
from django.db import connection
from django.db.models import Exists, OuterRef, Window
from django.db.models.functions import RowNumber
from django.test.utils import CaptureQueriesContext

from django_skipqueue.exceptions import InvalidArguments, InvalidOption
from django_skipqueue.models import Job, verbs
from django_skipqueue.models.managers import JobQuerySet
from django_skipqueue.signals import jobs_operated
from django_skipqueue.values.records import JobColumns, JobSpec

from ..app.rows import make_job, state

pytestmark = pytest.mark.django_db

LATER = timedelta(days=1)

# By name: the call of the verb, a status of a job that allows it, and the status after the call.
VERBS: dict[str, tuple[Callable[[JobQuerySet], int], str, str]] = {
    "retry": (lambda query_set: query_set.retry(by="anna", reason="mended"), "failed", "queued"),
    "retry later": (lambda query_set: query_set.retry(over=60, by="anna", reason="mended"), "failed", "scheduled"),
    "discard": (lambda query_set: query_set.discard(by="anna", reason="mended"), "queued", "discarded"),
    "cancel": (lambda query_set: query_set.cancel(by="anna", reason="mended"), "running", "discarded"),
    "run_now": (lambda query_set: query_set.run_now(by="anna", reason="mended"), "scheduled", "queued"),
    "postpone": (lambda query_set: query_set.postpone(LATER, by="anna", reason="mended"), "queued", "scheduled"),
    "reschedule": (lambda query_set: query_set.reschedule(LATER, by="anna", reason="mended"), "queued", "scheduled"),
    "change_queue": (lambda query_set: query_set.change_queue("mail", by="anna", reason="mended"), "queued", "queued"),
    "change_priority": (lambda query_set: query_set.change_priority(7, by="anna", reason="mended"), "queued", "queued"),
}


VERBS_BY_NAME = ["run_again"] + [name for name in VERBS if name != "retry later"]


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_changes_the_jobs_of_the_filter_and_returns_their_number(name: str) -> None:
    verb, status_before, status_after = VERBS[name]
    chosen_jobs = [make_job(status_before, task="x") for _ in range(2)]
    other_jobs = [make_job(status_before, task="y"), make_job("completed", task="x")]
    states_before = [state(job) for job in other_jobs]
    assert verb(Job.objects.filter(task="x")) == 2
    for job in chosen_jobs:
        job.refresh_from_db()
        assert job.status == status_after
        assert [(record["by"], record["reason"]) for record in job.operations or []] == [("anna", "mended")]
    assert [state(job) for job in other_jobs] == states_before


def test_a_verb_works_on_any_kind_of_query_set() -> None:
    first_job, second_job, third_job = (make_job("failed", priority=number) for number in range(3))
    assert Job.objects.order_by("-priority")[:1].retry() == 1
    assert Job.objects.filter(pk=first_job.pk).union(Job.objects.filter(pk=third_job.pk)).retry() == 1
    assert set(Job.objects.queued()) == {third_job, first_job}
    assert list(Job.objects.failed()) == [second_job]
    assert Job.objects.none().retry() == 0


NEWER_FAILED = Job.objects.failed().filter(task=OuterRef("task"), pk__gt=OuterRef("pk"))


@pytest.mark.parametrize(
    "newest_of_each_task",
    {
        "distinct": lambda failed: failed.order_by("task", "-pk").distinct("task"),
        "slice": lambda failed: failed.order_by("-pk")[:2],
        "subquery": lambda failed: failed.filter(~Exists(NEWER_FAILED)),
        "window": lambda failed: failed.annotate(
            place=Window(RowNumber(), partition_by="task", order_by="-id"),
        ).filter(place=1),
    }.values(),
    ids=["distinct", "slice", "subquery", "window"],
)
def test_the_jobs_of_a_query_set_are_found_once_for_all_batches(
    newest_of_each_task: Callable[[JobQuerySet], JobQuerySet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch changes jobs, so that a second query would find other jobs."""
    monkeypatch.setattr(verbs, "BATCH_ROWS", 1)
    _older_x, _older_y, *newest = [make_job("failed", task=task) for task in ("x", "y", "x", "y")]
    assert newest_of_each_task(Job.objects.failed()).retry() == 2
    assert set(Job.objects.queued()) == set(newest)


@pytest.mark.parametrize(
    "in_transaction",
    [
        pytest.param(True, marks=pytest.mark.django_db(transaction=False), id="in a transaction"),
        pytest.param(False, marks=pytest.mark.django_db(transaction=True), id="without a transaction"),
    ],
)
def test_the_ids_of_later_batches_stay_in_the_database(in_transaction: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process reads the ids of one batch at a time. A job that is inserted meanwhile is not changed."""
    monkeypatch.setattr(verbs, "BATCH_ROWS", 2)
    created_jobs = [make_job() for _ in range(5)]
    cursors: list[tuple[bool, int]] = []

    def note_cursors_and_make_a_job(sender: object, **event: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT is_holdable, count(*) FROM pg_cursors GROUP BY 1")
            cursors.extend(cursor.fetchall())
        make_job()

    jobs_operated.connect(note_cursors_and_make_a_job)
    try:
        assert Job.objects.queued().discard() == 5
    finally:
        jobs_operated.disconnect(note_cursors_and_make_a_job)
    assert cursors[:2] == [(not in_transaction, 1)] * 2, "outside of a transaction, the one cursor is WITH HOLD"
    assert set(Job.objects.discarded()) == set(created_jobs)


def test_many_jobs_are_changed_in_batches_of_one_statement_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "BATCH_ROWS", 2)
    for _ in range(5):
        make_job("queued")
    with CaptureQueriesContext(connection) as queries:
        assert Job.objects.queued().discard() == 5
    discard_statements = [query for query in queries if "'verb', 'discard'" in query["sql"]]
    assert len(discard_statements) == 3


@pytest.mark.parametrize("job_count", [0, 1])
def test_a_time_that_cannot_be_stored_is_refused_before_anything_is_written(job_count: int) -> None:
    created_jobs = [make_job("queued") for _ in range(job_count)]
    with pytest.raises(InvalidOption, match="run_after"):
        Job.objects.all().postpone(timedelta(days=1_000_000))
    with pytest.raises(InvalidOption, match="run_after"):
        Job.objects.all().reschedule(timedelta(days=1_000_000))
    with pytest.raises(InvalidOption, match="queue_name"):
        Job.objects.all().change_queue("a,b")
    with pytest.raises(InvalidOption, match="priority"):
        Job.objects.all().change_priority(101)
    assert list(Job.objects.queued()) == created_jobs


def test_the_newest_of_many_jobs_with_one_key_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "BATCH_ROWS", 2)
    created_jobs = [make_job("failed", unique_key="k") for _ in range(5)]
    assert Job.objects.failed().retry() == 1
    assert list(Job.objects.queued()) == [created_jobs[-1]]


@pytest.mark.parametrize("verb", VERBS_BY_NAME)
def test_the_manager_does_not_have_the_operations_of_query_sets(verb: str) -> None:
    """Otherwise a mistyped line or a template could change all jobs of the table."""
    assert not hasattr(Job.objects, verb)
    assert getattr(JobQuerySet, verb).alters_data


@pytest.mark.parametrize("method", ["enqueue", "insert", "claim"])
def test_a_query_set_has_no_methods_that_would_ignore_its_filters(method: str) -> None:
    assert hasattr(Job.objects, method)
    assert not hasattr(Job.objects.filter(task="x"), method)


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_works_on_the_database_of_its_query_set(name: str) -> None:
    verb, status_before, status_after = VERBS[name]
    job_in_default, job_in_other = make_job(status_before), make_job(status_before, using="other")
    assert verb(Job.objects.using("other")) == 1
    assert (state(job_in_default)["status"], state(job_in_other)["status"]) == (status_before, status_after)


def test_enqueue_takes_the_columns_of_a_row() -> None:
    """Task and metadata are separate arguments of `enqueue`. Other code chooses the remaining columns."""
    not_columns = ("task", "metadata", "retention", "columns", "after", "after_failure", "on_conflict")
    hints = get_type_hints(JobSpec)
    assert get_type_hints(JobColumns) == {name: hints[name] for name in hints if name not in not_columns}


def test_enqueue_writes_each_column_that_it_is_given() -> None:
    columns = {"queue_name": "mail", "priority": 5, "max_attempts": 2, "timeout": 3.5}
    job = Job.objects.enqueue("t", args="[1]", kwargs='{"a": 2}', metadata={"own": 1}, **columns)  # type: ignore[arg-type]
    expected_columns = columns | {"args": [1], "kwargs": {"a": 2}, "metadata": {"own": 1}}
    assert state(job).items() >= expected_columns.items()


@pytest.mark.parametrize("args", ["[1, [2]]", [1, [2]], (1, (2,))])
@pytest.mark.parametrize("kwargs", ['{"n": null}', {"n": None}])
def test_enqueue_takes_arguments_as_json_text_or_as_values(args: Any, kwargs: Any) -> None:
    job = Job.objects.enqueue("t", args=args, kwargs=kwargs)
    job.refresh_from_db()
    assert (job.args, job.kwargs) == ([1, [2]], {"n": None})


def test_enqueue_refuses_arguments_that_are_not_json() -> None:
    with pytest.raises(InvalidArguments, match=r"kwargs\['day'\] is a date, which is not JSON"):
        Job.objects.enqueue("t", kwargs={"day": date(2026, 1, 1)})

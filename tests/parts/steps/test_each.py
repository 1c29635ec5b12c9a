"""`context.each`: a loop goes on after the last finished item."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, models, transaction
from django.test.utils import CaptureQueriesContext, isolate_apps

from django_skipqueue import JobContext, job
from django_skipqueue.exceptions import InvalidOption, LeaseLost
from django_skipqueue.jobs.context import AttemptHandle, current_attempt
from django_skipqueue.models import Job, JobStep, Worker
from django_skipqueue.parts.steps import each
from django_skipqueue.parts.steps.attempt import AttemptSteps
from django_skipqueue.parts.steps.record import Entry, record_step
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.records import LeaseRef

from ...app.models import Ledger
from ...app.waiting import wait_until
from ...harness.processes import ManagePy

pytestmark = pytest.mark.django_db(transaction=True)

calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def reload(stale_job: Job) -> Job:
    stale_job.refresh_from_db()
    return stale_job


def create_rows(number: int) -> list[int]:
    """Create this number of rows, with the entries 0, 1, 2 and so on. Returns their ids."""
    rows = [Ledger(entry=str(place)) for place in range(number)]
    return [row.pk for row in Ledger.objects.bulk_create(rows)]


def saved_place(deferred_job: Job) -> Any:
    """What the job has recorded about the progress of its loop `all`."""
    return JobStep.objects.get(job_id=deferred_job.pk, name="all").result


# Items whose first handling raises an error.
FAILS_AT: set[int] = set()


def handle(place: int) -> None:
    if place in FAILS_AT:
        FAILS_AT.remove(place)
        raise ValueError(place)
    calls.append(place)


@job(takes_context=True, name="steps.loops")
def loops(context: JobContext, kind: str) -> str:
    if kind == "rows":
        for row in context.each("all", Ledger.objects.filter(worker="")):
            handle(int(row.entry))
    elif kind == "list":
        for number in context.each("all", list(range(7))):
            handle(number)
    elif kind == "function":
        context.each("all", Ledger.objects.all(), lambda row: handle(int(row.entry)))
    else:
        context.each("all", range(7), handle, atomic=True)
    return "over"


@pytest.mark.parametrize("kind", ["rows", "list", "function", "atomic"])
def test_a_later_attempt_goes_on_after_the_last_finished_item(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each, "CHUNK", 2)
    FAILS_AT.update({0, 3, 6})
    create_rows(7)
    deferred_job = loops.defer(kind)
    run_jobs(include_scheduled=True)
    assert (reload(deferred_job).status, deferred_job.result) == ("completed", "over")
    assert calls == list(range(7))
    assert saved_place(deferred_job)["done"] == 7


def test_a_loop_reads_its_rows_once_in_chunks_and_a_short_loop_writes_its_place_once() -> None:
    create_rows(1_200)
    loops.defer("rows")
    with CaptureQueriesContext(connection) as queries:
        run_jobs()
    reads = [query["sql"] for query in queries if 'FROM "app_ledger"' in query["sql"] or "ledger" in query["sql"]]
    assert len(reads) == 3, reads  # a chunk has 500 rows
    assert sum("INSERT INTO skipqueue_step" in query["sql"] for query in queries) == 1
    assert len(calls) == 1_200


def test_the_place_is_written_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each, "WRITE_SECONDS", 0.0)
    create_rows(5)
    loops.defer("rows")
    with CaptureQueriesContext(connection) as queries:
        run_jobs()
    assert sum("INSERT INTO skipqueue_step" in query["sql"] for query in queries) == 5


def test_a_finished_loop_is_not_run_again() -> None:
    create_rows(3)
    deferred_job = twice.defer()
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).status == "completed"
    assert calls == [0, 1, 2, "failed"]


@job(takes_context=True, name="steps.twice")
def twice(context: JobContext) -> None:
    for row in context.each("all", Ledger.objects.all()):
        handle(int(row.entry))
    if "failed" not in calls:
        calls.append("failed")
        raise ValueError


@job(takes_context=True, name="steps.by_name")
def by_name(context: JobContext) -> None:
    for user in context.each("all", User.objects.all(), by="username"):
        if user.username == "b" and "failed" not in calls:
            calls.append("failed")
            raise ValueError
        calls.append(user.username)


def test_a_loop_can_go_by_another_unique_field() -> None:
    for name in "cab":
        User.objects.create(username=name)
    by_name.defer()
    run_jobs(include_scheduled=True)
    assert calls == ["a", "failed", "b", "c"]


@job(takes_context=True, name="steps.joined")
def joined(context: JobContext) -> None:
    context.each(
        "all", User.objects.filter(groups__name__startswith="g"), lambda user: calls.append(user.username), atomic=True
    )


def test_a_row_that_a_join_returns_twice_is_one_item() -> None:
    groups = [Group.objects.create(name=name) for name in ("g1", "g2")]
    for name in "ab":
        User.objects.create(username=name).groups.set(groups)
    joined.defer()
    run_jobs()
    assert calls == ["a", "b"]


@isolate_apps("tests.app")
def test_a_relation_is_read_in_the_order_of_its_column() -> None:
    class Owner(models.Model):  # noqa: DJ008
        class Meta:
            app_label = "app"
            ordering = ("-id",)

    class Owned(models.Model):  # noqa: DJ008
        owner = models.OneToOneField(Owner, models.CASCADE)

        class Meta:
            app_label = "app"

    with connection.schema_editor() as editor:
        editor.create_model(Owner)
        editor.create_model(Owned)
    try:
        ids = [Owned._base_manager.create(owner=Owner._base_manager.create()).owner.pk for _ in range(3)]
        read_keys = [key for key, _ in each.source_of("all", Owned._base_manager.all(), "owner")(str(ids[0]))]
        assert read_keys == [str(id) for id in ids[1:]]
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Owned)
            editor.delete_model(Owner)


@job(takes_context=True, name="steps.deletes")
def deletes(context: JobContext) -> None:
    for row in context.each("all", Ledger.objects.all()):
        calls.append(row.entry)
        # delete this row, and the row after the next row
        Ledger.objects.filter(entry__in=[row.entry, str(int(row.entry) + 2)]).delete()
        if len(calls) in (1, 3):
            raise ValueError


def test_rows_that_are_deleted_within_the_loop_do_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each, "CHUNK", 2)
    create_rows(6)
    deferred_job = deletes.defer()
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).status == "completed"
    assert calls == ["0", "1", "3", "4"]  # 3 was deleted after its chunk was read


@job(takes_context=True, name="steps.loops_in_transaction")
def loops_in_transaction(context: JobContext, kind: str) -> None:
    with transaction.atomic():
        if kind == "for":
            for row in context.each("all", Ledger.objects.filter(worker="")):
                write_bonus(row)
        else:
            context.each("all", Ledger.objects.filter(worker=""), write_bonus, atomic=kind == "atomic")
        if "failed" not in calls:
            calls.append("failed")
            raise ValueError


@pytest.mark.parametrize("kind", ["for", "function"])
def test_a_loop_in_a_transaction_is_refused(kind: str) -> None:
    create_rows(1)
    loops_in_transaction.defer(kind)
    with pytest.raises(InvalidOption, match="keeps its place even if"):
        run_jobs(raise_errors=True)


def test_an_atomic_loop_can_run_in_a_transaction() -> None:
    ids = create_rows(2)
    deferred_job = loops_in_transaction.defer("atomic")
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).status == "completed"
    counted_entries = Counter(Ledger.objects.filter(worker="bonus").values_list("entry", flat=True))
    assert counted_entries == {f"bonus {id}": 1 for id in ids}


# The items, the options of `each`, and the text of the error.
REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "generator": (lambda: (number for number in range(3)), {}, "a query set, or a sequence"),
    "set": (lambda: {1, 2}, {}, "a query set, or a sequence"),
    "text": (lambda: "abc", {}, "a query set, or a sequence"),
    "ordered": (lambda: Ledger.objects.order_by("entry"), {}, "an order of its own"),
    "reversed": (lambda: Ledger.objects.reverse(), {}, "is reversed"),
    "sliced": (lambda: Ledger.objects.all()[:5], {}, "is sliced"),
    "distinct": (lambda: Ledger.objects.distinct(), {}, "distinct"),
    "values": (lambda: Ledger.objects.values("pk"), {}, "values in place of model instances"),
    "union": (lambda: Ledger.objects.all().union(Ledger.objects.all()), {}, "is a union"),
    "not unique": (lambda: Ledger.objects.all(), {"by": "entry"}, "not unique, or may be NULL"),
    "no field": (lambda: Ledger.objects.all(), {"by": "nothing"}, "no such field"),
    "composite": (lambda: JobStep.objects.all(), {}, "not unique"),
    "atomic without a function": (lambda: [1], {"atomic": True}, "needs a function"),
}


@job(takes_context=True, name="steps.refused")
def refused(context: JobContext, name: str) -> None:
    items, options, _ = REFUSED[name]
    context.each("all", items(), **options)


@pytest.mark.parametrize("name", REFUSED)
def test_items_that_have_no_lasting_order_are_refused(name: str) -> None:
    *_, error_text = REFUSED[name]
    refused.defer(name)
    with pytest.raises(InvalidOption, match=error_text):
        run_jobs(raise_errors=True)


def write_bonus(row: Ledger) -> None:
    Ledger.objects.create(entry=f"bonus {row.pk}", worker="bonus")
    if row.entry in {"2", "4"} and row.entry not in calls:
        calls.append(row.entry)
        raise ValueError(row.entry)


@job(takes_context=True, name="steps.bonuses")
def bonuses(context: JobContext) -> None:
    context.each("all", Ledger.objects.filter(worker=""), write_bonus, atomic=True)


def test_each_atomic_item_is_committed_once_and_a_failed_item_is_rolled_back() -> None:
    ids = create_rows(6)
    deferred_job = bonuses.defer()
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).status == "completed"
    counted_entries = Counter(Ledger.objects.filter(worker="bonus").values_list("entry", flat=True))
    assert counted_entries == {f"bonus {id}": 1 for id in ids}


@job(takes_context=True, name="steps.loses")
def loses(context: JobContext) -> None:
    def write_and_lose_the_lease(row: Ledger) -> None:
        Ledger.objects.create(entry="taken", worker="taken")
        with connection.cursor() as cursor:  # as if another worker had recovered the job
            cursor.execute("UPDATE skipqueue_job SET lease = lease + 1 WHERE id = %s", [context.job_id])

    try:
        context.each("all", Ledger.objects.filter(worker=""), write_and_lose_the_lease, atomic=True)
    except LeaseLost:
        calls.append("lost")


def test_an_atomic_item_is_rolled_back_if_the_lease_is_lost() -> None:
    create_rows(2)
    loses.defer()
    run_jobs(raise_errors=False)
    assert "lost" in calls
    assert not Ledger.objects.filter(worker="taken").exists()


def write_row(row: Ledger) -> None:
    Ledger.objects.create(entry=row.entry, worker="once")


@job(takes_context=True, name="steps.released_within_an_item")
def released_within_an_item(context: JobContext) -> None:
    context.each("all", Ledger.objects.filter(worker=""), write_row, atomic=True)


def test_a_release_within_an_atomic_item_does_not_move_the_cursor_past_the_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control loop's thread may write the cursors of an attempt at any moment, even during an item."""
    create_rows(3)
    original_record_step = record_step

    def release_and_fail_in_the_first_item(store: Store, ref: LeaseRef, entry: Entry) -> bool:
        is_first_item = '"done":1' in str(entry.result).replace(" ", "")
        if is_first_item:
            monkeypatch.undo()
            (attempt_steps,) = [part for part in running_attempt().parts if isinstance(part, AttemptSteps)]
            run_in_other_thread(lambda: attempt_steps.released(Store("default")))
            raise ValueError("the item is rolled back")
        return original_record_step(store, ref, entry)

    monkeypatch.setattr(each, "record_step", release_and_fail_in_the_first_item)
    deferred_job = released_within_an_item.defer()
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).status == "completed"
    assert sorted(Ledger.objects.filter(worker="once").values_list("entry", flat=True)) == ["0", "1", "2"]


def running_attempt() -> AttemptHandle:
    attempt = current_attempt.get()
    assert attempt is not None
    return attempt


def run_in_other_thread(call: Callable[[], None]) -> None:
    def run() -> None:
        try:
            call()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@job(takes_context=True, name="steps.async_loops")
async def async_loops(context: JobContext, kind: str) -> None:
    async def awork(row: Ledger) -> None:
        handle(int(row.entry))

    if kind == "for":
        async for row in context.aeach("all", Ledger.objects.all()):
            handle(int(row.entry))
    elif kind == "async":
        await context.aeach("all", Ledger.objects.all(), awork)
    else:
        await context.aeach("all", Ledger.objects.all(), lambda row: handle(int(row.entry)), atomic=True)


@pytest.mark.parametrize("kind", ["for", "async", "atomic"])
def test_async_tasks_can_loop_with_aeach(kind: str) -> None:
    FAILS_AT.add(2)
    create_rows(4)
    deferred_job = async_loops.defer(kind)
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).status == "completed"
    assert calls == [0, 1, 2, 3]


@job(takes_context=True, name="steps.max_attempts_of_a_loop", max_attempts=2)
def slow_start(context: JobContext) -> None:
    for number in context.each("all", list(range(4))):
        if number not in calls:
            calls.append(number)
            raise ValueError(number)


def test_a_cursor_that_has_moved_resets_the_number_of_attempts() -> None:
    deferred_job = slow_start.defer()
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).status == "completed"
    assert calls == [0, 1, 2, 3]


KILLED = """
    import os, signal, time
    from django_skipqueue import job
    from tests.app.models import Ledger

    def handle(row):
        Ledger.objects.create(entry=f"done {row.pk}", worker="done")
        if row.entry in KILLS and not Ledger.objects.filter(entry=f"killed {row.entry}").exists():
            kill(row.entry)

    def kill(entry):
        from django.db import connections
        other_connection = connections["default"].copy("other")
        with other_connection.cursor() as cursor:  # outside of the transaction of the item
            insert = f"INSERT INTO {Ledger._meta.db_table} (entry, worker, written_at) VALUES (%s, 'kill', now())"
            cursor.execute(insert, [f"killed {entry}"])
        os.kill(os.getpid(), signal.SIGKILL)

    @job(takes_context=True)
    def atomic(context):
        context.each("all", Ledger.objects.filter(worker=""), handle, atomic=True)

    @job(takes_context=True)
    def plain(context):
        for row in context.each("all", Ledger.objects.filter(worker="")):
            handle(row)

    @job(takes_context=True)
    def slow(context):
        for row in context.each("all", Ledger.objects.filter(worker="")):
            time.sleep(0.05)
            Ledger.objects.create(entry=f"done {row.pk}", worker="done")
"""


@pytest.mark.parametrize("task", ["atomic", "plain"])
def test_a_loop_finishes_all_items_although_its_workers_are_killed(
    runworker: Callable[..., ManagePy], task: str
) -> None:
    ids = create_rows(80)
    # without `atomic`, the place is written at most once a second
    kills = ("3", "50", "77") if task == "atomic" else ("3", "50")
    runworker("--concurrency", "1", jobs=KILLED.replace("KILLS", repr(kills)))
    deferred_job = Job.objects.enqueue(f"extra.jobs.{task}")
    wait_until(lambda: reload(deferred_job).finished_at, "the job has ended")
    assert deferred_job.status == "completed", deferred_job.last_error
    counted_entries = Counter(Ledger.objects.filter(worker="done").values_list("entry", flat=True))
    assert counted_entries.keys() == {f"done {id}" for id in ids}
    if task == "atomic":
        assert set(counted_entries.values()) == {1}


# When the worker stops


def test_a_stopping_worker_ends_a_loop_between_two_items_without_charging_the_attempt(
    runworker: Callable[..., ManagePy],
) -> None:
    ids = create_rows(60)
    stopping_worker = runworker("--concurrency", "1", jobs=KILLED)
    deferred_job = Job.objects.enqueue("extra.jobs.slow")
    wait_until(lambda: Ledger.objects.filter(worker="done").count() > 5, "the loop has begun")
    stopped_at = time.monotonic()
    stopping_worker.send(signal.SIGTERM)
    assert stopping_worker.wait() == 0
    assert time.monotonic() - stopped_at < 2.5  # the loop takes three seconds
    assert (reload(deferred_job).status, deferred_job.attempts) == ("queued", 0)
    assert deferred_job.operations[-1]["verb"] == "release"
    handled = Ledger.objects.filter(worker="done").count()
    assert saved_place(deferred_job)["done"] == handled < 60
    runworker("--concurrency", "1", jobs=KILLED)
    wait_until(lambda: reload(deferred_job).finished_at, "the job has ended")
    assert deferred_job.status == "completed"
    counted_entries = Counter(Ledger.objects.filter(worker="done").values_list("entry", flat=True))
    assert counted_entries == {f"done {id}": 1 for id in ids}
    assert Worker.objects.exists()

"""`context.progress`: a worker writes the progress of a running task into the row of its job."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from django_skipqueue import JobContext
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.notes import progress_of
from django_skipqueue.values.records import Noted
from django_skipqueue.worker import notes
from django_skipqueue.worker.protocol import EXIT_CLEAN

from ...app import noting_jobs as tasks
from ...app.rows import make_job
from ...app.sessions import Session
from ...app.waiting import wait_until
from ...harness.threads import WorkerThread

StartWorker = Callable[..., WorkerThread]

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")


def read_again(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def progress_shown(job: Job) -> tuple[float, str] | None:
    progress = read_again(job).current_progress
    return progress and (progress.value, progress.text)


@pytest.mark.parametrize("task", [tasks.advance, tasks.aadvance])
def test_the_last_progress_is_in_the_row_while_the_task_runs(worker_thread: StartWorker, gates: Any, task: Any) -> None:
    job = task.defer("a", 0.1, 0.2, 0.4, text="40 of 100")
    worker_thread()
    wait_until(lambda: progress_shown(job) == (0.4, "40 of 100"))
    assert read_again(job).status == "running"
    assert read_again(job).current_progress.at is not None  # type: ignore[union-attr]
    gates["a"].open()
    wait_until(lambda: read_again(job).status == "completed")
    assert progress_shown(job) == (0.4, "40 of 100")


@pytest.mark.parametrize("task", [tasks.advance_in_a_transaction, tasks.advance_atomically])
def test_a_task_in_a_long_transaction_shows_its_progress(worker_thread: StartWorker, gates: Any, task: Any) -> None:
    job = task.defer("a")
    worker_thread()
    wait_until(lambda: (progress_shown(job) or (0,))[0] == 0.5)
    gates["a"].open()
    wait_until(lambda: read_again(job).status == "completed")


def test_a_short_task_has_its_last_value_written_with_its_outcome(worker_thread: StartWorker, gates: Any) -> None:
    gates["a"].open()
    job = tasks.advance.defer("a", 0.1, 1)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert progress_shown(job) == (1.0, "")


def test_the_progress_of_several_jobs_is_written_in_one_statement(
    worker_thread: StartWorker, gates: Any, monkeypatch: Any
) -> None:
    notes_in_call: list[int] = []
    note_attempts = Store.note_attempts

    def count_and_note(self: Store, notes: Any) -> set[int]:
        notes = list(notes)
        notes_in_call.append(len(notes))
        return note_attempts(self, notes)

    monkeypatch.setattr(Store, "note_attempts", count_and_note)
    jobs = [tasks.aadvance.defer("a", 0.5) for _ in range(8)]
    worker_thread(concurrency=8)
    wait_until(lambda: all(progress_shown(job) for job in jobs))
    assert sum(notes_in_call) == 8
    assert len(notes_in_call) < 8  # so at least one call wrote the progress of several jobs
    gates["a"].open()
    wait_until(lambda: not Job.objects.running().exists())


def test_a_new_attempt_begins_without_progress(worker_thread: StartWorker) -> None:
    job = tasks.fail_at.defer(0.5, 0.75)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    finished_job = read_again(job)
    assert (finished_job.status, finished_job.attempts) == ("completed", 3)
    assert progress_of(finished_job.progress) is not None, "the progress of the second attempt is still in the row"
    assert finished_job.current_progress is None


@pytest.mark.parametrize("status", ["queued", "scheduled", "blocked"])
def test_a_job_that_waits_has_no_progress(status: str) -> None:
    job = make_job(status, lease=4, progress={"lease": 4, "value": 0.5, "text": ""})
    assert job.current_progress is None


def test_no_progress_is_written_with_a_lost_lease() -> None:
    job = make_job("running", lease=5)
    assert store.note_attempts([Noted(job.pk, 4, 0.0, '{"progress": {"lease": 4, "value": 0.5, "text": ""}}')]) == set()
    assert read_again(job).progress is None


def test_a_locked_row_is_skipped_when_progress_is_written() -> None:
    locked_job, free_job = make_job("running"), make_job("running")
    session = Session()
    session.begin()
    session(lock_row, locked_job.pk)
    try:
        note = '{"progress": {"lease": 1, "value": 0.5, "text": ""}}'
        assert store.note_attempts([Noted(job.pk, 1, 0.0, note) for job in (locked_job, free_job)]) == {free_job.pk}
    finally:
        session.rollback()
        session.close()


def lock_row(pk: int) -> None:
    Job.objects.select_for_update().get(pk=pk)


def test_notes_of_a_task_that_has_completed_its_own_job_are_kept(worker_thread: StartWorker, gates: Any) -> None:
    """Until the commit, the task has locked the row: the worker skips the row, and is not blocked."""
    job = tasks.complete_and_go_on.defer("a")
    other_job = tasks.advance.defer("b", 0.3)
    worker_thread(concurrency=2)
    wait_until(lambda: progress_shown(other_job) == (0.3, ""))
    assert read_again(job).status == "running"
    gates["a"].open()
    wait_until(lambda: len(tasks.lines(read_again(job).logs)[0]) == 2 if read_again(job).logs else False)
    assert tasks.lines(read_again(job).logs) == [[("INFO", "before the commit"), ("INFO", "after the commit")]]
    assert progress_shown(job) == (0.5, "")
    assert read_again(job).result == "done"
    gates["b"].open()
    wait_until(lambda: not Job.objects.running().exists())


def test_a_job_is_settled_although_the_database_refuses_its_progress(
    worker_thread: StartWorker, gates: Any, refuse: Any
) -> None:
    stop_refusing = refuse("NEW.progress IS DISTINCT FROM OLD.progress AND NEW.status = 'running'")
    job = tasks.advance.defer("a", 0.5)
    other_job = tasks.advance.defer("b", 0.2)
    worker = worker_thread(concurrency=2)
    note_service = worker.worker.in_flight.exchanges.write_notes
    # Once the database has refused the notes, the service waits for its next check.
    wait_until(lambda: note_service.due_at > note_service.next_check - 1 and note_service.next_check > 0)
    gates["a"].open()
    wait_until(lambda: read_again(job).status == "completed")
    assert progress_shown(job) == (0.5, ""), "the progress is written with the outcome"
    stop_refusing()
    gates["b"].open()
    wait_until(lambda: read_again(other_job).status == "completed")


def test_progress_is_written_even_if_the_connection_breaks(
    worker_thread: StartWorker, gates: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(notes, "NOTES_CHECK_SECONDS", 0.05)
    job = tasks.advance.defer("a", 0.5)
    worker = worker_thread()
    wait_until(lambda: read_again(job).status == "running")
    worker.cut()
    wait_until(lambda: progress_shown(job) == (0.5, ""))
    gates["a"].open()
    wait_until(lambda: read_again(job).status == "completed")


def test_a_stopped_worker_writes_the_notes_of_its_running_jobs(worker_thread: StartWorker, gates: Any) -> None:
    """The worker writes the notes before it releases the jobs, also the log of an attempt that has just begun."""
    job = tasks.chat.defer("a")
    worker = worker_thread()
    wait_until(lambda: any(attempt.noted for attempt in list(worker.worker.pool.attempts)))
    worker.stop(now=True)
    wait_until(lambda: read_again(job).status == "queued")
    assert tasks.lines(read_again(job).logs)[0][0] == ("INFO", "line 1")
    gates["a"].open()
    worker.wait()


@pytest.mark.parametrize("value", [-0.1, 1.1, 40, math.nan, math.inf, True, "0.5", None])
def test_a_progress_is_a_number_from_0_to_1(value: Any) -> None:
    with pytest.raises(InvalidOption, match="from 0 to 1"):
        make_context().progress(value)


@pytest.mark.parametrize("value", [0, 1, 0.5, 1.0000000001, Decimal("0.5")])
def test_progress_takes_numbers_of_every_type(value: Any) -> None:
    make_context().progress(value, "where no worker runs the job, nothing is noted")


def test_the_text_of_a_progress_must_be_a_string() -> None:
    with pytest.raises(InvalidOption, match="text must be a str"):
        make_context().progress(0.5, 40)  # type: ignore[arg-type]


def test_a_wrong_progress_fails_the_attempt_with_advice() -> None:
    tasks.wrong_progress.using(max_attempts=1).defer()
    (job,) = run_jobs()
    assert "for 40 of 100 say progress(40 / 100)" in job.last_error


def test_a_long_text_of_a_progress_is_cut(gates: Any) -> None:
    gates["a"].open()
    tasks.advance.defer("a", 0.5, text="x" * 1000)
    (job,) = run_jobs()
    assert job.current_progress is not None
    assert job.current_progress.text == "x" * 199 + "…"


def test_a_secret_argument_is_masked_in_the_text_of_a_progress(gates: Any) -> None:
    gates["a"].open()
    tasks.advance_with_secret.defer("a", token="sesame-street")
    (job,) = run_jobs()
    assert job.current_progress is not None
    assert job.current_progress.text == "with ••••••"


def test_code_that_a_task_calls_finds_the_context(gates: Any) -> None:
    assert JobContext.current() is None
    tasks.advance_deep_inside.defer()
    tasks.aadvance_deep_inside.defer()
    for job in run_jobs():
        assert job.status == "completed", job.last_error
        assert job.current_progress is not None
        assert job.current_progress.line == f"50 % · job {job.pk}"
    assert JobContext.current() is None


def make_context() -> JobContext:
    return JobContext(job_id=1, attempt=1, max_attempts=1, queue_name="q", worker="w", database="default")

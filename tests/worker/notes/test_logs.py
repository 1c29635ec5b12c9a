"""The log lines that are kept with an attempt."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_skipqueue import JobContext
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.notes import LOG_LINE_LIMIT, MOST_CHARACTERS, MOST_LINES, logs_of, progress_of
from django_skipqueue.values.outcomes import Outcome, Settlement
from django_skipqueue.values.records import Noted
from django_skipqueue.worker.notes import capturing
from django_skipqueue.worker.protocol import EXIT_CLEAN

from ...app import noting_jobs as tasks
from ...app.rows import make_job
from ...app.waiting import wait_until
from ...harness.threads import WorkerThread

StartWorker = Callable[..., WorkerThread]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def task_logger_at_debug() -> Iterator[None]:
    tasks.logger.setLevel(logging.DEBUG)
    yield
    tasks.logger.setLevel(logging.NOTSET)


def only_job() -> Job:
    return Job.objects.get()


def run_only_job() -> Job:
    with capturing():
        (job,) = run_jobs()
    return job


@pytest.mark.parametrize("fails", [False, True])
def test_a_completed_and_a_failed_attempt_keep_their_lines(worker_thread: StartWorker, fails: bool) -> None:
    tasks.log_all.defer(7, password="hunter2!", fails=fails)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    job = only_job()
    assert job.status == ("failed" if fails else "completed")
    (log,) = logs_of(job.logs)
    assert [(line.level, line.logger, line.message.splitlines()[0]) for line in log.lines] == [
        ("INFO", "shop.noting", "info 7"),
        ("WARNING", "shop.noting", "the password is ••••••"),
        ("ERROR", "shop.noting", "caught"),
    ]
    assert "ValueError: inner" in log.lines[2].message
    assert (log.attempt, log.worker, log.dropped) == (1, "w", 0)
    assert log.started is not None
    assert job.started_at is not None
    assert abs((log.started - job.started_at).total_seconds()) < 10
    assert all(line.at is not None and line.at >= log.started for line in log.lines)


def test_a_worker_removes_its_log_handler_when_it_ends(worker_thread: StartWorker) -> None:
    handlers_before = list(logging.getLogger().handlers)
    worker_thread(drain=True).wait()
    assert logging.getLogger().handlers == handlers_before


@pytest.mark.parametrize(
    ("setting", "lines_kept"), [("DEBUG", 4), ("INFO", 3), ("WARNING", 2), ("ERROR", 1), ("CRITICAL", 0), (None, 0)]
)
def test_the_setting_capture_logs_is_the_lowest_level_that_is_kept(
    settings: Any, setting: str | None, lines_kept: int
) -> None:
    settings.SKIPQUEUE = {"CAPTURE_LOGS": setting}
    tasks.log_all.defer(1)
    job = run_only_job()
    assert sum(map(len, tasks.lines(job.logs))) == lines_kept


def test_lines_of_attempts_that_run_at_once_do_not_mix(worker_thread: StartWorker, gates: Any) -> None:
    for number in range(6):
        tasks.alog.defer("a", number)
    worker_thread(concurrency=6)
    wait_until(lambda: Job.objects.running().count() == 6)
    gates["a"].open()
    wait_until(lambda: Job.objects.completed().count() == 6)
    for job in Job.objects.all():
        number = job.args[1]
        assert tasks.lines(job.logs) == [[("INFO", f"first {number}"), ("INFO", f"second {number}")]]


def test_a_thread_without_the_context_of_the_attempt_writes_to_no_attempt() -> None:
    tasks.log_in_a_thread.defer()
    assert tasks.lines(run_only_job().logs) == [[("INFO", "of the attempt")]]


def test_the_last_lines_of_a_long_log_are_kept() -> None:
    tasks.log_many.defer(MOST_LINES + 30)
    (log,) = logs_of(run_only_job().logs)
    assert (log.dropped, len(log.lines), log.lines[-1].message) == (30, MOST_LINES, f"{MOST_LINES + 29} x")


def test_the_last_lines_of_a_log_with_many_characters_are_kept() -> None:
    tasks.log_many.defer(100, 1500)
    (log,) = logs_of(run_only_job().logs)
    assert log.dropped + len(log.lines) == 100
    assert MOST_CHARACTERS - 1600 < sum(len(line.message) + len(line.logger) for line in log.lines) <= MOST_CHARACTERS
    assert log.lines[-1].message.startswith("99 ")


def test_a_long_line_is_cut() -> None:
    tasks.log_many.defer(1, 10 * LOG_LINE_LIMIT)
    (log,) = logs_of(run_only_job().logs)
    assert len(log.lines[0].message) <= LOG_LINE_LIMIT
    assert "characters left out" in log.lines[0].message


def test_a_line_that_cannot_be_stored_does_not_fail_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()  # pytest would put the line into its report, which could not be sent to its main process
    monkeypatch.setattr(
        root, "handlers", [handler for handler in root.handlers if "_pytest" not in type(handler).__module__]
    )
    tasks.log_what_is_broken.defer()
    job = run_only_job()
    assert job.status == "completed"
    assert tasks.lines(job.logs) == [[("INFO", "nul \N{SYMBOL FOR NULL}, half \\ud800")]]


def test_the_lines_of_the_last_three_attempts_are_kept(worker_thread: StartWorker) -> None:
    tasks.fail_at.defer(0.1, 0.2, 0.3, 0.4)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert [log.attempt for log in logs_of(only_job().logs)] == [2, 3, 4]
    assert tasks.lines(only_job().logs) == [[("INFO", f"attempt {number}")] for number in (2, 3, 4)]


def test_the_lines_of_a_long_attempt_are_written_while_it_runs_as_one_entry(
    worker_thread: StartWorker, gates: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("django_skipqueue.worker.notes.LOG_WRITE_SECONDS", 0.2)
    tasks.chat.defer("a")
    worker_thread()
    wait_until(lambda: only_job().logs)
    first_count = len(tasks.lines(only_job().logs)[0])
    wait_until(lambda: len(tasks.lines(only_job().logs)[0]) > first_count)
    assert (only_job().status, len(logs_of(only_job().logs))) == ("running", 1)
    gates["a"].open()
    wait_until(lambda: only_job().status == "completed")
    (lines,) = tasks.lines(only_job().logs)
    assert [text for _, text in lines] == [f"line {number}" for number in range(1, len(lines) + 1)]


def test_an_attempt_that_times_out_keeps_its_lines(worker_thread: StartWorker) -> None:
    tasks.hang.defer()
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert only_job().status == "failed"
    assert tasks.lines(only_job().logs) == [[("INFO", "before it hangs")]]
    assert only_job().current_progress is not None


def test_a_cancelled_attempt_keeps_its_lines(worker_thread: StartWorker, gates: Any) -> None:
    job = tasks.chat.defer("a")
    worker = worker_thread()
    wait_until(lambda: any(attempt.noted for attempt in list(worker.worker.pool.attempts)))
    Job.objects.filter(pk=job.pk).cancel()
    wait_until(lambda: only_job().logs)
    assert only_job().status == "discarded"
    assert tasks.lines(only_job().logs)[0][0] == ("INFO", "line 1")


def test_an_atomic_task_keeps_its_lines(gates: Any) -> None:
    gates["a"].open()
    tasks.advance_atomically.defer("a")
    job = run_only_job()
    assert tasks.lines(job.logs) == [[("INFO", "before the commit")]]
    assert job.current_progress is not None
    assert job.current_progress.value == 1


def test_a_job_without_log_lines_and_progress_has_null_in_its_row(worker_thread: StartWorker, gates: Any) -> None:
    gates["a"].open()
    tasks.advance.defer("a")
    worker_thread(drain=True).wait()
    assert (only_job().logs, only_job().progress) == (None, None)


@pytest.mark.parametrize("level", ["LOUD", 3.5, None, True])
def test_context_log_accepts_only_logging_levels(level: Any) -> None:
    context = JobContext(job_id=1, attempt=1, max_attempts=1, queue_name="q", worker="w", database="default")
    context.log("fine", logging.WARNING)
    with pytest.raises(InvalidOption, match="level must be a logging level"):
        context.log("no", level)


MALFORMED_VALUES: list[Any] = [
    None, 3, "x", {}, [], [3], [{}], [{"lines": 3, "lease": "a"}], [{"lines": [[1, 2], ["a", 1, None, {}]]}],
    [{"started": "now", "attempt": 10**30, "lines": [[10**30, "INFO", "", "x"]]}], {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("stored_value", MALFORMED_VALUES)
def test_malformed_logs_and_progress_in_a_row_are_read_and_replaced(stored_value: Any) -> None:
    logs_of(stored_value)
    progress_of(stored_value, 1)
    job = make_job("running", logs=stored_value, progress=stored_value)
    note = '{"log": {"lease": 1, "attempt": 1, "worker": "w", "dropped": 0, "lines": [[5, "INFO", "", "new"]]}}'
    assert Store("default").note_attempts([Noted(job.pk, 1, 0.0, note)]) == {job.pk}
    settlement = Settlement(job.pk, 1, Outcome("completed", notes=note.replace("new", "newer")), 0.0, 0.0)
    assert Store("default").settle([settlement], raises=True) == {job.pk}
    assert Job.objects.get(pk=job.pk).status == "completed"

"""`RecoverOwn`: a supervisor recovers the jobs of its dead workers, also if the last claim commits after the death."""

import os
import signal
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Worker
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.processes import LAST_STATEMENT, DeadProcess, WorkerProcess
from django_skipqueue.supervisor.recover import RecoverOwn
from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.attempts.running_attempt import RunningJobs
from django_skipqueue.worker.protocol import EXIT_BLOCKED, EXIT_CLEAN, EXIT_RECYCLED, EXIT_STUCK

from ..app.rows import make_job, make_worker, state

store = Store("default")


@pytest.mark.django_db
def test_a_job_that_a_dead_worker_claimed_at_its_last_moment_is_queued_again(worker_id: str) -> None:
    died_at = 100.0
    # LAST_STATEMENT: the seconds for which a statement of a dead process may still run in PostgreSQL.
    dead_process = DeadProcess(worker_id, -9, "signal 9 (SIGKILL)", [], no_statement_after=died_at + LAST_STATEMENT)
    process = WorkerProcess("w", 1, awaiting_recovery=[dead_process])
    service = RecoverOwn(store, [process])
    service.run(died_at)
    assert service.due_at == dead_process.no_statement_after
    late_job = make_job("running", locked_by=worker_id)
    service.run(service.due_at)
    assert (state(late_job)["status"], state(late_job)["attempts"]) == ("queued", 0)
    service.run(dead_process.no_statement_after)
    assert service.due_at == NEVER


@pytest.mark.django_db
def test_jobs_of_a_crashed_worker_are_recovered_at_once_beside_299_cleanly_ended_workers() -> None:
    ids = [make_worker(name=f"w/{number}").pk for number in range(300)]
    job = make_job("running", locked_by=ids[-1])
    ended_processes = [DeadProcess(id, EXIT_RECYCLED, "it was recycled", [], no_statement_after=0.0) for id in ids[:-1]]
    crashed_process = DeadProcess(ids[-1], -9, "signal 9 (SIGKILL)", [job.pk], no_statement_after=0.0)
    service = RecoverOwn(store, [WorkerProcess("w", 1, awaiting_recovery=[*ended_processes, crashed_process])])
    with CaptureQueriesContext(connection) as queries:
        service.run(time.monotonic())
    assert state(job)["status"] == "scheduled"
    assert not Worker.objects.exists()
    assert service.due_at == NEVER
    assert len(queries) < 15  # not one query for each of the 300 workers


@pytest.mark.parametrize(
    ("wait_status", "seconds_to_wait"),
    [
        # `waitpid` returns an exit code times 256, or the number of the signal that killed the process.
        (EXIT_CLEAN << 8, 0.0),
        (EXIT_RECYCLED << 8, 0.0),
        (EXIT_STUCK << 8, LAST_STATEMENT),
        (EXIT_BLOCKED << 8, LAST_STATEMENT),
        (1 << 8, LAST_STATEMENT),
        (int(signal.SIGKILL), LAST_STATEMENT),
    ],
)
def test_statements_may_still_run_after_a_death_unless_the_process_ended_by_itself(
    wait_status: int, seconds_to_wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, lifeline = os.pipe()
    os.close(read_end)
    process = WorkerProcess("w", 1, pid=42, lifeline=lifeline)
    process.running_jobs = RunningJobs(1)
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (pid, wait_status))
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    dead_process = process.ended()
    monkeypatch.undo()
    assert dead_process is not None
    assert dead_process.no_statement_after == 100.0 + seconds_to_wait

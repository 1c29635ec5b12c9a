"""A suspect is a job that two workers ran when they died. It runs alone in a process, so that it harms no other job."""

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store

from ..app import jobs, worker_jobs
from ..app.models import Ledger
from ..app.rows import make_job, make_worker, state
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, is_alive, statuses, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]

TWO_DEATHS = ["w/1:00000000000a", "w/1:00000000000b"]

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


def start_held_job(entry: str) -> None:
    jobs.record_and_hold.using(max_attempts=9).defer(entry)
    wait_for_entry(entry)


def let_held_jobs_end() -> None:
    Ledger.objects.create(entry="go")


def wait_for_entry(entry: str) -> None:
    wait_until(lambda: Ledger.objects.filter(entry=entry).exists(), f"{entry} has started")


def enqueue_suspect(task: Any, *args: Any) -> Job:
    """Enqueue a job, and record that two workers have died while they ran it."""
    job = task.using(max_attempts=9, run_after=timedelta(hours=1)).defer(*args)
    Job.objects.filter(pk=job.pk).update(status="queued", run_after=Now(), deaths=TWO_DEATHS)
    return Job.objects.get(pk=job.pk)


def make_postponed_jobs_due() -> int:
    """Make postponed jobs due now. Returns how many there were."""
    return Job.objects.scheduled().update(run_after=Now())


def test_a_suspect_runs_alone_while_other_jobs_go_on(runworker: RunWorker) -> None:
    runworker("-c", "4", "--poll-interval", "0.2", "--name", "w")
    start_held_job("busy")
    job = enqueue_suspect(jobs.record_and_hold, "alone")
    wait_for_entry("alone")
    worker_names = {name.partition(":")[0] for name in Job.objects.running().values_list("locked_by", flat=True)}
    assert worker_names == {"w/1", "w/alone"}
    assert dict(Worker.objects.values_list("name", "concurrency")) == {"w/1": 4, "w/alone": 1}
    let_held_jobs_end()
    wait_for_statuses(completed=2)
    job.refresh_from_db()
    assert (job.attempts, job.errors) == (1, [])
    wait_until(lambda: not Worker.objects.filter(name="w/alone").exists(), "its process has ended")


def test_a_suspect_that_kills_its_own_process_fails_and_harms_no_other_job(runworker: RunWorker) -> None:
    process = runworker("-c", "4", "--poll-interval", "0.2", "--name", "w")
    start_held_job("busy")
    (worker,) = workers()
    job = enqueue_suspect(worker_jobs.exit_hard, 7, 0)
    wait_for_statuses(running=1, failed=1)
    job.refresh_from_db()
    assert job.last_error.endswith("three workers in a row died while they ran this job, so it is not run again")
    assert 'worker died worker=w/alone cause="exit code 7"\n' in process.log
    assert is_alive(worker.pid)
    let_held_jobs_end()
    wait_for_statuses(completed=1, failed=1)
    assert Job.objects.completed().get().attempts == 1


def test_two_suspects_run_one_after_the_other_with_one_attempt_each(runworker: RunWorker) -> None:
    runworker("-c", "4", "--poll-interval", "0.2", "--name", "w")
    workers()
    first_suspect, second_suspect = (enqueue_suspect(jobs.record_and_hold, entry) for entry in ("first", "second"))
    wait_until(lambda: statuses() == {"running": 1, "scheduled": 1}, "one of the suspects was put back")
    let_held_jobs_end()
    wait_until(lambda: not make_postponed_jobs_due() and statuses() == {"completed": 2}, "both have run")
    assert [state(job)["attempts"] for job in (first_suspect, second_suspect)] == [1, 1]


def test_a_stop_of_the_supervisor_stops_the_process_of_a_suspect(runworker: RunWorker) -> None:
    process = runworker("-c", "4", "--poll-interval", "0.2", "--shutdown-timeout", "0")
    enqueue_suspect(jobs.record_and_hold, "alone")
    wait_for_entry("alone")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert (statuses(), Job.objects.get().attempts) == ({"queued": 1}, 0)
    assert not Worker.objects.exists()


def test_a_worker_with_one_slot_runs_a_suspect_itself(runworker: RunWorker) -> None:
    runworker("-c", "1", "--poll-interval", "0.2", "--name", "w")
    enqueue_suspect(jobs.record, "alone")
    wait_for_statuses(completed=1)
    assert Job.objects.get().locked_by.startswith("w/1:")


def test_50_other_jobs_complete_beside_three_jobs_that_kill_their_workers(runworker: RunWorker) -> None:
    process = runworker("-c", "2", "--poll-interval", "0.2", "--name", "w")
    workers()
    worker_jobs.exit_hard.using(max_attempts=99).defer_many([(7, 0)] * 3)
    jobs.noop.using(max_attempts=99, queue_name="others").defer_many([()] * 50)
    wait_until(lambda: not make_postponed_jobs_due() and statuses() == {"completed": 50, "failed": 3}, "all have ended")
    assert process.log.count("worker died worker=w/alone") == 3
    assert process.log.count("restart_in=0s") == process.log.count("worker died worker=w/1")


def test_the_third_death_fails_a_job_only_if_it_ran_alone() -> None:
    make_worker(id="w/1:00000000000c", concurrency=2)
    job = make_job("running", attempts=3, locked_by="w/1:00000000000c", deaths=TWO_DEATHS)
    store.recover(worker_ids=["w/1:00000000000c"], job_ids=[job.pk], crashed=True)
    assert (state(job)["status"], len(state(job)["deaths"])) == ("scheduled", 3)
    make_worker(id="w/alone:00000000000d", name="w/alone", concurrency=1)
    Job.objects.update(status="running", locked_by="w/alone:00000000000d", locked_at=Now())
    store.recover(worker_ids=["w/alone:00000000000d"], job_ids=[job.pk], crashed=True)
    assert state(job)["status"] == "failed"


def test_a_suspect_can_be_taken_over_only_with_its_last_lease(worker_id: str) -> None:
    job = enqueue_suspect(jobs.noop)
    (claimed_job,) = store.claim(queue_names=["default"], limit=1, worker_id=worker_id)
    assert claimed_job.is_suspect
    taken_over_job = store.take_over(claimed_job.ref, worker_id="w/alone:00000000000d")
    assert taken_over_job is not None
    assert (taken_over_job.id, taken_over_job.attempt, taken_over_job.lease) == (job.pk, 1, claimed_job.lease + 1)
    assert store.take_over(claimed_job.ref, worker_id="w/alone:00000000000e") is None
    assert store.release([claimed_job.ref], later=True) == set()
    assert state(job)["locked_by"] == "w/alone:00000000000d"


def test_a_suspect_that_is_released_for_later_waits_for_up_to_ten_seconds(worker_id: str) -> None:
    enqueue_suspect(jobs.noop)
    (claimed_job,) = store.claim(queue_names=["default"], limit=1, worker_id=worker_id)
    store.release([claimed_job.ref], later=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT status, attempts, run_after - now() BETWEEN '-1 s' AND '10 s' FROM skipqueue_job")
        assert cursor.fetchone() == ("scheduled", 0, True)

"""A process that a task forks does not act as a worker: it ends like any other process, and runs no other job."""

import os
import signal
from collections.abc import Callable

import pytest

from django_skipqueue.models import Job

from ...app.models import Ledger
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, children, is_alive, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]

JOBS = """
    import multiprocessing
    import os
    import signal
    import sys
    import time

    from django.db import connection
    from django_skipqueue import job
    from tests.app.models import Ledger

    fork = multiprocessing.get_context("fork")


    @job(max_attempts=1)
    def terminates_a_child():
        child = fork.Process(target=time.sleep, args=[3600])
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join()
        return child.exitcode


    @job(max_attempts=1)
    def leaves_a_pool_early():
        with fork.Pool(2) as pool:
            pool.apply_async(time.sleep, [3600])
            time.sleep(0.2)


    # Ends the child process, unless `how` is "return".
    def end_child(how):
        if how == "raise":
            raise ValueError("in the child")
        if how == "exit":
            sys.exit(3)
        if how == "say":
            sys.exit("a reason")


    def forks_and(how):
        Ledger.objects.create(entry=f"{how} before")
        return code_of_child(how)


    def code_of_child(how):
        pid = os.fork()
        if pid == 0:
            end_child(how)
            return "of the child"
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


    @job(max_attempts=1)
    def forks(how):
        return forks_and(how)


    @job(max_attempts=1, atomic=True)
    def forks_in_a_transaction(how):
        return forks_and(how)


    @job(max_attempts=1)
    async def forks_in_a_coroutine(how):
        return code_of_child(how)


    @job(max_attempts=1)
    def step(number):
        Ledger.objects.create(entry=f"step {number}")


    @job(max_attempts=1)
    async def astep(number):
        await Ledger.objects.acreate(entry=f"step {number}")


    @job(max_attempts=1)
    def child_writes():
        Ledger.objects.count()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [ours] = cursor.fetchone()
        pid = os.fork()
        if pid == 0:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                Ledger.objects.create(entry=str(cursor.fetchone()[0]))
            return
        os.waitpid(pid, 0)
        Ledger.objects.create(entry="parent")
        return ours


    @job(max_attempts=1)
    def child_outlives_the_worker():
        if os.fork() == 0:
            time.sleep(3600)
        time.sleep(3600)
"""

STEPS = 50

EXIT_CODES = {"raise": 1, "exit": 3, "say": 1, "return": 0}


@pytest.mark.parametrize(("task", "result"), [("terminates_a_child", -15), ("leaves_a_pool_early", None)])
def test_a_child_process_of_a_task_can_be_terminated(runworker: RunWorker, task: str, result: int | None) -> None:
    job = Job.objects.enqueue(f"extra.jobs.{task}", max_attempts=1)
    worker = runworker(jobs=JOBS)
    wait_for_statuses(completed=1)
    job.refresh_from_db()
    assert job.result == result
    [process] = children(worker.process.pid)
    wait_until(lambda: not children(process), "no process is left")


@pytest.mark.parametrize("task", ["forks", "forks_in_a_transaction", "forks_in_a_coroutine"])
def test_a_forked_child_runs_no_job_and_writes_no_outcome(runworker: RunWorker, task: str) -> None:
    """The task's function ends in the child in several ways, while the worker has claimed further jobs."""
    job_by_end = {
        how: Job.objects.enqueue(f"extra.jobs.{task}", args=f'["{how}"]', max_attempts=1) for how in EXIT_CODES
    }
    for number in range(STEPS):
        kind = "astep" if "coroutine" in task else "step"
        Job.objects.enqueue(f"extra.jobs.{kind}", args=f"[{number}]", max_attempts=1)
    worker = runworker("-c", "1", jobs=JOBS)
    wait_for_statuses(completed=STEPS + len(EXIT_CODES))
    for how, job in job_by_end.items():
        job.refresh_from_db()
        assert job.result == EXIT_CODES[how], how
    steps = Ledger.objects.filter(entry__startswith="step")
    assert steps.count() == STEPS
    [process] = children(worker.process.pid)
    assert not children(process)
    assert "ValueError: in the child" in worker.log
    assert "a reason" in worker.log


def test_a_forked_child_has_a_database_session_of_its_own(runworker: RunWorker) -> None:
    job = Job.objects.enqueue("extra.jobs.child_writes", max_attempts=1)
    runworker("-c", "1", jobs=JOBS)
    wait_for_statuses(completed=1)
    job.refresh_from_db()
    childs_session, parents_entry = Ledger.objects.order_by("pk").values_list("entry", flat=True)
    assert parents_entry == "parent"
    assert childs_session != str(job.result)


def test_a_forked_child_that_outlives_its_worker_does_not_keep_the_job(runworker: RunWorker) -> None:
    Job.objects.enqueue("extra.jobs.child_outlives_the_worker", max_attempts=1)
    runworker("-c", "1", "--shutdown-timeout", "0.2", jobs=JOBS)
    [worker_row] = workers()
    wait_until(lambda: children(worker_row.pid), "the child is there")
    [child] = children(worker_row.pid)
    os.kill(worker_row.pid, signal.SIGKILL)
    wait_for_statuses(failed=1)
    os.kill(child, signal.SIGTERM)
    wait_until(lambda: not is_alive(child), "the child has ended")

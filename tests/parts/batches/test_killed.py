"""The callbacks of a batch are enqueued exactly once, at whichever statement SIGKILL ends a process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_skipqueue import Batch
from django_skipqueue.models import Job, JobBatch

from ...app import jobs
from ...app.waiting import wait_until
from ...harness.processes import ManagePy

pytestmark = pytest.mark.django_db(transaction=True)

# Patches a method of the store in each process. The first process that calls the method kills itself.
DEADLY = """
import os, signal
from django_skipqueue.queue.store import Store
from django_skipqueue.parts.batches import finish
from django_skipqueue.parts.batches.services import BatchCheck

def die_once():
    try:  # only the first process can create the file
        os.close(os.open({flag!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

rows, execute, run = Store.rows, Store.execute, BatchCheck.run

def deadly_rows(self, statement, values=None):
    if {point!r} == "before the lock" and statement == finish.LOCK_BATCHES:
        die_once()
    rows_found = rows(self, statement, values)
    if {point!r} == "after the lock" and statement == finish.LOCK_BATCHES:
        die_once()
    if {point!r} == "after the finish" and statement == finish.FINISH_BATCHES:
        die_once()
    return rows_found

def deadly_execute(self, statement, values=None):
    execute(self, statement, values)
    if {point!r} == "before the commit" and statement == finish.NOTE_CALLBACKS:
        die_once()

def deadly_run(self, now):
    if {point!r} == "before the check":
        die_once()
    run(self, now)
    if {point!r} == "after the commit":
        die_once()

Store.rows, Store.execute, BatchCheck.run = deadly_rows, deadly_execute, deadly_run
"""

POINTS = [
    "before the check",
    "before the lock",
    "after the lock",
    "after the finish",
    "before the commit",
    "after the commit",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_while_it_finishes_a_batch_loses_no_callback(
    runworker: Callable[..., ManagePy], tmp_path: Path, point: str
) -> None:
    flag = tmp_path / "died"
    source = DEADLY.format(flag=str(flag), point=point)
    process: Any = runworker("--processes", "2", "--poll-interval", "0.1", jobs=source)
    with Batch(on_success=jobs.echo.s("good"), on_failure=jobs.echo.s("bad"), on_finish=jobs.echo.s("over")):
        for _ in range(10):
            jobs.noop.defer()

    def has_ended() -> bool:
        return process.process.poll() is not None

    wait_until(lambda: has_ended() or Job.objects.completed().count() == 12, "the jobs and two callbacks are completed")
    wait_until(flag.exists, "a process died")
    if has_ended():  # the killed process was the supervisor, which finishes batches as well: start another supervisor
        runworker("--poll-interval", "0.1")
        wait_until(lambda: Job.objects.completed().count() == 12, "the jobs and two callbacks are completed")
    assert list(Job.objects.filter(task__endswith="echo").order_by("id").values_list("args", flat=True)) == [
        ["good"],
        ["over"],
    ]
    assert JobBatch.objects.get().completed == 10

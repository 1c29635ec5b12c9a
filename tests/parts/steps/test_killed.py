"""A job with steps of all kinds ends correctly, whichever of its statements a worker dies before or after."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_skipqueue.models import Dependency, Job, JobChild, JobSignal, JobStep

from ...app.models import Ledger
from ...app.waiting import wait_until
from ...harness.processes import ManagePy

pytestmark = pytest.mark.django_db(transaction=True)

# Kills the worker of each job once: before or after a statement, when the job comes to it the given number of times.
DEADLY = """
    import os, signal
    from django_skipqueue import JobContext, job
    from django_skipqueue.parts.steps import attempt, children, record
    from django_skipqueue.queue.store import Store
    from tests.app.models import Ledger

    NAMES = {
        getattr(module, name): name
        for module, name in [
            (record, "STEPS"), (record, "RECORD_STEP"), (record, "TAKE_SIGNAL"),
            (children, "ADD_CHILDREN"), (children, "CHILDREN"), (children, "FORGET_CHILDREN"),
        ]
    }
    rows, execute, ended = Store.rows, Store.execute, attempt.AttemptSteps.ended

    def die_if_wanted(moment, name):
        context = JobContext.current()
        if context is None or context.job.task != "extra.jobs.flow":
            return
        point, times = context.job.args
        if f"{moment} {name}" != point:
            return
        with open(f"{FOLDER}/{context.job_id} came here", "ab") as visits:  # counts the visits of all processes
            visits.write(b".")
            number_of_visits = visits.tell()
        if number_of_visits == times:
            try:
                os.close(os.open(f"{FOLDER}/{context.job_id}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly_rows(self, statement, values=None):
        name = NAMES.get(statement)
        name and die_if_wanted("before", name)
        rows_found = rows(self, statement, values)
        name and die_if_wanted("after", name)
        return rows_found

    def deadly_execute(self, statement, values=None):
        name = NAMES.get(statement)
        name and die_if_wanted("before", name)
        execute(self, statement, values)
        name and die_if_wanted("after", name)

    def deadly_ended(self, outcome):
        die_if_wanted("before", "end")
        return ended(self, outcome)

    Store.rows, Store.execute, attempt.AttemptSteps.ended = deadly_rows, deadly_execute, deadly_ended

    @job
    def child(number):
        return number

    @job(takes_context=True, max_attempts=3)
    def flow(context, point, times):
        def write(entry):
            Ledger.objects.create(entry=entry, job_id=context.job_id)
            return entry

        first = context.step("first", write, "first", atomic=True)
        context.sleep("nap", 0.05)
        results = context.run_all("children", [child.s(1), child.s(2)])
        answer = context.wait("go")
        context.each("items", list(range(3)), lambda number: write(f"item {number}"), atomic=True)
        for _ in context.each("loop", list(range(3))):
            pass
        context.step("last", write, "last", atomic=True)
        return [first, results, answer]
"""

POINTS = [
    *(
        (f"{when} {name}", 1)
        for name in ("STEPS", "TAKE_SIGNAL", "ADD_CHILDREN", "FORGET_CHILDREN")
        for when in ("before", "after")
    ),
    *((f"{when} CHILDREN", 1) for when in ("before", "after")),
    *((f"{when} RECORD_STEP", times) for when in ("before", "after") for times in (1, 2, 3)),
    *(("before end", times) for times in (1, 2)),
]


def test_a_job_with_steps_survives_a_kill_between_any_two_statements(
    runworker: Callable[..., ManagePy], tmp_path: Path
) -> None:
    runworker(
        *("--processes", "2", "--concurrency", "1", "--poll-interval", "0.2"),
        jobs=DEADLY.replace("{FOLDER}", str(tmp_path)),
    )
    deferred_jobs = [Job.objects.enqueue("extra.jobs.flow", args=list(point)) for point in POINTS]
    for number, flow_job in enumerate(deferred_jobs):
        if number % 2:  # this job gets its signal before it waits
            assert flow_job.signal("go", flow_job.pk)
    flows = Job.objects.filter(task="extra.jobs.flow")
    wait_until(lambda: JobStep.objects.filter(is_waiting=True).exists(), "a job waits")
    for number, flow_job in enumerate(deferred_jobs):
        if not number % 2:
            assert flow_job.signal("go", flow_job.pk)
    wait_until(lambda: not flows.unfinished().exists(), "all have ended", deadline=240)
    results: dict[int, Any] = dict(flows.values_list("pk", "result"))
    assert results == {flow_job.pk: ["first", [1, 2], flow_job.pk] for flow_job in deferred_jobs}, list(
        flows.failed().values_list("args", "last_error")
    )
    entry_counts = Counter(Ledger.objects.values_list("job_id", "entry"))
    assert entry_counts == {
        (flow_job.pk, entry): 1
        for flow_job in deferred_jobs
        for entry in ("first", "item 0", "item 1", "item 2", "last")
    }
    ids_of_killed_jobs = {int(path.name) for path in tmp_path.iterdir() if path.is_file() and path.name.isdigit()}
    assert ids_of_killed_jobs == results.keys(), "the worker of each job has died"
    assert JobChild.objects.count() == 2 * len(deferred_jobs) == Job.objects.exclude(task="extra.jobs.flow").count()
    assert not Dependency.objects.exists()
    assert not JobSignal.objects.filter(taken_at=None).exists()
    assert not JobStep.objects.filter(recorded_at=None).exists()
    for flow_job in deferred_jobs:
        names = JobStep.objects.filter(job_id=flow_job.pk).order_by("number").values_list("name", flat=True)
        assert list(names) == ["first", "nap", "children", "go", "items", "loop", "last"]

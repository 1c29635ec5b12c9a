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

# Kills the worker of each job once, before or after the statement that the job's argument names.
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

    def at(moment, name):
        context = JobContext.current()
        if context is None or context.job.task != "extra.jobs.flow":
            return
        wanted, times = context.job.args
        if f"{moment} {name}" != wanted:
            return
        with open(f"{FOLDER}/{context.job_id} came here", "ab") as seen:  # over all processes
            seen.write(b".")
            number = seen.tell()
        if number == times:
            try:
                os.close(os.open(f"{FOLDER}/{context.job_id}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly_rows(self, statement, values=None):
        name = NAMES.get(statement)
        name and at("before", name)
        found = rows(self, statement, values)
        name and at("after", name)
        return found

    def deadly_execute(self, statement, values=None):
        name = NAMES.get(statement)
        name and at("before", name)
        execute(self, statement, values)
        name and at("after", name)

    def deadly_ended(self, outcome):
        at("before", "end")
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
        found = context.run_all("children", [child.s(1), child.s(2)])
        answer = context.wait("go")
        context.each("items", list(range(3)), lambda number: write(f"item {number}"), atomic=True)
        for _ in context.each("loop", list(range(3))):
            pass
        context.step("last", write, "last", atomic=True)
        return [first, found, answer]
"""

POINTS = [
    *(
        (f"{when} {name}", 1)
        for name in ("STEPS", "TAKE_SIGNAL", "ADD_CHILDREN", "FORGET_CHILDREN")
        for when in ("before", "after")
    ),
    *((f"{when} CHILDREN", times) for when in ("before", "after") for times in (1,)),
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
    made = [Job.objects.enqueue("extra.jobs.flow", args=list(point)) for point in POINTS]
    for number, each in enumerate(made):
        if number % 2:
            assert each.signal("go", each.pk)
    flows = Job.objects.filter(task="extra.jobs.flow")
    wait_until(lambda: JobStep.objects.filter(is_waiting=True).exists(), "a job waits")
    for number, each in enumerate(made):
        if not number % 2:
            assert each.signal("go", each.pk)
    wait_until(lambda: not flows.unfinished().exists(), "all have ended", deadline=240)
    results: dict[int, Any] = dict(flows.values_list("pk", "result"))
    assert results == {each.pk: ["first", [1, 2], each.pk] for each in made}, list(
        flows.failed().values_list("args", "last_error")
    )
    written = Counter(Ledger.objects.values_list("job_id", "entry"))
    assert written == {
        (each.pk, entry): 1 for each in made for entry in ("first", "item 0", "item 1", "item 2", "last")
    }
    assert {
        int(path.name) for path in tmp_path.iterdir() if path.is_file() and path.name.isdigit()
    } == results.keys()  # the worker of each job has died
    assert JobChild.objects.count() == 2 * len(made) == Job.objects.exclude(task="extra.jobs.flow").count()
    assert not Dependency.objects.exists()
    assert not JobSignal.objects.filter(taken_at=None).exists()
    assert not JobStep.objects.filter(recorded_at=None).exists()
    for each in made:
        names = JobStep.objects.filter(job_id=each.pk).order_by("number").values_list("name", flat=True)
        assert list(names) == ["first", "nap", "children", "go", "items", "loop", "last"]

"""During a deploy, a worker with the old code and a worker with the new code share one table of jobs."""

import itertools
import signal
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import EncodedCall, JobSpec

from ..app.models import Ledger
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, statuses, wait_for_statuses, workers

store = Store("default")

Run = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)

OLD = """\
    from django_skipqueue import job
    from tests.app.models import Ledger


    @job
    def send(number):
        Ledger.objects.create(entry=f"old send {number}")


    @job
    def rename_me(number):
        Ledger.objects.create(entry=f"old name {number}")


    @job
    def remove_me():
        Ledger.objects.create(entry="old only")
"""
NEW = """\
    from django_skipqueue import job
    from django_skipqueue.values.backoff import constant
    from tests.app.models import Ledger


    @job(backoff=constant(0, jitter=0))
    def send(number, language="en"):
        Ledger.objects.create(entry=f"new send {number} {language}")


    @job(name="extra.jobs.rename_me")
    def renamed(number):
        Ledger.objects.create(entry=f"new name {number}")


    @job
    def added():
        Ledger.objects.create(entry="new only")
"""


def enqueue(task: str, *arguments: str, **options: object) -> None:
    """Insert a job as `.defer()` does in the code of another process. The arguments are JSON."""
    calls = [EncodedCall(each, "{}") for each in arguments or ("[]",)]
    store.enqueue_many(JobSpec(f"extra.jobs.{task}", **options), calls)  # type: ignore[arg-type]


def entries(prefix: str) -> set[str]:
    """The entries of the tasks that begin with this text."""
    return set(Ledger.objects.filter(entry__startswith=prefix).values_list("entry", flat=True))


@pytest.fixture
def old(runworker: Run) -> Callable[[], ManagePy]:
    return lambda: runworker("--poll-interval", HOUR, "--name", "old", jobs=OLD)


@pytest.fixture
def new(runworker: Run) -> Callable[[], ManagePy]:
    return lambda: runworker("--poll-interval", HOUR, "--name", "new", jobs=NEW)


def stop(process: ManagePy) -> None:
    """Stop the worker gracefully, as a deploy does."""
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.log


def make_due() -> None:
    """Make the postponed jobs due now."""
    Job.objects.scheduled().update(run_after=Now() - timedelta(seconds=1))


def test_a_deploy_under_load_loses_and_charges_no_job(old: Callable[[], ManagePy], new: Callable[[], ManagePy]) -> None:
    numbers = itertools.count()

    def load() -> None:
        """There are always jobs to run, however long the new code takes to start."""
        if Job.objects.queued().count() < 1_000:
            enqueue("send", *(f"[{next(numbers)}]" for _ in range(1_000)))

    def new_is_at_work() -> bool:
        load()
        return bool(entries("new send"))

    load()
    first = old()
    wait_until(lambda: entries("old send"), "the old code is at work")
    second = new()
    wait_until(new_is_at_work, "and the new beside it")
    stop(first)
    enqueued = next(numbers)
    wait_for_statuses(completed=enqueued, deadline=60)
    assert Ledger.objects.count() == enqueued, "each ran once"
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    stop(second)


def test_a_new_task_waits_for_the_new_code_at_no_attempt(
    old: Callable[[], ManagePy], new: Callable[[], ManagePy]
) -> None:
    first = old()
    workers()
    enqueue("added", max_attempts=1)
    wait_for_statuses(scheduled=1)
    assert Job.objects.get().attempts == 0
    assert "UnknownTask" in Job.objects.get().last_error
    second = new()
    workers(2)
    stop(first)
    make_due()
    wait_for_statuses(completed=1)
    assert entries("new only")
    stop(second)


def test_old_workers_run_the_jobs_of_a_removed_task(old: Callable[[], ManagePy], new: Callable[[], ManagePy]) -> None:
    second = new()
    workers()
    enqueue("remove_me", max_attempts=1)
    wait_for_statuses(scheduled=1)
    stop(second)
    first = old()
    workers()
    make_due()
    wait_for_statuses(completed=1)
    assert entries("old only")
    stop(first)


def test_a_renamed_task_that_keeps_its_name_for_the_queue_runs_in_both(
    old: Callable[[], ManagePy], new: Callable[[], ManagePy]
) -> None:
    for start, prefix in ((old, "old name 1"), (new, "new name 1")):
        process = start()
        enqueue("rename_me", "[1]", max_attempts=1)
        wait_until(lambda prefix=prefix: entries(prefix))  # type: ignore[misc]
        stop(process)
    assert statuses() == {"completed": 2}


def test_a_new_argument_with_a_default_survives_a_rolling_deploy(
    old: Callable[[], ManagePy], new: Callable[[], ManagePy]
) -> None:
    second = new()
    enqueue("send", "[1]", max_attempts=1)
    wait_until(lambda: entries("new send 1 en"), "a job of the old code runs in the new")
    stop(second)
    first = old()
    workers()
    enqueue("send", '[2, "de"]')
    wait_for_statuses(completed=1, scheduled=1)
    assert "TypeError" in Job.objects.scheduled().get().last_error, "the old code takes one argument"
    stop(first)
    second = new()
    workers()
    make_due()
    wait_for_statuses(completed=2)
    assert entries("new send 2 de")
    stop(second)

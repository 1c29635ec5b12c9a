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

RunWorker = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)

OLD_JOBS_MODULE = """\
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
NEW_JOBS_MODULE = """\
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


def enqueue_for_extra_app(task: str, *arguments: str, **options: object) -> None:
    """Insert a job as `.defer()` does in the code of another process. The arguments are JSON."""
    calls = [EncodedCall(args, "{}") for args in arguments or ("[]",)]
    store.enqueue_many(JobSpec(f"extra.jobs.{task}", **options), calls)  # type: ignore[arg-type]


def entries_with_prefix(prefix: str) -> set[str]:
    """Return the entries that the tasks have written and that begin with this text."""
    return set(Ledger.objects.filter(entry__startswith=prefix).values_list("entry", flat=True))


@pytest.fixture
def start_old_worker(runworker: RunWorker) -> Callable[[], ManagePy]:
    return lambda: runworker("--poll-interval", HOUR, "--name", "old", jobs=OLD_JOBS_MODULE)


@pytest.fixture
def start_new_worker(runworker: RunWorker) -> Callable[[], ManagePy]:
    return lambda: runworker("--poll-interval", HOUR, "--name", "new", jobs=NEW_JOBS_MODULE)


def stop(process: ManagePy) -> None:
    """Stop the worker gracefully, as a deploy does."""
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.log


def make_postponed_jobs_due() -> None:
    """Make the postponed jobs due now."""
    Job.objects.scheduled().update(run_after=Now() - timedelta(seconds=1))


def test_each_job_runs_once_during_a_deploy_under_load(
    start_old_worker: Callable[[], ManagePy], start_new_worker: Callable[[], ManagePy]
) -> None:
    numbers = itertools.count()

    def keep_1000_jobs_queued() -> None:
        """Enqueue jobs if few are queued, so that there are always jobs to run while the new worker starts."""
        if Job.objects.queued().count() < 1_000:
            enqueue_for_extra_app("send", *(f"[{next(numbers)}]" for _ in range(1_000)))

    def new_worker_has_run_jobs() -> bool:
        keep_1000_jobs_queued()
        return bool(entries_with_prefix("new send"))

    keep_1000_jobs_queued()
    old_worker = start_old_worker()
    wait_until(lambda: entries_with_prefix("old send"), "the old worker has run jobs")
    new_worker = start_new_worker()
    wait_until(new_worker_has_run_jobs, "the new worker has run jobs too")
    stop(old_worker)
    enqueued_count = next(numbers)  # the numbers begin with 0
    wait_for_statuses(completed=enqueued_count, deadline=60)
    assert Ledger.objects.count() == enqueued_count, "each job ran once"
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    stop(new_worker)


def test_a_job_of_a_new_task_waits_for_the_new_worker_and_loses_no_attempt(
    start_old_worker: Callable[[], ManagePy], start_new_worker: Callable[[], ManagePy]
) -> None:
    old_worker = start_old_worker()
    workers()
    enqueue_for_extra_app("added", max_attempts=1)
    wait_for_statuses(scheduled=1)
    assert Job.objects.get().attempts == 0
    assert "UnknownTask" in Job.objects.get().last_error
    new_worker = start_new_worker()
    workers(2)
    stop(old_worker)
    make_postponed_jobs_due()
    wait_for_statuses(completed=1)
    assert entries_with_prefix("new only")
    stop(new_worker)


def test_old_workers_run_the_jobs_of_a_removed_task(
    start_old_worker: Callable[[], ManagePy], start_new_worker: Callable[[], ManagePy]
) -> None:
    new_worker = start_new_worker()
    workers()
    enqueue_for_extra_app("remove_me", max_attempts=1)
    wait_for_statuses(scheduled=1)
    stop(new_worker)
    old_worker = start_old_worker()
    workers()
    make_postponed_jobs_due()
    wait_for_statuses(completed=1)
    assert entries_with_prefix("old only")
    stop(old_worker)


def test_a_renamed_function_with_the_old_task_name_runs_in_both_workers(
    start_old_worker: Callable[[], ManagePy], start_new_worker: Callable[[], ManagePy]
) -> None:
    for start, prefix in ((start_old_worker, "old name 1"), (start_new_worker, "new name 1")):
        process = start()
        enqueue_for_extra_app("rename_me", "[1]", max_attempts=1)
        wait_until(lambda prefix=prefix: entries_with_prefix(prefix))  # type: ignore[misc]
        stop(process)
    assert statuses() == {"completed": 2}


def test_jobs_with_a_new_argument_wait_for_the_new_worker(
    start_old_worker: Callable[[], ManagePy], start_new_worker: Callable[[], ManagePy]
) -> None:
    new_worker = start_new_worker()
    enqueue_for_extra_app("send", "[1]", max_attempts=1)
    wait_until(lambda: entries_with_prefix("new send 1 en"), "a job without the argument runs in the new worker")
    stop(new_worker)
    old_worker = start_old_worker()
    workers()
    enqueue_for_extra_app("send", '[2, "de"]')
    wait_for_statuses(completed=1, scheduled=1)
    assert "TypeError" in Job.objects.scheduled().get().last_error, "the old code takes one argument"
    stop(old_worker)
    new_worker = start_new_worker()
    workers()
    make_postponed_jobs_due()
    wait_for_statuses(completed=2)
    assert entries_with_prefix("new send 2 de")
    stop(new_worker)

"""`on_conflict="rerun"`: while a job of the key runs, exactly one job waits, and runs afterwards with new arguments."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from django_skipqueue import job, limit, unique_by
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.parts.limits.admit import admit_keys
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement

from ...app.models import Ledger
from ...app.unique.jobs import runs_again
from ...app.waiting import wait_until
from ...harness.processes import ManagePy

store = Store("default")

Run = Callable[..., ManagePy]

pytestmark = pytest.mark.django_db(transaction=True)

SEQUENCE_KEY = 'rerun:tests.app.unique.jobs.runs_again(key="k")'


def claim_all() -> list[Job]:
    return Job.objects.claim(queue_names=["default"], limit=9, worker_id="w")


def statuses() -> list[str]:
    return [str(status) for status in Job.objects.order_by("pk").values_list("status", flat=True)]


def test_while_a_job_runs_one_other_job_waits_with_the_newest_arguments() -> None:
    first = runs_again.defer("k", 1)
    assert first.created
    (running,) = claim_all()
    second = runs_again.defer("k", 2)
    third = runs_again.defer("k", 3)
    assert (second.created, third.created, third.replaced) == (True, False, True)
    assert runs_again.defer_many([("k", 4), ("k", 5)]).outcomes == ["existing", "replaced"]
    assert statuses() == ["running", "blocked"]
    assert claim_all() == []
    running.complete()
    admit_keys(store, [SEQUENCE_KEY])
    (waiting_job,) = claim_all()
    assert (waiting_job.pk, waiting_job.args) == (second.pk, ["k", 5])
    waiting_job.complete()
    assert statuses() == ["completed", "completed"]


def test_a_second_call_before_the_start_replaces_the_arguments_of_the_job() -> None:
    first = runs_again.defer("k", 1)
    second = runs_again.defer("k", 2)
    assert (second.pk, second.replaced) == (first.pk, True)
    (running,) = claim_all()
    assert running.args == ["k", 2]


def test_a_job_with_another_key_does_not_wait() -> None:
    runs_again.defer("k")
    claim_all()
    runs_again.defer("other")
    assert [job.args for job in claim_all()] == [["other"]]


def test_the_waiting_job_also_waits_for_the_retry_of_the_running_job() -> None:
    runs_again.defer("k", 1)
    (running,) = claim_all()
    runs_again.defer("k", 2)
    store.settle([Settlement(running.pk, running.lease, Outcome("scheduled", delay=3600.0))])
    admit_keys(store, [SEQUENCE_KEY])
    assert statuses() == ["scheduled", "blocked"]
    Job.objects.filter(pk=running.pk).cancel()
    admit_keys(store, [SEQUENCE_KEY])
    assert [job.args for job in claim_all()] == [["k", 2]]


def test_a_failed_job_that_is_retried_by_hand_waits_for_the_running_job_of_its_key() -> None:
    runs_again.defer("k", 1)
    (failed,) = claim_all()
    store.settle([Settlement(failed.pk, failed.lease, Outcome("failed"))])
    runs_again.defer("k", 2)
    assert not Job.objects.get(pk=failed.pk).retry(), "another job with the key waits"
    (running,) = claim_all()
    assert Job.objects.get(pk=failed.pk).retry()
    assert claim_all() == []
    store.settle([Settlement(running.pk, running.lease, COMPLETED)])
    admit_keys(store, [SEQUENCE_KEY])
    assert [job.pk for job in claim_all()] == [failed.pk]


def test_the_last_call_runs_after_all_others_and_no_two_jobs_of_the_key_overlap(runworker: Run) -> None:
    """Six threads defer 25 jobs each, while a worker with four slots runs."""
    runworker("--concurrency", "4")

    def defer_25_times(caller: int) -> None:
        try:
            for number in range(25):
                runs_again.defer("k", 100 * caller + number, seconds=0.005)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(defer_25_times, range(6)))
    last_job = runs_again.defer("k", 9999)
    wait_until(lambda: not Job.objects.unfinished().exists())
    events = list(Ledger.objects.order_by("id").values_list("entry", "job_id"))
    start_and_end_events = [entry.split()[0] for entry, _ in events]
    assert start_and_end_events == ["start", "end"] * (len(start_and_end_events) // 2), "never two jobs at once"
    assert events[-1] == ("end k 9999", last_job.pk)
    assert Job.objects.count() == len(start_and_end_events) // 2


@pytest.mark.parametrize(
    "options",
    [
        {"until": "started"},
        {"concurrency": limit(2)},
    ],
)
def test_until_started_and_a_limit_are_refused_together_with_rerun(options: Any, registry: Registry) -> None:
    def refused(key: str) -> None: ...

    refused.__qualname__ = "refused"
    with pytest.raises(InvalidOption, match="one after the other, so it cannot be combined with"):
        job(unique=unique_by("key"), on_conflict="rerun", **options)(refused)  # type: ignore[no-untyped-call]


def test_using_refuses_on_conflict_rerun(registry: Registry) -> None:
    def task_without_rerun(key: str) -> None: ...

    task_without_rerun.__qualname__ = "task_without_rerun"
    with pytest.raises(InvalidOption, match='Give on_conflict="rerun" to @job'):
        job(unique=unique_by("key"))(task_without_rerun).using(on_conflict="rerun")

"""The address of every admin page, and the rows that the pages show, for tests that open all pages."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.utils import quote
from django.db.models.functions import Now
from django.test import override_settings

from django_skipqueue import Batch, job
from django_skipqueue.console.job_states import STATES
from django_skipqueue.console.search import cause_query
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Queue, Schedule
from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.parts.batches.finish import finish_open_batches
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner
from django_skipqueue.values.records import Cause

from ...app import jobs
from ...app.limit_rows import make_halted, make_limited
from ...app.rows import make_job
from ...app.verbs import BY_ACTION
from ...harness.partitions import drop_partitions
from ...harness.parts import modules_of_parts
from ...parts.schedules.rows import make_schedule
from . import scene

CAUSE = Cause("payments.jobs.capture_payment", "psp.errors.GatewayUnavailable", "payments.gateway.capture")
JOBS, QUEUES, WORKERS, ARCHIVE, SCHEDULES, BATCHES = (
    f"django_skipqueue/{name}/" for name in ("job", "queue", "worker", "archivedjob", "schedule", "jobbatch")
)
QUESTIONS = {
    f"question of {name}": {"action": name, "select_across": "1", "_selected_action": "all"} for name in BY_ACTION
}
"""The questions that the job list asks after a POST, by name, with the fields to post."""


def capture_payment(payment_id: int, amount: str = "0.00", *, notify: bool = True) -> None:
    """A task with parameters of several types, for the form that edits its arguments."""


@pytest.fixture(name="addresses")
def made_addresses(transactional_db: None, settings: Any, registry: Registry) -> Iterator[Mapping[str, str]]:
    """Yield the address of each page below `/admin/`, by the name of the page."""
    settings.SKIPQUEUE = {"ARCHIVE": None}
    yield make_pages()
    drop_partitions()


def make_pages() -> Mapping[str, str]:
    """Make the jobs and workers of a shop with problems. Returns the address of each page by its name.

    The setting `ARCHIVE` is on; the caller drops the partitions.
    """
    job(name=CAUSE.task)(capture_payment)
    archived = make_job("failed", task="tests.app.jobs.noop", finished_at=timedelta(days=-40))
    Pruner(Store("default")).batch()
    workers = scene.make_workers()
    jobs_by_status = {made_job.status: made_job for made_job in scene.make_jobs(workers)}
    failed = _set_place_of_failure(jobs_by_status["failed"])
    make_job(queue_name="nobody serves it")
    Queue.pause("payments", for_=timedelta(minutes=45), by="ann", reason="psp.example.com cannot be reached")
    batches = _make_batches()
    with override_settings(SKIPQUEUE={"QUEUES": {"emails": {"concurrency": None, "rate": None}}}):
        Queue.limit("emails", 4)
        Queue.rate("emails", "50/s")
    schedules = _make_schedules(jobs_by_status["completed"])
    running, queued, completed = (jobs_by_status[status].pk for status in ("running", "queued", "completed"))
    return {
        "index": "",
        "app": "django_skipqueue/",
        "dashboard": f"{JOBS}dashboard/?range=6h",
        "jobs": JOBS,
        **{f"jobs {state}": f"{JOBS}?status={state}" for state in STATES},
        "jobs not found": f"{JOBS}?q=nothing",
        "jobs of a cause": f"{JOBS}?status=failed&{cause_query(CAUSE)}",
        "failed job": f"{JOBS}{failed.pk}/change/",
        "running job": f"{JOBS}{running}/change/",
        "job with a log": f"{JOBS}{scene.make_running_job(workers[0]).pk}/change/",
        "queued job": f"{JOBS}{queued}/change/",
        "completed job": f"{JOBS}{completed}/change/",
        "history": f"{JOBS}{failed.pk}/history/",
        "delete": f"{JOBS}{completed}/delete/",
        "discard": f"{JOBS}{queued}/discard/",
        "cancel": f"{JOBS}{running}/cancel/",
        "reschedule": f"{JOBS}{queued}/reschedule/",
        "change queue": f"{JOBS}{queued}/change-queue/",
        "change priority": f"{JOBS}{queued}/change-priority/",
        "run again": f"{JOBS}{completed}/run-again/",
        "edit": f"{JOBS}{failed.pk}/edit/",
        "progress": f"{JOBS}{_make_bulk_action().pk}/progress/",
        "progress of a search": f"{JOBS}{(search := _make_search(failed)).pk}/progress/",
        "jobs of a search": f"{JOBS}?found={search.pk}",
        "limits": f"{JOBS}limits/",
        "jobs of a key": f"{JOBS}?status=blocked&limit_of={_make_limits()}",
        "doctor": f"{JOBS}doctor/",
        "queues": QUEUES,
        "queue": f"{QUEUES}emails/change/?range=6h",
        "pause": f"{QUEUES}pause/?queue=emails",
        "limit": f"{QUEUES}limit/?queue=emails",
        "rate": f"{QUEUES}rate/?queue=emails",
        "schedules": SCHEDULES,
        "schedule": f"{SCHEDULES}{schedules['nightly import'].pk}/change/",
        "schedule of the code": f"{SCHEDULES}{schedules['daily summary'].pk}/change/",
        "history of a schedule": f"{SCHEDULES}{schedules['nightly import'].pk}/history/",
        "delete schedule": f"{SCHEDULES}{schedules['nightly import'].pk}/delete/",
        "add schedule": f"{SCHEDULES}add/",
        "batches": BATCHES,
        "batches with failures": f"{BATCHES}?state=failures",
        "running batch": f"{BATCHES}{batches['receipts'].id}/change/",
        "finished batch": f"{BATCHES}{batches['import'].id}/change/",
        "large batch": f"{BATCHES}{batches['large'].id}/change/",
        "jobs of a batch": f"{JOBS}?batch={batches['receipts'].id}",
        "job that waits": f"{JOBS}{batches['receipts'].jobs.blocked().get().pk}/change/",
        "workers": WORKERS,
        "worker": f"{WORKERS}{quote(workers[0].pk)}/change/",
        "restart": f"{WORKERS}restart/?{urlencode({'worker': workers[0].pk})}",
        "stop": f"{WORKERS}stop/?{urlencode({'worker': workers[0].pk})}",
        "archive": ARCHIVE,
        "archive not found": f"{ARCHIVE}?q=nothing",
        "archived job": f"{ARCHIVE}{archived.pk}/change/",
        "history of an archived job": f"{ARCHIVE}{archived.pk}/history/",
        "run archived job again": f"{ARCHIVE}{archived.pk}/run-again/",
        **{name: page for part in modules_of_parts("admin_pages") for name, page in part.make_pages(CAUSE).items()},
    }


def _set_place_of_failure(failed: Job) -> Job:
    failed.errors = [{**entry, "place": CAUSE.place, "line": 17} for entry in failed.errors]
    failed.save(update_fields=["errors"])
    return failed


def _make_schedules(last: Job) -> dict[str, Schedule]:
    summary = {"cron": "0 9 * * mon-fri", "timezone": "Europe/Berlin", "source": "code", "digest": "d"}
    schedules = [
        make_schedule("daily summary", due=-5_000, last_job_id=last.pk, last_run_at=Now(), **summary),
        make_schedule("nightly import", due=-600, jitter=60.0, kwargs={"full": True}),
        make_schedule("rates", due=400, error="No task is registered as 'shop.jobs.fetch_rates'."),
        make_schedule("clean up", paused_at=Now(), paused_by="ann", source="settings", cron="*/10 * * * *"),
        make_schedule("gone", source="code", retired_at=Now()),
    ]
    return {schedule.name: schedule for schedule in schedules}


def _make_limits() -> int:
    """Make two limit keys for which jobs wait, one of them halted. Returns the id of a waiting job."""
    make_halted("sequence:ledger.jobs.book customer_id=17", minutes=42, waiting=3)
    return make_limited("limit:crm.jobs.push_to_crm account_id=4711", held=2, waiting=4, minutes=8)[0].pk


def _make_batches() -> dict[str, Batch]:
    """Make a running batch with an inner batch, a failed batch, and a batch with more jobs than its graph draws."""
    with Batch(name="receipts", on_success=jobs.echo.s("sent"), on_finish=jobs.noop) as receipts:
        first, second = jobs.add.defer(1), jobs.add.defer(2)
        jobs.echo.using(after=[first, second]).defer("report")
        with Batch(name="photos"):
            jobs.noop.defer()
    Job.objects.filter(pk=first.pk).update(status="completed", finished_at=Now(), attempts=1, lease=2)
    with Batch(name="import", on_failure=jobs.echo.s("help")) as failed:
        job = jobs.fail.defer()
    Job.objects.filter(pk=job.pk).update(status="failed", finished_at=Now(), attempts=1, lease=2)
    finish_open_batches(Store("default"))
    with Batch(name="large", on_finish=jobs.noop) as large:
        jobs.echo.using(after=jobs.add.defer_many([(number,) for number in range(60)])).defer(0)
    return {"receipts": receipts, "import": failed, "large": large}


def _make_search(found: Job) -> Job:
    call = {"action": "search", "query": "q=order_id%3D7", "site": "admin", "user_id": 1, "user": "ann"}
    progress = {"newest": 9_000, "edges": [None, None], "counted": 9_876_543, "looked_at": 350_000, "found": [found.pk]}
    return make_job("running", task=BULK_TASK, kwargs=call, metadata={"progress": progress})


def _make_bulk_action() -> Job:
    call = {"action": "retry_selected", "query": "status=failed", "site": "admin", "user_id": 1, "user": "ann"}
    progress = {"newest": 9_000, "edges": [None, None], "after": 4_000, "changed": 3_900, "skipped": 100}
    return make_job("running", task=BULK_TASK, kwargs=call | {"number": 12_000}, metadata={"progress": progress})

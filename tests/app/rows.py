"""Makes jobs and workers in any state, without the functions under test."""

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connections
from django.db.models.functions import Now

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import Settlement
from django_skipqueue.values.records import ClaimedJob, LeaseRef

DEFAULT = Store("default")

FINISHED = ("completed", "failed", "discarded")
WAITING = ("scheduled", "blocked", "queued")
UNFINISHED = (*WAITING, "running")
STATUSES = (*UNFINISHED, *FINISHED)


def plan_of(statement: str, values: Any = None) -> str:
    """The plan of a statement in the default database."""
    with connections["default"].cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}", values)
        return "\n".join(line for (line,) in cursor.fetchall())


def make_job(status: str = "queued", *, using: str = "default", **fields: Any) -> Job:
    """Make a job in this status. A timedelta as the value of a time is added to the time of the database."""
    fields.setdefault("task", "tests.app.jobs.noop")
    fields.setdefault("queue_name", "default")
    if status == "scheduled":
        fields.setdefault("run_after", timedelta(hours=1))
    if status == "running":
        fields = {
            "locked_at": timedelta(0),
            "started_at": timedelta(0),
            "locked_by": "w",
            "lease": 1,
            "attempts": 1,
        } | fields
    if status == "blocked":
        gate = "held" if fields.get("held") else "limit" if fields.get("limit_key") else "rate"
        fields.setdefault("gate", gate if gate != "rate" or fields.get("rate_key") else "held")
    if status in FINISHED:
        fields = {"finished_at": timedelta(0), "lease": 2, "attempts": 1} | fields
    times = {name: Now() + value for name, value in fields.items() if isinstance(value, timedelta)}
    job = Job.objects.using(using).create(status=status, **(fields | times))
    return Job.objects.using(using).get(pk=job.pk)


def multiply(job: Job, count: int) -> None:
    """Insert this number of copies of a job, by one statement."""
    columns = [field.attname for field in Job._meta.concrete_fields if not field.primary_key]
    column_names = ", ".join(columns)
    with connections[job._state.db or "default"].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO skipqueue_job ({column_names})"
            f" SELECT {column_names} FROM skipqueue_job, generate_series(1, %s) WHERE id = %s",
            [count, job.pk],
        )


def make_worker(*, heartbeat: timedelta = timedelta(0), using: str = "default", **fields: Any) -> Worker:
    """Make a worker. `heartbeat`: when its last heartbeat was, as a difference from now."""
    name = fields.setdefault("name", "w")
    fields.setdefault("id", f"{name[:100]}:{secrets.token_hex(6)}")
    fields = {"hostname": "h", "pid": 1, "concurrency": 4, "heartbeat_at": heartbeat} | fields
    fields |= {name: Now() + value for name, value in fields.items() if isinstance(value, timedelta)}
    return Worker.objects.using(using).create(**fields)


def settle_and_claim(
    settlements: Iterable[Settlement], *, store: Store = DEFAULT, **options: Any
) -> tuple[set[LeaseRef], list[ClaimedJob]]:
    """Settle and claim in one statement. Returns the leases that were still valid, and the claimed jobs in order."""
    result = store.exchange(settlements, **options)
    return set(result.settled()), result.claimed()


def state(row: Job | Worker) -> dict[str, Any]:
    """Read every column of the row from the database."""
    return dict(type(row)._default_manager.using(row._state.db).filter(pk=row.pk).values().get())


def are_in_order(*times: datetime | None) -> bool:
    """Whether all these times are set, and each is later than the time before it."""
    set_times = [time for time in times if time is not None]
    return len(set_times) == len(times) and all(earlier < later for earlier, later in pairwise(set_times))


def lease_of(job: Job) -> tuple[int, int]:
    """The id and the lease of a job: an argument for `Store.release`."""
    return job.pk, job.lease

"""Batches as operators see them: how far they are, with which failures, and what became of their callbacks.

Invariant: the jobs of an open batch are counted by their index, up to a limit; a finished batch has its numbers.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.counts import CAP, grouped
from ...models import FINISHED, Job, JobBatch, Status
from ...queue.store import Store
from .dependencies import UnmetNeed, unmet_needs_of
from .finish import batch_progress
from .values import CALLBACK_JOB, CALLBACK_SKIPPED

STATES: Mapping[str, Any] = {"running": _("running"), "finished": _("finished"), "failures": _("with failures")}

CONDITIONS = {
    "running": Q(finished_at=None),
    "finished": Q(finished_at__isnull=False),
    "failures": Q(failed__gt=0) | Q(discarded__gt=0),
}
"""Of the states by which batches are found. The order of ids and an index find the first ones of each."""

MOST_COUNTED = 300_000
"""Jobs of one batch in one status that are counted, if there is time."""

COUNT_SECONDS = 0.05
"""Seconds after which no batch with more than `CAP` jobs in a status is counted further."""

CALLBACKS: Mapping[str, Any] = {
    "on_success": _("on success"),
    "on_failure": _("on failure"),
    "on_finish": _("on finish"),
}


@dataclass(frozen=True)
class BatchState:
    """A batch, with the numbers of its jobs and of those of inner batches."""

    row: JobBatch
    now: datetime
    """The database's time."""
    counts: Mapping[str, int]
    """The number of jobs by status, without zeros, in the order of `Status`."""
    is_least: bool = False
    """Whether there may be more jobs than were counted."""

    @property
    def is_open(self) -> bool:
        return self.row.finished_at is None

    @property
    def state(self) -> str:
        """One of `STATES`: of a running batch always `running`."""
        if self.is_open:
            return "running"
        return "failures" if self.failures else "finished"

    @property
    def failures(self) -> int:
        return self.counts.get(Status.FAILED, 0) + self.counts.get(Status.DISCARDED, 0)

    @property
    def done(self) -> int:
        return sum(self.counts.get(status, 0) for status in FINISHED)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def share(self) -> float | None:
        """The part that is done, from 0.0 to 1.0; `None` if not all jobs were counted."""
        if self.is_least:
            return None
        return self.done / self.total if self.total else 1.0

    @property
    def numbers(self) -> str:
        """How many are done, of how many: `40/100`."""
        more = "+" if self.is_least else ""
        return f"{grouped(self.done)}/{grouped(self.total)}{more}"

    @property
    def as_json(self) -> dict[str, Any]:
        """The state for programs: times are datetimes."""
        row = self.row
        return {
            "id": row.pk,
            "name": row.name,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "is_least": self.is_least,
            "counts": dict(self.counts),
            "created_at": row.created_at,
            "finished_at": row.finished_at,
            "parent_id": row.parent_id,
        }


class Callback(NamedTuple):
    name: str
    """One of `CALLBACKS`."""
    task: str
    job_id: int | None
    """The job that was enqueued for it; `None`: none was."""
    state: str
    """`waits`, `skipped`, `not called`, `gone` if its job was pruned or deleted; else the status of its job."""


def with_time(rows: "QuerySet[JobBatch]") -> "QuerySet[JobBatch]":
    """The batches with the database's time, which `batch_states` needs."""
    return rows.annotate(now=Now())


def batch_states(rows: Iterable[Any]) -> list[BatchState]:
    """The states of a page of batches, each with the attribute `now`. Counts a limited number of jobs."""
    listed = list(rows)
    counts = batch_progress(Store.default(), [row.pk for row in listed], most=CAP) if listed else {}
    until = time.monotonic() + COUNT_SECONDS
    found = []
    for row in listed:
        most, own = CAP, counts[row.pk]
        if _is_capped(row, own, most) and time.monotonic() < until:
            most, own = MOST_COUNTED, batch_progress(Store.default(), [row.pk], most=MOST_COUNTED)[row.pk]
        ordered = {status.value: own[status] for status in Status if own.get(status)}
        found.append(BatchState(row, row.now, ordered, is_least=_is_capped(row, own, most)))
    return found


def batch_state(batch_id: int) -> BatchState | None:
    row = with_time(JobBatch.objects.all()).filter(pk=batch_id).first()
    return None if row is None else batch_states([row])[0]


def running_batches(limit: int) -> list[BatchState]:
    """The newest running ones. Index: open."""
    return batch_states(with_time(JobBatch.objects.filter(CONDITIONS["running"])).order_by("-pk")[:limit])


def batches_with_failures(limit: int) -> list[BatchState]:
    """The newest finished ones with failures. Index: failures."""
    return batch_states(with_time(JobBatch.objects.filter(CONDITIONS["failures"])).order_by("-pk")[:limit])


def callbacks_of(row: JobBatch) -> list[Callback]:
    """The callbacks in their order, each with what became of it. One query."""
    given = row.callbacks if isinstance(row.callbacks, dict) else {}
    calls = {name: given[name] for name in CALLBACKS if isinstance(given.get(name), dict)}
    ids = [call[CALLBACK_JOB] for call in calls.values() if isinstance(call.get(CALLBACK_JOB), int)]
    statuses = dict(Job.objects.filter(pk__in=ids).values_list("pk", "status")) if ids else {}
    return list(_callbacks(row, calls, statuses))


def _callbacks(row: JobBatch, calls: Mapping[str, Any], statuses: Mapping[int, str]) -> Iterator[Callback]:
    for name, call in calls.items():
        spec, job_id = call.get("spec"), call.get(CALLBACK_JOB)
        task = str(spec.get("task", "")) if isinstance(spec, dict) else ""
        if isinstance(job_id, int):
            yield Callback(name, task, job_id, statuses.get(job_id, "gone"))
        elif row.finished_at is None:
            yield Callback(name, task, None, "waits")
        else:
            yield Callback(name, task, None, "skipped" if call.get(CALLBACK_SKIPPED) else "not called")


def _is_capped(row: JobBatch, counts: Mapping[str, int], most: int) -> bool:
    return row.finished_at is None and any(number >= most for number in counts.values())


def unmet_needs(job: Job, *, limit: int) -> list[UnmetNeed]:
    """Some of the jobs that it waits for still, first those that have not completed; none if it waits for no job."""
    store = Store(job._state.db or settings.database)
    return unmet_needs_of(store, job.pk, limit=limit) if job.held else []

"""The verbs for jobs, and the filters named after their statuses."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, IntegrityError, connections, models, transaction

from .. import sql
from ..conf import settings
from ..outcomes import Outcome, Settlement
from ..payload import shorten
from ..records import Call, ClaimedJob, Lease, RecoveredJob
from ..signals import announce, job_deferred
from .batches import calls_as_json, in_lock_order, is_refused, leases_as_json, outcomes_as_json, pipelined, unstorable
from .notifications import wake

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from ..models import Job

BATCH = 1_000
"""How many rows one statement of maintenance touches at most."""


class JobQuerySet(models.QuerySet["Job"]):
    """Filters named after the statuses, and the verbs; a verb acts on the whole queue, not on what was filtered."""

    def scheduled(self) -> "JobQuerySet":
        """Jobs that are not due yet."""
        return self.filter(status="scheduled")

    def queued(self) -> "JobQuerySet":
        """Jobs that a worker may claim."""
        return self.filter(status="queued")

    def running(self) -> "JobQuerySet":
        """Jobs that a worker has claimed."""
        return self.filter(status="running")

    def completed(self) -> "JobQuerySet":
        """Jobs whose task returned."""
        return self.filter(status="completed")

    def failed(self) -> "JobQuerySet":
        """Jobs whose last attempt failed."""
        return self.filter(status="failed")

    def discarded(self) -> "JobQuerySet":
        """Jobs that were given up on purpose."""
        return self.filter(status="discarded")

    def alive(self) -> "JobQuerySet":
        """Jobs that are not finished."""
        return self.filter(status__in=["scheduled", "queued", "running"])

    # Enqueueing

    def enqueue(
        self,
        task: str,
        *,
        args: str = "[]",
        kwargs: str = "{}",
        queue_name: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        run_after: datetime | timedelta | None = None,
        unique_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> "Job":
        """Insert one job on the caller's connection; `args` and `kwargs` are JSON texts.

        Where `unique_key` is held by a job that is not finished, that job is returned, with `created` False.
        """
        row = self._common(task, queue_name, priority, max_attempts, run_after, metadata)
        row |= {"args": args, "kwargs": kwargs, "unique_key": unique_key}
        while True:
            created = list(self.raw(sql.ENQUEUE, row))
            if created:
                self._deferred(task, queue_name, [created[0].pk], due=created[0].status == "queued")
                return created[0]
            holders = list(self.raw(sql.HOLDERS, {"unique_keys": [unique_key]}))
            if holders:
                holders[0].created = False
                return holders[0]
            # The holder finished between the two statements: the key is free again.

    def enqueue_many(
        self,
        task: str,
        calls: Sequence[Call],
        *,
        queue_name: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        run_after: datetime | timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Insert a job for each of `calls` in one round trip; the ids come back in the order of the calls.

        A call whose unique key is held by a job that is not finished gets that job's id.
        """
        row = self._common(task, queue_name, priority, max_attempts, run_after, metadata)
        plain: list[int] = []
        keyed: dict[str, int] = {}
        missing = calls
        while missing:
            created = self._rows(sql.ENQUEUE_MANY, row | {"calls": calls_as_json(missing)})
            plain.extend(id for id, key, _ in created if key is None)
            keyed.update({key: id for id, key, _ in created if key is not None})
            if created:
                self._deferred(task, queue_name, [id for id, _, _ in created], due=created[0][2] == "queued")
            taken = [call.unique_key for call in calls if call.unique_key is not None and call.unique_key not in keyed]
            if taken:
                keyed.update((job.unique_key or "", job.pk) for job in self.raw(sql.HOLDERS, {"unique_keys": taken}))
            missing = [call for call in calls if call.unique_key is not None and call.unique_key not in keyed]
        ids = iter(sorted(plain))
        return [next(ids) if call.unique_key is None else keyed[call.unique_key] for call in calls]

    # Claiming and settling

    def claim(self, *, queue_names: Sequence[str], limit: int = 1, worker_id: str) -> list["Job"]:
        """Take up to `limit` runnable jobs: the queues in the listed order, within each the highest priority first.

        Each job must be completed, failed or released; `Job.heartbeat` keeps it from being recovered until then.
        """
        jobs = list(self.raw(sql.CLAIM, {"queue_names": list(queue_names), "limit": limit, "worker_id": worker_id}))
        position = {name: index for index, name in enumerate(queue_names)}
        return sorted(jobs, key=lambda job: (position[job.queue_name], -job.priority, job.run_after, job.pk))

    def settle(self, settlements: Iterable[Settlement]) -> set[int]:
        """Write outcomes, many in one statement; the ids of the jobs whose lease still held, and which are now written.

        An outcome that PostgreSQL refuses does not block the others: its job fails with an error that says so.
        """
        return {id for id, _ in self._settle(in_lock_order(settlements))}

    def complete(self, lease: Lease, outcome: Outcome) -> bool:
        """Write one outcome within the caller's transaction; whether the lease still held.

        Unlike `settle`, an outcome that PostgreSQL refuses raises: it is to roll back with what it belongs to.
        """
        return bool(self._rows(sql.SETTLE, {"outcomes": outcomes_as_json([Settlement(*lease, outcome)])}))

    def settle_and_claim(
        self, settlements: Iterable[Settlement], *, queue_names: Sequence[str], limit: int, worker_id: str
    ) -> tuple[set[Lease], list[ClaimedJob]]:
        """Settle and claim in one round trip and one transaction; the leases that held, and the jobs claimed.

        For the worker, whose connection is in autocommit. Where an outcome is refused, settles as `settle` does, and
        claims then.
        """
        batch = in_lock_order(settlements)
        connection = self._connection()
        connection.ensure_connection()
        try:
            with connection.wrap_database_errors:
                settled, claimed = pipelined(
                    connection.connection,
                    (sql.SETTLE, {"outcomes": outcomes_as_json(batch)}) if batch else None,
                    (sql.CLAIM_TO_RUN, {"queue_names": list(queue_names), "limit": limit, "worker_id": worker_id})
                    if limit > 0 and queue_names
                    else None,
                )
        except DatabaseError as error:
            if not is_refused(error) or not batch:
                raise
            written = self._settle(batch)
            return written, self.settle_and_claim([], queue_names=queue_names, limit=limit, worker_id=worker_id)[1]
        position = {name: index for index, name in enumerate(queue_names)}
        jobs = [ClaimedJob._make(row) for row in claimed]
        jobs.sort(key=lambda job: (position[job.queue_name], -job.priority, job.run_after, job.id))
        return {(id, lease) for id, lease in settled}, jobs

    def release(self, leases: Iterable[Lease]) -> set[int]:
        """Give jobs back, named by id and lease, at no attempt; the ids that were still held."""
        rows = self._rows(sql.RELEASE, {"leases": leases_as_json(leases)})
        wake(self.db, (queue_name for _, queue_name in rows))
        return {id for id, _ in rows}

    def revoked(self, leases: Iterable[Lease]) -> dict[Lease, str | None]:
        """Which of these leases have passed on: with the reason where the job was cancelled, else with `None`."""
        rows = self._rows(sql.REVOKED, {"leases": leases_as_json(leases)})
        return {(id, lease): reason for id, lease, reason in rows}

    def heartbeat(self, job_id: int, lease: int) -> bool:
        """Prolong the lease of one job that was claimed by hand; whether it still holds."""
        return bool(self._rows(sql.HEARTBEAT, {"id": job_id, "lease": lease}))

    def release_strays(self, worker_id: str, *, known: Iterable[int]) -> set[int]:
        """Give back what a worker holds beyond the jobs `known`: what it had not begun, or never heard of."""
        rows = self._rows(sql.RELEASE_STRAYS, {"worker_id": worker_id, "known": list(known)})
        wake(self.db, (queue_name for _, queue_name in rows))
        return {id for id, _ in rows}

    def listen(self) -> None:
        """Have this connection notified when a queue gets jobs; the payload is the queue's name."""
        with self._connection().cursor() as cursor:
            cursor.execute(sql.LISTEN)

    def queues_with_jobs(self) -> list[str]:
        """The names of the queues that have jobs to claim, in alphabetical order."""
        return [name for (name,) in self._rows(sql.QUEUES_WITH_JOBS)]

    # Maintenance: each call is one batch; a full one says that there may be more

    def promote(self, *, limit: int = BATCH) -> dict[str, int]:
        """Make scheduled jobs that are due claimable; how many in each queue."""
        promoted = dict(self._rows(sql.PROMOTE, {"limit": limit}))
        wake(self.db, promoted)
        return promoted

    def next_due(self) -> float | None:
        """The seconds until the next scheduled job is due, below 0 if it is overdue; `None` without one."""
        rows = self._rows(sql.NEXT_DUE)
        return rows[0][0] if rows else None

    def recover(
        self,
        *,
        lease: float | None = None,
        worker_ids: Sequence[str] | None = None,
        job_ids: Sequence[int] | None = None,
        reason: str = "its worker was not heard of within its lease",
        limit: int = BATCH,
    ) -> list[RecoveredJob]:
        """Take back the jobs of `worker_ids`, or of every holder not heard of for `lease` seconds (the setting).

        Only `job_ids`, if given. The attempt is charged: a job that has none left fails.
        """
        age = 0.0 if worker_ids is not None else settings.lease if lease is None else lease
        rows = self._rows(
            sql.RECOVER,
            {
                "age": age,
                "worker_ids": None if worker_ids is None else list(worker_ids),
                "job_ids": None if job_ids is None else list(job_ids),
                "reason": shorten(reason),
                "limit": limit,
            },
        )
        recovered = [RecoveredJob._make(row) for row in rows]
        wake(self.db, (job.queue_name for job in recovered if job.status == "queued"))
        return recovered

    def prune(self, *, limit: int = BATCH) -> dict[str, int]:
        """Delete finished jobs past their retention; how many of each status."""
        kept = {status: settings.retention_of(status) for status in ("completed", "discarded", "failed")}
        return dict(self._rows(sql.PRUNE, {**kept, "limit": limit}))

    # For operators

    def retry(self, ids: Iterable[int]) -> set[int]:
        """Put failed and discarded jobs back into their queues; the ids that were.

        Left as they are: jobs in another status, and those whose unique key a job that is not finished holds.
        """
        chosen = list(ids)
        for _ in range(10):
            try:
                with transaction.atomic(using=self.db):
                    rows = self._rows(sql.RETRY, {"ids": chosen})
            except IntegrityError:
                continue  # somebody took one of the unique keys meanwhile; the next look sees it
            wake(self.db, (queue_name for _, queue_name in rows))
            return {id for id, _ in rows}
        raise IntegrityError(
            "The unique keys of these jobs are being taken by others again and again; retry them singly."
        )

    def discard(self, ids: Iterable[int], *, reason: str = "Discarded by hand.") -> set[int]:
        """Finish scheduled and queued jobs without running them; the ids that were."""
        return {id for (id,) in self._rows(sql.DISCARD, {"ids": list(ids), "reason": shorten(reason)})}

    def cancel(self, ids: Iterable[int], *, reason: str = "Cancelled by hand.") -> set[int]:
        """Discard jobs that are not finished; the ids that were. A worker ends those that run within a second or so."""
        return {id for (id,) in self._rows(sql.CANCEL, {"ids": list(ids), "reason": shorten(reason)})}

    # Plumbing

    def _connection(self) -> "BaseDatabaseWrapper":
        return connections[self.db]

    def _settle(self, batch: list[Settlement]) -> set[Lease]:
        """Settle a batch; where one of its outcomes is refused, each half alone."""
        if not batch:
            return set()
        # Within the caller's transaction a refusal is kept to a savepoint. A worker settles outside of any.
        inside = transaction.atomic(using=self.db) if self._connection().in_atomic_block else nullcontext()
        try:
            with inside:
                return {(id, lease) for id, lease in self._rows(sql.SETTLE, {"outcomes": outcomes_as_json(batch)})}
        except DatabaseError as error:
            if not is_refused(error):
                raise
            if len(batch) == 1:
                return self._settle([unstorable(batch[0], error)])
            middle = len(batch) // 2
            return self._settle(batch[:middle]) | self._settle(batch[middle:])

    def _rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._connection().cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def _common(
        self,
        task: str,
        queue_name: str,
        priority: int,
        max_attempts: int | None,
        run_after: datetime | timedelta | None,
        metadata: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The values that all jobs of one call share."""
        delay = run_after.total_seconds() if isinstance(run_after, timedelta) else 0.0
        return {
            "task": task,
            "queue_name": queue_name,
            "priority": priority,
            "max_attempts": settings.max_attempts if max_attempts is None else max_attempts,
            "run_after": run_after if isinstance(run_after, datetime) else None,
            "delay": delay,
            "metadata": json.dumps(metadata) if metadata else "{}",
        }

    def _deferred(self, task: str, queue_name: str, ids: list[int], *, due: bool) -> None:
        if due:
            wake(self.db, [queue_name])
        if job_deferred.has_listeners(task):
            announce(job_deferred, task, queue_name=queue_name, job_ids=ids)


_Verbs = models.Manager.from_queryset(JobQuerySet)


class JobManager(_Verbs["Job"]):
    """`Job.objects`: works on the database that `SKIPQUEUE["DATABASE"]` names, whatever the project's routers say."""

    def get_queryset(self) -> JobQuerySet:
        """All jobs, in the queue's database."""
        return JobQuerySet(self.model, using=self._db or settings.database)

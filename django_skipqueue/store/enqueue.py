"""The verbs that insert jobs, on the caller's connection and in its transaction."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..conf import settings
from ..signals import announce, job_deferred
from ..values.codec import decode
from ..values.records import Call
from . import sql
from .columns import check_columns
from .notify import wake, wake_supervisors
from .parameters import calls_as_values, in_key_order
from .statements import Statements

if TYPE_CHECKING:
    from ..models import Job


class Enqueueing(Statements):
    """For tasks, whose calls become jobs."""

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

        Where `unique_key` is held by a job that is not finished, that job is returned, with `created` False. Raises
        `InvalidOption` for a value that no row can have.
        """
        row = self._common(task, queue_name, priority, max_attempts, run_after, metadata)
        row |= {"args": args, "kwargs": kwargs, "unique_key": unique_key}
        while True:
            created = self._rows(sql.ENQUEUE, row)
            if created:
                job = self._as_inserted(row, *created[0])
                delay = (job.run_after - job.enqueued_at).total_seconds()
                self._deferred(task, queue_name, [job.pk], status=job.status, delay=delay)
                return job
            holders = list(self.raw(sql.UNIQUE_KEY_HOLDERS, {"unique_keys": [unique_key]}))
            if holders:
                holder: Job = holders[0]
                holder.created = False
                return holder
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
        if any(call.unique_key is not None for call in calls):
            return self._enqueue_unique(row, calls)
        if not calls:
            return []
        [(inserted, status, delay)] = self._rows(sql.ENQUEUE_MANY, row | calls_as_values(calls))
        ids: list[int] = sorted(inserted)
        self._deferred(task, queue_name, inserted, status=status, delay=delay)
        return ids

    def _enqueue_unique(self, row: Mapping[str, Any], calls: Sequence[Call]) -> list[int]:
        """The same for calls of which some have keys, and go again until each key has a job."""
        plain: list[int] = []
        keyed: dict[str, int] = {}
        missing = in_key_order(calls)
        while missing:
            keys = [call.unique_key for call in missing]
            created = self._rows(sql.ENQUEUE_MANY_UNIQUE, {**row, **calls_as_values(missing), "unique_keys": keys})
            plain.extend(id for id, key, _, _ in created if key is None)
            keyed.update({key: id for id, key, _, _ in created if key is not None})
            if created:
                ids_of_created = [id for id, _, _, _ in created]
                _, _, status, delay = created[0]
                self._deferred(row["task"], row["queue_name"], ids_of_created, status=status, delay=delay)
            taken = [key for key in keys if key is not None and key not in keyed]
            if taken:
                keyed.update(
                    (job.unique_key or "", job.pk) for job in self.raw(sql.UNIQUE_KEY_HOLDERS, {"unique_keys": taken})
                )
            missing = [call for call in missing if call.unique_key is not None and call.unique_key not in keyed]
        ids = iter(sorted(plain))
        return [next(ids) if call.unique_key is None else keyed[call.unique_key] for call in calls]

    def _common(
        self,
        task: str,
        queue_name: str,
        priority: int,
        max_attempts: int | None,
        run_after: datetime | timedelta | None,
        metadata: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The values that all jobs of one call share; raises `InvalidOption` for those that no row can have."""
        check_columns(queue_name, priority, max_attempts, run_after)
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

    def _as_inserted(
        self, row: Mapping[str, Any], id: int, status: str, run_after: datetime, enqueued_at: datetime
    ) -> "Job":
        """The job as the database has it now, put together from what was sent and what came back."""
        job: Job = self.model(
            id=id,
            queue_name=row["queue_name"],
            task=row["task"],
            args=decode(row["args"]),
            kwargs=decode(row["kwargs"]),
            status=status,
            priority=row["priority"],
            attempts=0,
            max_attempts=row["max_attempts"],
            run_after=run_after,
            enqueued_at=enqueued_at,
            lease=0,
            locked_by="",
            last_error="",
            errors=[],
            unique_key=row["unique_key"],
            metadata=decode(row["metadata"]),
        )
        job._state.adding, job._state.db = False, self.db
        return job

    def _deferred(self, task: str, queue_name: str, ids: list[int], *, status: str, delay: float) -> None:
        if status == "queued":
            wake(self.db, [queue_name])
        else:
            wake_supervisors(self.db, [delay])
        if job_deferred.has_listeners(task):
            announce(job_deferred, task, queue_name=queue_name, job_ids=ids)

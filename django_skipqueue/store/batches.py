"""The methods that make batches, and finish them.

A batch is finished in one transaction, which locks its row, checks once more that no job of it is left, and inserts the
jobs of its callbacks. So each callback is enqueued exactly once, whoever looks, and whatever dies. What is wrong with
one batch is logged, and stops no other; no code of the project's runs here.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, Error, transaction

from ..conf import settings
from ..events.batch_events import BatchesFinished, BatchNotFinished, CallbackSkipped
from ..values.batches import FinishedBatch
from ..values.callbacks import CALLBACK_JOB, CALLBACK_SKIPPED, loaded
from . import policy_sql as sql
from .enqueue import Enqueueing, new_job
from .parameters import as_array, is_refused
from .statements import BATCH

MOST, MOST_SECONDS = 100, 0.2
"""Batches that one call finishes, and the time after which it begins with no other one."""

LOCK_TIMEOUT = "1s"
"""How long the INSERT of a callback may wait for the transaction that holds its unique key."""

OF_ONE_BATCH = ("55P03", "40P01", "40001")
"""SQLSTATEs that concern one batch: its callbacks wait for a lock in vain, or in a deadlock. The connection is good."""


class NewBatch(NamedTuple):
    """The columns that the database has set in an inserted batch."""

    id: int
    created_at: datetime


@dataclass
class Looked:
    finished: int = 0
    missed: bool = False
    """Whether a batch is done that somebody else has locked: to finish it, or to add jobs."""
    failed: set[int] = field(default_factory=set)
    """The batches whose callbacks could not be enqueued."""
    left: set[int] = field(default_factory=set)
    """The batches for which no time was left."""


class Batches(Enqueueing):
    """Used by `Batch`, by workers after a settle, and by supervisors."""

    def insert_batch(self, *, name: str, parent_id: int | None, callbacks: Mapping[str, Any]) -> NewBatch:
        """Insert a batch. Nobody finishes it before the caller's transaction ends."""
        values = {"name": name, "parent_id": parent_id, "callbacks": json.dumps(callbacks)}
        [row] = self.rows(sql.INSERT_BATCH, values)
        return NewBatch._make(row)

    def join_batch(self, batch_id: int) -> bool:
        """Keep an open batch from being finished until the caller's transaction ends. Returns whether it is open."""
        return bool(self.rows(sql.JOIN_BATCH, {"id": batch_id}))

    def open_batches(self, *, after: int = 0, limit: int = BATCH) -> list[int]:
        return [id for (id,) in self.rows(sql.OPEN_BATCHES, {"after": after, "limit": limit})]

    def finish_batches(self, ids: Iterable[int | None]) -> Looked:
        """Finish those of these batches, and of the batches outside of them, whose jobs are finished.

        Finishes a limited number. Raises a database error that does not concern a single batch.
        """
        looked, until, tries = Looked(), time.monotonic() + MOST_SECONDS, 0
        left: Collection[int | None] = set(ids)
        while left:
            done = sorted(id for (id,) in self.rows(sql.DONE_BATCHES, {"ids": as_array(left)}))
            outside: set[int] = set()
            for number, id in enumerate(done):
                if tries and (tries >= MOST or time.monotonic() > until):
                    looked.left = {*done[number:], *outside}
                    return looked
                tries += 1
                finished = self._finish_apart(id, looked)
                if finished is not None and finished.parent_id is not None:
                    outside.add(finished.parent_id)
            left = outside
        return looked

    def finish_empty_batch(self, id: int) -> None:
        """Finish a batch that the caller's transaction has inserted, if it has no unfinished job. Raises all errors."""
        if self.rows(sql.DONE_BATCHES, {"ids": as_array([id])}):
            self._finish(id)

    def finish_open_batches(
        self, *, after: int = 0, limit: int = BATCH, skipped: Collection[int] = ()
    ) -> tuple[int | None, Looked]:
        """Look at the next open batches after an id, but for some. Returns the id after which the next ones are.

        It is `None` if there are no more.
        """
        ids = self.open_batches(after=after, limit=limit)
        looked = self.finish_batches(set(ids).difference(skipped)) if ids else Looked()
        if looked.left:
            return min(looked.left) - 1, looked
        return ids[-1] if len(ids) == limit else None, looked

    def finish_all_batches(self) -> int:
        """Finish batches that are done, for a drain: their callbacks are jobs. Returns how many; 0: there are no more.

        Those that cannot be finished are left to the supervisors.
        """
        after: int | None = 0
        failed: set[int] = set()
        while after is not None:
            after, looked = self.finish_open_batches(after=after, skipped=failed)
            failed |= looked.failed
            if looked.finished:
                return looked.finished
        return 0

    def progress(self, ids: Collection[int], *, most: int | None = None) -> dict[int, dict[str, int]]:
        """For each of these batches the number of its jobs, those of inner batches among them, by status.

        most: the number of jobs that are counted at most, in one batch and one status.
        """
        found: dict[int, dict[str, int]] = {id: {} for id in ids}
        for id, status, jobs in self.rows(sql.PROGRESS, {"ids": as_array(ids), "most": most}):
            found[id][status] = jobs
        return found

    def prune_batches(self, *, limit: int = BATCH) -> int:
        """Delete finished batches past their retention, which is that of jobs. Returns how many."""
        kept = {status: settings.retention_of(status) for status in ("completed", "failed")}
        [(deleted,)] = self.rows(sql.PRUNE_BATCHES, {**kept, "limit": limit})
        return int(deleted)

    def jobs_ended(self, batch_ids: Collection[int], job_ids: Collection[int]) -> None:
        """After the caller's commit, admit what waited for these jobs, and finish these batches if they are done.

        A supervisor repeats it after an error.
        """
        transaction.on_commit(lambda: self._look_quietly(batch_ids, job_ids), using=self.alias, robust=True)

    def _look_quietly(self, batch_ids: Collection[int], job_ids: Collection[int]) -> None:
        with suppress(DatabaseError):
            self.admit_dependants(job_ids)
            self.finish_batches(batch_ids)

    def _finish_apart(self, id: int, looked: Looked) -> FinishedBatch | None:
        """Finish a batch, and note what has come of it. An error that concerns this batch alone is logged."""
        try:
            finished = self._finish(id)
        except Exception as error:  # of whatever kind: somebody may have written anything into the row
            if isinstance(error, Error) and not _is_of_one_batch(error):
                raise
            looked.failed.add(id)
            self.send(BatchNotFinished(self.alias, id, error))
            return None
        looked.finished += finished is not None
        looked.missed = looked.missed or finished is None
        return finished

    def _finish(self, id: int) -> FinishedBatch | None:
        """Finish a batch, unless somebody else has locked it, or it is not done any more."""
        limits_locks = self.connection.get_autocommit()  # not in the caller's transaction: it would keep the limit
        skipped: list[CallbackSkipped] = []
        finished = None
        with transaction.atomic(using=self.alias):
            if self.rows(sql.LOCK_BATCHES, {"ids": as_array([id])}):
                for row in self.rows(sql.FINISH_BATCHES, {"ids": as_array([id])}):
                    finished = FinishedBatch._make(row)
                    skipped = self._call_back(finished, limits_locks=limits_locks)
        if finished is not None:
            self.send(BatchesFinished(self.alias, [finished]))
        for event in skipped:
            self.send(event)
        return finished

    def _call_back(self, batch: FinishedBatch, *, limits_locks: bool) -> list[CallbackSkipped]:
        """Enqueue the callbacks. Each belongs to the batch, and so finds it; the batch has been finished before.

        Those with a unique key come last, by their keys, so that two batches with the same keys never deadlock.
        Returns those that were skipped.
        """
        callbacks = json.loads(batch.callbacks)
        names = ("on_failure" if batch.is_failure else "on_success", "on_finish")
        calls = [(name, *loaded(callbacks[name])) for name in names if name in callbacks]
        calls.sort(key=lambda each: (each[2].unique_key is not None, each[2].unique_key or ""))
        if limits_locks and calls and calls[-1][2].unique_key is not None:
            self.rows(sql.LIMIT_LOCKS, {"timeout": LOCK_TIMEOUT})
        callback_ids, skipped = [], []
        for name, spec, call in calls:
            inserted = new_job(self, self.enqueue_untraced, spec._replace(batch_id=batch.id), call)
            if inserted is not None:
                callback_ids.append(inserted.id)
                callbacks[name][CALLBACK_JOB] = inserted.id
            else:
                callbacks[name][CALLBACK_SKIPPED] = True
                skipped.append(CallbackSkipped(self.alias, batch.id, name, spec.task, str(call.unique_key)))
        if calls:
            noted = {"callback_ids": callback_ids or None, "callbacks": json.dumps(callbacks)}
            self.execute(sql.NOTE_CALLBACKS, {"id": batch.id, **noted})
        return skipped


def _is_of_one_batch(error: Error) -> bool:
    """Whether this error concerns the batch alone, and leaves the connection usable."""
    is_refusal = isinstance(error, DatabaseError) and is_refused(error)
    return is_refusal or getattr(error.__cause__, "sqlstate", None) in OF_ONE_BATCH

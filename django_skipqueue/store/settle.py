"""The verbs of whoever runs jobs: claim them, and write what became of them, fenced by the lease."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING

from django.db import DatabaseError, transaction

from ..events import logs
from ..values.outcomes import Outcome, Settlement
from ..values.records import ClaimedJob, ClaimKey, LeaseRef
from . import sql
from .notify import wake, wake_supervisors
from .parameters import (
    ExchangeResult,
    as_array,
    claim_values,
    in_claim_order,
    in_lock_order,
    is_refused,
    leases_as_values,
    pipelined,
    positions_as_values,
    settlements_as_values,
    unstorable,
)
from .statements import Statements

if TYPE_CHECKING:
    from ..models import Job


class Settling(Statements):
    """For workers, and for loops written by hand."""

    def claim(self, *, queue_names: Sequence[str], limit: int = 1, worker_id: str) -> list["Job"]:
        """Take up to `limit` runnable jobs: the queues in the listed order, within each the highest priority first.

        Each job must be completed, failed or released; `Job.heartbeat` keeps it from being recovered until then.
        """
        values = claim_values(queue_names, after={}, limit=limit, worker_id=worker_id)
        with transaction.atomic(using=self.db):
            claimed = in_claim_order(starmap(ClaimedJob, self._rows(sql.CLAIM, values)), queue_names)
            jobs: dict[int, Job] = self.model._base_manager.using(self.db).in_bulk([job.id for job in claimed])
        return [jobs[job.id] for job in claimed]

    def settle(self, settlements: Iterable[Settlement]) -> set[int]:
        """Write outcomes, many in one statement; the ids of the jobs whose lease still held, and which are now written.

        An outcome that PostgreSQL refuses does not block the others: its job fails with an error that says so. Where it
        refuses even that, the job is left as it is, and logged.
        """
        batch = in_lock_order(settlements)
        written = {id for id, _ in self._settle(batch, {})}
        self._wake_for(batch)
        return written

    def complete(self, settlement: Settlement) -> bool:
        """Write one outcome within the caller's transaction; whether the lease still held.

        Unlike `settle`, an outcome that PostgreSQL refuses raises: it is to roll back with what it belongs to.
        """
        return bool(self._rows(sql.SETTLE, settlements_as_values([settlement])))

    def settle_and_claim(
        self,
        settlements: Iterable[Settlement],
        *,
        queue_names: Sequence[str],
        limit: int,
        worker_id: str,
        after: Mapping[str, ClaimKey] | None = None,
    ) -> tuple[set[LeaseRef], list[ClaimedJob]]:
        """Settle and claim in one round trip and one transaction; the leases that held, and the jobs claimed, in order.

        For loops whose connection is in autocommit. Where an outcome is refused, settles as `settle` does, and claims
        then. `after`: for some queues, the position in them after which to look for jobs.
        """
        answer = self.exchange(settlements, queue_names=queue_names, limit=limit, worker_id=worker_id, after=after)
        return answer.settled(), answer.claimed()

    def exchange(
        self,
        settlements: Iterable[Settlement],
        *,
        queue_names: Sequence[str],
        limit: int,
        worker_id: str,
        after: Mapping[str, ClaimKey] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> ExchangeResult:
        """The same for the worker: calls `meanwhile` while the database works, and leaves the answer to be decoded.

        Where an outcome is refused, `meanwhile` may not be called.
        """
        batch = in_lock_order(settlements)
        settle = (sql.SETTLE, settlements_as_values(batch)) if batch else None
        values = claim_values(queue_names, after=after or {}, limit=limit, worker_id=worker_id)
        claim = (sql.CLAIM, values) if limit > 0 and queue_names else None
        connection = self._connection()
        connection.ensure_connection()
        sent = time.monotonic()
        try:
            with connection.wrap_database_errors:
                settled, claimed = pipelined(connection.connection, [settle, claim], meanwhile)
        except DatabaseError as error:
            if not is_refused(error) or not batch:
                raise
            refused: dict[LeaseRef, Outcome] = {}
            written = self._settle(batch, refused)
            answer = self.exchange([], queue_names=queue_names, limit=limit, worker_id=worker_id, after=after)
            answer = replace(answer, settled_rows=list(written), refused=refused)
        else:
            answer = ExchangeResult(settled, claimed, queue_names, sent)
        if settle and settle[1]["statuses"]:  # else all are simply completed
            with suppress(DatabaseError):  # the answer is here, and must not be lost
                self._wake_for(batch)
        return answer

    def release(self, leases: Iterable[LeaseRef]) -> set[int]:
        """Give jobs back, named by id and lease, at no attempt; the ids that were still held."""
        rows = self._rows(sql.RELEASE, leases_as_values(leases))
        wake(self.db, (queue_name for _, queue_name in rows))
        return {id for id, _ in rows}

    def lost_leases(self, leases: Iterable[LeaseRef]) -> dict[LeaseRef, str | None]:
        """Which of these leases have passed on: with the reason where the job was cancelled, else with `None`."""
        rows = self._rows(sql.LOST_LEASES, leases_as_values(leases))
        return {(id, lease): reason for id, lease, reason in rows}

    def keep_errors(self, cancelled: Iterable[Settlement]) -> set[int]:
        """Have jobs that were cancelled keep the errors with which their attempts ended then; the ids of those that do.

        `settle` does not write them: the cancel has ended the lease.
        """
        failed = [settlement for settlement in in_lock_order(cancelled) if settlement.outcome.error]
        if not failed:
            return set()
        values = leases_as_values((settlement.job_id, settlement.lease) for settlement in failed)
        errors = [json.dumps(settlement.outcome.error) for settlement in failed]
        return {id for (id,) in self._rows(sql.KEEP_ERRORS, values | {"errors": errors})}

    def locked(self, leases: Iterable[LeaseRef]) -> set[int]:
        """The ids of those jobs whose rows somebody else has locked this moment. Waits for nobody."""
        return {id for (id,) in self._rows(sql.LOCKED_ROWS, leases_as_values(leases))}

    def heartbeat(self, job_id: int, lease: int) -> bool:
        """Keep a job that was claimed by hand from being recovered; whether its lease still holds."""
        return bool(self._rows(sql.HEARTBEAT_JOB, {"id": job_id, "lease": lease}))

    def release_orphans(self, worker_id: str, *, known: Iterable[int]) -> set[int]:
        """Give back what a worker holds beyond the jobs `known`: what it had not begun, or never heard of."""
        rows = self._rows(sql.RELEASE_ORPHANS, {"worker_id": worker_id, "known": list(known)})
        wake(self.db, (queue_name for _, queue_name in rows))
        return {id for id, _ in rows}

    def holds(self, worker_id: str) -> bool:
        """Whether any job is running for this worker."""
        return bool(self._rows(sql.WORKER_HAS_JOBS, {"worker_id": worker_id}))

    def listen(self) -> None:
        """Have this connection notified when a queue gets jobs; the payload is the queue's name."""
        with self._connection().cursor() as cursor:
            cursor.execute(sql.LISTEN)

    def listen_for_scheduled(self) -> None:
        """Have this connection notified when a job is scheduled that is due soon."""
        with self._connection().cursor() as cursor:
            cursor.execute(sql.LISTEN_SCHEDULED)

    def queues_with_jobs(self, *, after: str = "", limit: int | None = None) -> list[str]:
        """The names of the queues that have jobs to claim, in alphabetical order; `limit` of those after a name."""
        return [name for (name,) in self._rows(sql.QUEUES_WITH_JOBS, {"after": after, "limit": limit})]

    def first_in_queues(
        self, queue_names: Sequence[str], *, after: Mapping[str, ClaimKey], seconds: float
    ) -> list[tuple[str, int | None, ClaimKey]]:
        """Where the first jobs to claim stand, each queue's with the job's id; without one, where it would stand now.

        The statement may take this many seconds, whatever the connection's timeout.
        """
        with transaction.atomic(using=self.db):
            self._rows(sql.SET_STATEMENT_TIMEOUT, {"timeout": f"{seconds:.3f}s"})
            rows = self._rows(sql.FIRST_IN_QUEUES, positions_as_values(queue_names, after))
        return [(name, id, ClaimKey(*position)) for name, id, *position in rows]

    def _wake_for(self, batch: list[Settlement]) -> None:
        """Wake the supervisors for what is due soon, and the workers of queues whose jobs are to run again at once."""
        wake_supervisors(self.db, (settlement.outcome.delay for settlement in batch))
        ids = [settlement.job_id for settlement in batch if settlement.outcome.next_status == "queued"]
        if ids:
            wake(self.db, [name for (name,) in self._rows(sql.QUEUES_OF, {"ids": as_array(ids)})])

    def _settle(self, batch: list[Settlement], refused: dict[LeaseRef, Outcome]) -> set[LeaseRef]:
        """Settle a batch; where one of its outcomes is refused, each half alone, and what takes its place is noted."""
        if not batch:
            return set()
        # Within the caller's transaction a refusal is kept to a savepoint. A worker settles outside of any.
        inside = transaction.atomic(using=self.db) if self._connection().in_atomic_block else nullcontext()
        try:
            with inside:
                return set(self._rows(sql.SETTLE, settlements_as_values(batch)))
        except DatabaseError as error:
            if not is_refused(error):
                raise
            if len(batch) == 1:
                job_id, lease, *_ = batch[0]
                if (job_id, lease) in refused:  # the row itself is what no statement can bear
                    logs.outcome_refused(job_id, error)
                    return set()
                storable = unstorable(batch[0], error)
                refused[storable.job_id, storable.lease] = storable.outcome
                return self._settle([storable], refused)
            middle = len(batch) // 2
            return self._settle(batch[:middle], refused) | self._settle(batch[middle:], refused)

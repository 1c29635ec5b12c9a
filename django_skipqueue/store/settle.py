"""The verbs that write what became of jobs, fenced by the lease."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from django.db import DatabaseError, transaction

from ..events.events import OutcomeRefused
from ..values.outcomes import Outcome, Settlement
from ..values.records import LeaseRef, QueuePosition
from . import sql
from .notify import wake, wake_supervisors
from .parameters import (
    ExchangeResult,
    as_array,
    claim_values,
    in_lock_order,
    is_refused,
    leases_as_values,
    pipelined,
    settlements_as_values,
    unstorable,
)
from .statements import Statements


class Settling(Statements):
    """For whoever runs jobs."""

    def settle(self, settlements: Iterable[Settlement], *, raises: bool = False) -> set[int]:
        """Write outcomes, many in one statement; the ids of the jobs whose lease still held, and which are now written.

        An outcome that PostgreSQL refuses does not block the others: its job fails with an error that says so. Where it
        refuses even that, the job is left as it is, and logged. With `raises` the refusal is raised instead: the
        caller's transaction is to be rolled back.
        """
        batch = in_lock_order(settlements)
        written = self.rows(sql.SETTLE, settlements_as_values(batch)) if raises else self._settle(batch, {})
        self._wake_for(batch)
        return {id for id, _ in written}

    def exchange(
        self,
        settlements: Iterable[Settlement],
        *,
        queue_names: Sequence[str],
        limit: int,
        worker_id: str,
        after: Mapping[str, QueuePosition] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> ExchangeResult:
        """Settle and claim in one round trip and one transaction, on a connection in autocommit.

        after: for some queues, the position in them after which to look for jobs.
        meanwhile: called at most once, after the statements were sent; not if one fails while it is being sent.

        If PostgreSQL refuses an outcome, all are written as by `settle`, and the claim is sent after that.
        """
        batch = in_lock_order(settlements)
        settle = (sql.SETTLE, settlements_as_values(batch)) if batch else None
        values = claim_values(queue_names, after=after or {}, limit=limit, worker_id=worker_id)
        claim = (sql.CLAIM, values) if limit > 0 and queue_names else None
        connection = self.connection
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

    def keep_errors(self, cancelled: Iterable[Settlement]) -> set[int]:
        """Have jobs that were cancelled keep the errors with which their attempts ended then; the ids of those that do.

        `settle` does not write them: the cancel has ended the lease.
        """
        failed = [settlement for settlement in in_lock_order(cancelled) if settlement.outcome.error]
        if not failed:
            return set()
        values = leases_as_values((settlement.job_id, settlement.lease) for settlement in failed)
        errors = [json.dumps(settlement.outcome.error) for settlement in failed]
        return {id for (id,) in self.rows(sql.KEEP_ERRORS, values | {"errors": errors})}

    def _wake_for(self, batch: list[Settlement]) -> None:
        """Wake the supervisors for what is due soon, and the workers of queues whose jobs are to run again at once."""
        wake_supervisors(self.alias, (settlement.outcome.delay for settlement in batch))
        ids = [settlement.job_id for settlement in batch if settlement.outcome.next_status == "queued"]
        if ids:
            wake(self.alias, [name for (name,) in self.rows(sql.QUEUES_OF, {"ids": as_array(ids)})])

    def _settle(self, batch: list[Settlement], refused: dict[LeaseRef, Outcome]) -> set[LeaseRef]:
        """Write a batch. If it is refused, write each half alone; `refused` gets what replaces the outcome at fault."""
        if not batch:
            return set()
        # Within the caller's transaction a refusal is kept to a savepoint. A worker settles outside of any.
        inside = transaction.atomic(using=self.alias) if self.connection.in_atomic_block else nullcontext()
        try:
            with inside:
                return set(self.rows(sql.SETTLE, settlements_as_values(batch)))
        except DatabaseError as error:
            if not is_refused(error):
                raise
            if len(batch) == 1:
                job_id, lease, *_ = batch[0]
                if (job_id, lease) in refused:  # the row itself is what no statement can bear
                    self.send(OutcomeRefused(job_id, error))
                    return set()
                storable = unstorable(batch[0], error)
                refused[storable.job_id, storable.lease] = storable.outcome
                return self._settle([storable], refused)
            middle = len(batch) // 2
            return self._settle(batch[:middle], refused) | self._settle(batch[middle:], refused)

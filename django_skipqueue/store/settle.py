"""The methods that write the outcomes of attempts. Only the holder of the job's lease can write one."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from django.db import DatabaseError, transaction

from ..events.events import JobsAdmitted, OutcomeRefused
from ..values.outcomes import Outcome, Settlement
from ..values.records import AheadWish, LeaseRef, QueuePosition
from . import policy_sql, sql
from .batches import Batches
from .limits import admission
from .notify import RATE_PREFIX, notify_of_keys, wake, wake_supervisors
from .parameters import (
    Admitted,
    ExchangeResult,
    ahead_as_values,
    as_array,
    claim_values,
    in_lock_order,
    is_refused,
    leases_as_values,
    pipelined,
    settlements_as_values,
    storable_failure,
    without_detail,
)

SettledRow = tuple[int, int, int | None]
"""Id, lease and batch of a job whose outcome was written."""


class Settling(Batches):
    """Used by workers, and by loops written by hand."""

    def settle(self, settlements: Iterable[Settlement], *, raises: bool = False) -> set[int]:
        """Write outcomes, many in one statement. Returns the ids of the jobs whose lease was valid: these are written.

        An outcome that PostgreSQL refuses does not block the others: its job fails with the database's error. If
        PostgreSQL refuses that as well, the job stays unchanged, and the refusal is logged. With `raises` a refusal is
        raised instead, and the caller has to roll its transaction back.
        """
        batch = in_lock_order(settlements)
        written = self.rows(*self._statement(batch)) if raises else self._settle(batch, {})
        self._wake_for(batch)
        if batch_ids := {batch_id for _, _, batch_id in written if batch_id is not None}:
            self.jobs_ended(batch_ids, [id for id, _, batch_id in written if batch_id is not None])
        return {id for id, _, _ in written}

    def exchange(  # noqa: PLR0913 (one round trip does all of this)
        self,
        settlements: Iterable[Settlement],
        *,
        queue_names: Sequence[str],
        limit: int,
        worker_id: str,
        after: Mapping[str, QueuePosition] | None = None,
        meanwhile: Callable[[], object] | None = None,
        limited: Sequence[int] = (),
        keys: Sequence[str] = (),
        ahead: Sequence[AheadWish] = (),
    ) -> ExchangeResult:
        """Settle and claim in one round trip and one transaction, on a connection in autocommit.

        after: positions to search from; a queue without one is searched from its front.
        meanwhile: called at most once, after the statements were sent; not if one fails while it is being sent.
        limited: jobs that have ended. After the settle, jobs of their keys, and of `keys`, are admitted.
        ahead: jobs to claim right after the settle, beyond the permits that are free.

        If PostgreSQL refuses an outcome, the batch is written as `settle` does, and the claim is sent afterwards.
        """
        batch = in_lock_order(settlements)
        settle = self._statement(batch) if batch else None
        values = claim_values(queue_names, after=after or {}, limit=limit, worker_id=worker_id)
        admits, claims = bool(limited or keys), limit > 0 and bool(queue_names)
        admitting = admission(limited, keys, claims=claims) if admits else [None, None]
        claim_ahead = (policy_sql.CLAIM_AHEAD, ahead_as_values(ahead, worker_id=worker_id)) if ahead else None
        claim = (policy_sql.CLAIM_OR_ADMIT if admits else sql.CLAIM, values) if claims else None
        connection = self.connection
        connection.ensure_connection()
        sent = time.monotonic()
        try:
            with connection.wrap_database_errors:
                statements = [settle, claim_ahead, *admitting, claim]
                results = pipelined(connection.connection, statements, meanwhile)
        except DatabaseError as error:
            if not is_refused(error) or not batch:
                raise
            refused: dict[LeaseRef, Outcome] = {}
            written = self._settle(batch, refused)
            again: dict[str, Any] = {"queue_names": queue_names, "limit": limit, "worker_id": worker_id, "after": after}
            result = self.exchange([], limited=limited, keys=keys, **again)
            result = replace(result, settled_rows=list(written), refused=refused)
        else:
            settled, claimed_ahead, *admitted, claimed = results
            result = ExchangeResult(
                settled, claimed, queue_names, sent, admission=Admitted.decode(*admitted), ahead_rows=claimed_ahead
            )
            self._note_admitted(result)
        if settle and settle[1]["statuses"]:  # empty if all outcomes are `COMPLETED`
            with suppress(DatabaseError):  # an error here must not lose the result of the exchange
                self._wake_for(batch)
        return result

    def _note_admitted(self, result: ExchangeResult) -> None:
        """Notify other workers if more jobs of a queue were admitted than this one has claimed, and send the event."""
        counts, rates = result.admission.counts, result.admission.rates
        if rates:
            with suppress(DatabaseError):  # an error here must not lose the result of the exchange
                notify_of_keys(self, RATE_PREFIX, rates)
        if not counts:
            return
        with suppress(DatabaseError):  # likewise
            if Counter(counts) - result.claimed_by_queue():
                wake(self, counts)
        self.send(JobsAdmitted(self.alias, counts))

    def append_cancelled_errors(self, cancelled: Iterable[Settlement]) -> set[int]:
        """Append the attempts' errors to their jobs, which were cancelled while they ran. Returns the ids.

        `settle` cannot write them, because the cancel raised the lease.
        """
        failed = [settlement for settlement in in_lock_order(cancelled) if settlement.outcome.error]
        if not failed:
            return set()
        values = leases_as_values((settlement.job_id, settlement.lease) for settlement in failed)
        values["errors"] = [json.dumps(settlement.outcome.error) for settlement in failed]
        statement = self.chosen(sql.APPEND_CANCELLED_ERRORS, sql.APPEND_CANCELLED_ERRORS_CARRIED, values)
        return {id for (id,) in self.rows(*statement)}

    def _wake_for(self, batch: list[Settlement]) -> None:
        """Notify the supervisors of jobs that are due soon, and the workers of queues whose jobs run again at once."""
        wake_supervisors(self, (settlement.outcome.delay for settlement in batch))
        ids = [settlement.job_id for settlement in batch if settlement.outcome.next_status == "queued"]
        if ids:
            rows = self.rows(sql.QUEUES_OF, {"ids": as_array(ids)})
            notify_of_keys(self, RATE_PREFIX, [key for _, key in rows if key is not None])
            wake(self, [name for name, key in rows if key is None])

    def _settle(self, batch: list[Settlement], refused: dict[LeaseRef, Outcome]) -> set[SettledRow]:
        """Write a batch; if PostgreSQL refuses it, write each half alone. Adds replaced outcomes to `refused`."""
        if not batch:
            return set()
        # In the caller's transaction a savepoint contains the refusal. A worker settles outside of a transaction.
        inside = transaction.atomic(using=self.alias) if self.connection.in_atomic_block else nullcontext()
        try:
            with inside:
                return set(self.rows(*self._statement(batch)))
        except DatabaseError as error:
            if not is_refused(error):
                raise
            if len(batch) == 1:
                job_id, lease, *_ = batch[0]
                if (job_id, lease) in refused:  # the row itself makes every update fail
                    self.send(OutcomeRefused(job_id, without_detail(error)))
                    return set()
                storable = storable_failure(batch[0], without_detail(error))
                refused[storable.job_id, storable.lease] = storable.outcome
                return self._settle([storable], refused)
            middle = len(batch) // 2
            return self._settle(batch[:middle], refused) | self._settle(batch[middle:], refused)

    def _statement(self, batch: Sequence[Settlement]) -> tuple[str, dict[str, Any]]:
        values = settlements_as_values(batch)
        if any(values["refunds"]):
            return self.chosen(sql.SETTLE_SNOOZES, sql.SETTLE_CARRIED_SNOOZES, values)
        return self.chosen(sql.SETTLE, sql.SETTLE_CARRIED, values)

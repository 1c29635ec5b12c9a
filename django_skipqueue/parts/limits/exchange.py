"""Limits in the exchanges of a worker: between the settle and the claim it admits jobs, and claims some ahead."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import DatabaseError

from ...events.events import JobsAdmitted
from ...exceptions import UnknownTask
from ...jobs.registry import registry
from ...queue.gates import gate_after
from ...queue.notify import notify_of_keys, wake
from ...queue.parameters import Admitted, ExchangeResult
from ...values.records import NEVER, Attempt, ClaimedJob
from ...worker.in_exchange import Beside, InExchange
from ..keyed.sql import queues_with
from .admit import admission
from .claim import CLAIM_AHEAD, CLAIM_OR_ADMIT, AheadWish, ahead_as_values
from .lines import ClaimAhead, Lines
from .options import TaskLimit

if TYPE_CHECKING:
    from ...queue.store import Store

MISSED_DELAY = 0.002
"""Seconds until a key is tried again whose lock another process had: it has it for the time of one round trip."""

FAIR_DELAY = 0.01
"""Seconds until more jobs of a fair key are admitted after some were claimed. Mostly some have ended before."""


class LimitsInExchange(InExchange):
    """Used by the control loop's thread."""

    def __init__(self, store: "Store", worker_id: str, *, claims_ahead: bool) -> None:
        lines = Lines()
        super().__init__(lines)
        self._store = store
        self._worker_id = worker_id
        self._ahead = ClaimAhead(lines if claims_ahead else Lines())
        self._queues = frozenset(queues_with("concurrency"))
        self._missed: list[str] = []  # keys whose permits another process was counting: to be admitted again
        self._claimed: list[int] = []  # fair jobs: the more run, the more may be queued

    def beside(self, attempts: Sequence[Attempt], *, has_room: bool, claims: bool) -> Beside:
        """See `InExchange`."""
        limited = [*{*self._limited(attempts), *self._claimed}]
        self._claimed = []
        ahead = self._ahead.wishes(attempts) if has_room else []
        return beside(limited, self._missed, ahead, claims=claims, worker_id=self._worker_id)

    def answered(self, answer: ExchangeResult) -> None:
        """See `InExchange`."""
        self._missed = announced(self._store, answer).missed
        delay = MISSED_DELAY if self._missed else FAIR_DELAY if self._claimed else NEVER
        self.due_at = time.monotonic() + delay

    def failed(self, jobs: Iterable[ClaimedJob]) -> None:
        """See `InExchange`."""
        self._ahead.lines.unknown(jobs)

    def claimed_ahead(self, answer: ExchangeResult) -> list[ClaimedJob]:
        """See `InExchange`."""
        return claimed_ahead(answer)

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """See `InExchange`."""
        if registry.has_limits and (fair := {task for task in {job.task for job in jobs} if is_fair(task)}):
            self._claimed += [job.id for job in jobs if job.task in fair]
            self.due_at = min(self.due_at, time.monotonic() + FAIR_DELAY)

    def _limited(self, attempts: Sequence[Attempt]) -> list[int]:
        """The ids of the jobs whose tasks or queues have a limit. A supervisor finds those that this process misses."""
        queues = self._queues
        if not (registry.has_limits or queues):
            return []
        tasks = {task for task in {attempt.job.task for attempt in attempts} if registry.is_limited(task)}
        if not (tasks or queues):
            return []
        kept = self._ahead.keeps_permits(attempts)
        jobs = (attempt.job for attempt in attempts if attempt.job.ref not in kept)
        return [job.id for job in jobs if job.queue_name in queues or job.task in tasks]


def is_fair(name: str) -> bool:
    """Whether the task of this name has `fair_by`; False if it is unknown."""
    with suppress(UnknownTask):
        limit = registry.get(name).options.of_part(TaskLimit)
        return limit is not None and limit.fair_by is not None
    return False


def beside(
    limited: Sequence[int], keys: Sequence[str], ahead: Sequence[AheadWish], *, claims: bool, worker_id: str
) -> Beside:
    """What an exchange sends beside its settle.

    limited: jobs that have ended. After the settle, jobs of their keys, and of `keys`, are admitted.
    ahead: jobs to claim right after the settle, beyond the permits that are free.
    """
    admits = bool(limited or keys)
    if not (admits or ahead):
        return Beside()
    claim_ahead = (CLAIM_AHEAD, ahead_as_values(ahead, worker_id=worker_id)) if ahead else None
    admitting = admission(limited, keys, claims=claims) if admits else [None, None]
    return Beside([claim_ahead, *admitting], CLAIM_OR_ADMIT if admits else None, admits)


def announced(store: "Store", answer: ExchangeResult) -> Admitted:
    """What an exchange has admitted.

    Notifies other workers if it has admitted more jobs of a queue than it has claimed, and sends the event.
    """
    admitted = Admitted.decode(*answer.between[1:]) if answer.between else Admitted({}, [])
    if admitted.later and (following := gate_after("limit")):
        with suppress(DatabaseError):  # an error here must not lose the result of the exchange
            notify_of_keys(store, following.prefix, admitted.later)
    if admitted.counts:
        with suppress(DatabaseError):  # nor here
            if Counter(admitted.counts) - answer.claimed_by_queue():
                wake(store, admitted.counts)
        store.send(JobsAdmitted(store.alias, admitted.counts))
    return admitted


def claimed_ahead(answer: ExchangeResult) -> list[ClaimedJob]:
    """The jobs that were claimed without a permit of their own, in the order in which they are admitted."""
    rows = answer.between[0] if answer.between else []
    return sorted(answer.jobs(rows), key=lambda job: (-job.priority, job.id))

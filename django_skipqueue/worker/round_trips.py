"""The round trips of a worker: each settles outcomes and claims jobs.

Invariant: neither half delays the other for ever, and a failed round trip is not repeated unchanged. After a failure
the settle and the claim are each tried alone. If one fails alone, it is tried with half as many rows.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..queue.claim import first_in_queues
from ..queue.parameters import ExchangeResult
from ..queue.store import Store
from ..values.records import Attempt, QueuePosition
from .claiming import Claim, ClaimPolicy, Free, Half, Plan, Work, next_plan
from .control_connection import ANSWER_TIME, ControlConnection
from .in_exchange import InExchange
from .outcomes import PendingOutcomes

SEARCH_TIME = 20.0
"""Seconds that the search for a position to claim from may take: longer than any other statement."""


class Exchange(NamedTuple):
    answer: ExchangeResult
    attempts: list[Attempt]
    """The attempts whose outcomes were sent."""
    room: int
    """How many jobs were asked for, at most."""
    after: Mapping[str, QueuePosition]
    """Position to search from, by queue. A queue without one was searched from its front."""
    free: Free
    """Room of each runner when the claim was sent."""
    started: float
    ended: float


class Sent(NamedTuple):
    attempts: list[Attempt]
    claim: Claim | None


class Exchanger:
    """Used by the control loop's thread."""

    def __init__(
        self,
        store: Store,
        claiming: ClaimPolicy,
        pending: PendingOutcomes,
        control: ControlConnection,
        *,
        worker_id: str,
        in_exchange: InExchange,
    ) -> None:
        self._in_exchange = in_exchange
        self._store = store
        self._claiming = claiming
        self._pending = pending
        self._control = control
        self._worker_id = worker_id
        self._sent: Sent | None = None
        self._alone: list[Half] = []  # after a failure: which of the two is still to be sent by itself, in this order

    def plan(self, room: int, now: float, *, has_result: bool, has_finished: bool) -> Plan:
        """The plan for the moment `now`. room: how many jobs the worker can take; the others are fields of `Work`."""
        work = Work(
            has_result=has_result,
            has_finished=has_finished,
            outcomes_at=self._pending.due_at,
            admission_at=self._in_exchange.due_at,
            claim_at=self._claiming.next_look,
            room=room,
            alone=self._alone,
            open_at=self._control.retry_at,
        )
        return next_plan(work, now)

    def exchange(self, plan: Plan, meanwhile: Callable[[], object] | None) -> Exchange:
        """Settle outcomes and claim jobs, as planned. Raises the errors of the database.

        `meanwhile` is called while the database works.
        """
        started = time.monotonic()
        attempts = self._pending.next_batch(self._store.locked, started) if plan.settles else []
        room = 0 if attempts and (plan.settles_alone or self._pending.is_slow_alone) else plan.claims
        if room and self._claiming.lost:
            self._find_position(self._claiming.lost)
        names = self._claiming.choose_queues(self._store.queues_with_jobs, time.monotonic, room) if room else []
        beside = self._in_exchange.beside(attempts, has_room=room > 0, claims=bool(names))
        after = self._claiming.after(names, started, admitting=beside.admits) if room else {}
        room = self._claiming.limit(room, after)
        self._sent = Sent(attempts, Claim(names, room, after) if room else None)
        answer = self._store.exchange(
            [attempt.settlement for attempt in attempts if not attempt.is_written],
            queue_names=names,
            limit=room,
            worker_id=self._worker_id,
            after=after,
            meanwhile=meanwhile,
            between=beside.statements,
            claim=beside.claim,
        )
        self._in_exchange.answered(answer)
        self._succeeded(attempts, room)
        return Exchange(answer, attempts, room, after, self._claiming.free, started, time.monotonic())

    def failed(self, *, timed_out: bool, now: float) -> None:
        """Note that the round trip failed. timed_out: the database worked, but took too long."""
        sent, self._sent = self._sent, None
        self._in_exchange.failed(attempt.job for attempt in (sent.attempts if sent else ()))
        self._pending.failed(alone=sent is not None and sent.claim is None, timed_out=timed_out, now=now)
        if sent is None:
            return
        if sent.claim and not sent.attempts:
            self._claiming.failed(sent.claim, timed_out=timed_out, now=now)
        # If one half was tried alone, the other half is tried next.
        self._alone = ["settle", "claim"] if sent.claim else ["claim", "settle"]

    def _succeeded(self, attempts: list[Attempt], room: int) -> None:
        self._sent = None
        if attempts:
            self._pending.answered()
        if self._alone:
            done = {"settle"} if attempts else set()
            done |= {"claim"} if room else set()
            self._alone = [half for half in self._alone if half not in done]

    def _find_position(self, lost: Claim) -> None:
        """Find the positions of the first jobs: the search may take long, or one of them may be too large."""
        self._control.allow(SEARCH_TIME + 1)
        self._sent = Sent([], lost)  # if the search fails, outcomes are sent next
        found = first_in_queues(self._store, lost.names, after=lost.after, seconds=SEARCH_TIME)
        self._control.allow(ANSWER_TIME)
        self._claiming.resume_from(found, time.monotonic())

"""The round trips of a worker: each settles outcomes and claims jobs.

Invariant: neither half delays the other for ever, and a failed round trip is not repeated unchanged. After a failure
the settle and the claim are each tried alone. If one fails alone, it is tried with half as many rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..jobs.registry import registry
from ..parts.limits.lines import ClaimAhead, Lines
from ..parts.limits.queues import limited_queues
from ..queue.claim import first_in_queues
from ..queue.parameters import Admitted, ExchangeResult
from ..queue.store import Store
from ..values.records import NEVER, Attempt, ClaimedJob, QueuePosition
from .capacity import Free
from .claiming import Claim, ClaimPolicy
from .control_connection import ANSWER_TIME, ControlConnection
from .outcomes import PendingOutcomes
from .plan import Half, Plan, Work, next_plan

SEARCH_TIME = 20.0
"""Seconds that the search for a position to claim from may take: longer than any other statement."""


MISSED_DELAY = 0.002
"""Seconds until a key is tried again whose lock another process had: it has it for the time of one round trip."""

FAIR_DELAY = 0.01
"""Seconds until more jobs of a fair key are admitted after some were claimed. Mostly some have ended before."""


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
        lines: Lines | None = None,
    ) -> None:
        """`lines`: of the jobs of limits; `None`: none is claimed ahead."""
        self._lines = lines or Lines()
        self._ahead = ClaimAhead(self._lines)
        self._store = store
        self._claiming = claiming
        self._pending = pending
        self._control = control
        self._worker_id = worker_id
        self._limited_queues = frozenset(limited_queues())
        self._missed: list[str] = []  # keys whose permits another process was counting: to be admitted again
        self._claimed: list[int] = []  # fair jobs: the more run, the more may be queued
        self._admission_at = NEVER  # when to admit jobs of the missed keys again, or after fair jobs were claimed
        self._sent: Sent | None = None
        self._alone: list[Half] = []  # after a failure: which of the two is still to be sent by itself, in this order

    def plan(self, room: int, now: float, *, has_result: bool, has_finished: bool) -> Plan:
        """The plan for the moment `now`. room: how many jobs the worker can take; the others are fields of `Work`."""
        work = Work(
            has_result=has_result,
            has_finished=has_finished,
            outcomes_at=self._pending.due_at,
            admission_at=self._admission_at,
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
        limited = [*{*self._limited(attempts), *self._claimed}]
        self._claimed = []
        names = self._claiming.choose_queues(self._store.queues_with_jobs, time.monotonic, room) if room else []
        after = self._claiming.after(names, started, admitting=bool(limited or self._missed)) if room else {}
        room = self._claiming.limit(room, after)
        ahead = self._ahead.wishes(attempts) if room else []
        self._sent = Sent(attempts, Claim(names, room, after) if room else None)
        answer = self._store.exchange(
            [attempt.settlement for attempt in attempts if not attempt.is_written],
            queue_names=names,
            limit=room,
            worker_id=self._worker_id,
            after=after,
            meanwhile=meanwhile,
            limited=limited,
            keys=self._missed,
            ahead=ahead,
        )
        self._note_admitted(answer.admission)
        self._succeeded(attempts, room)
        return Exchange(answer, attempts, room, after, self._claiming.free, started, time.monotonic())

    def failed(self, *, timed_out: bool, now: float) -> None:
        """Note that the round trip failed. timed_out: the database worked, but took too long."""
        sent, self._sent = self._sent, None
        self._lines.unknown(attempt.job for attempt in (sent.attempts if sent else ()))
        self._pending.failed(alone=sent is not None and sent.claim is None, timed_out=timed_out, now=now)
        if sent is None:
            return
        if sent.claim and not sent.attempts:
            self._claiming.failed(sent.claim, timed_out=timed_out, now=now)
        # If one half was tried alone, the other half is tried next.
        self._alone = ["settle", "claim"] if sent.claim else ["claim", "settle"]

    def _limited(self, attempts: list[Attempt]) -> list[int]:
        """The ids of the jobs whose tasks or queues have a limit. A supervisor finds those that this process misses."""
        queues = self._limited_queues
        if not (registry.has_limits or queues):
            return []
        tasks = {task for task in {attempt.job.task for attempt in attempts} if registry.is_limited(task)}
        if not (tasks or queues):
            return []
        kept = self._ahead.keeps_permits(attempts)
        jobs = (attempt.job for attempt in attempts if attempt.job.ref not in kept)
        return [job.id for job in jobs if job.queue_name in queues or job.task in tasks]

    def _note_admitted(self, admission: Admitted) -> None:
        self._missed = admission.missed
        delay = MISSED_DELAY if self._missed else FAIR_DELAY if self._claimed else NEVER
        self._admission_at = time.monotonic() + delay

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        if registry.has_fair and (fair := {task for task in {job.task for job in jobs} if registry.is_fair(task)}):
            self._claimed += [job.id for job in jobs if job.task in fair]
            self._admission_at = min(self._admission_at, time.monotonic() + FAIR_DELAY)

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

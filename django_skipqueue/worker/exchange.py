"""An exchange is a round trip of a worker with the database. It settles outcomes and claims jobs at the same time.

A failed exchange is not repeated unchanged. The worker sends the settle and the claim separately, and then each with
half the rows. So a failing settle can never block the claims forever, and a failing claim can never block the settles.

A worker sends its next exchange before it applies the result of the last one, so that worker and database work at the
same time. With very short jobs, the worker then runs a fifth more jobs per second. At most one result waits to be
applied, and each result is applied once.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..queue.claim import first_in_queues
from ..queue.notify import jobs_in
from ..queue.parameters import ExchangeResult
from ..queue.store import Store
from ..values.records import Attempt, ClaimedJob, QueuePosition
from .claiming import Claim, ClaimPolicy, Free, Half, Plan, Work, next_plan
from .control_connection import ANSWER_TIME, ControlConnection
from .dispatcher import EventDispatcher, Observers, SettleService
from .in_exchange import InExchange
from .loop import Service
from .notes import WriteNotes
from .outcomes import OutcomeReports, PendingOutcomes
from .protocol import SharedCounts

SEARCH_TIME = 20.0
"""How many seconds the search for a position to claim from may take. All other statements must be faster."""


class Exchange(NamedTuple):
    """A finished exchange, and how it was sent."""

    answer: ExchangeResult
    attempts: list[Attempt]
    """The attempts whose outcomes were sent."""
    room: int
    """The limit of the claim; 0 if the exchange sent no claim."""
    after: Mapping[str, QueuePosition]
    """By queue, the position after which the claim searched. A queue that is missing was searched from its front."""
    free: Free
    """How many more jobs each runner had room for when the claim was sent."""
    started: float
    ended: float


class SentExchange(NamedTuple):
    """An exchange that was sent, and has not been answered yet."""

    attempts: list[Attempt]
    claim: Claim | None


DELAYED_RESULT_JOBS = 100
"""If a claim returns at least this many jobs, its result is applied during the next exchange. The jobs of a smaller
claim start at once."""


class ExchangeBuffer:
    """Keeps the result of one exchange until it is applied. Used only by the control loop's thread."""

    def __init__(self, apply_exchange: Callable[[Exchange], bool]) -> None:
        """apply_exchange: applies a result, and returns whether the exchange found the queues empty."""
        self._apply_exchange = apply_exchange
        self._waiting: Exchange | None = None

    @property
    def is_empty(self) -> bool:
        return self._waiting is None

    @property
    def claimed(self) -> int:
        """How many jobs the waiting result has claimed."""
        return self._waiting.answer.count_claimed() if self._waiting else 0

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The attempts of the waiting result, which are settled in the database, but whose jobs still count as held."""
        return self._waiting.attempts if self._waiting else ()

    def put(self, exchange: Exchange) -> None:
        """Keep this result. The previous result must have been applied."""
        assert self._waiting is None  # noqa: S101 (a result that is overwritten would lose its jobs)
        self._waiting = exchange

    def apply(self) -> bool:
        """Apply the result, if one waits. Sends no statement. Returns whether the queues were found empty."""
        if self._waiting is None:
            return False
        exchange, self._waiting = self._waiting, None
        return self._apply_exchange(exchange)


class JobHolder(Protocol):
    """Holds jobs from their claim until they are settled."""

    def room(self, now: float) -> int:
        """Return how many more jobs to claim."""

    def has_finished(self, now: float) -> bool:
        """Whether there are outcomes to send at once."""

    def take_finished(self) -> Iterable[Attempt]:
        """Return the attempts that have finished since the last call."""

    def take(self, claimed: list[ClaimedJob], free: Free) -> None:
        """Take the jobs of a claim. `free` says how many jobs each runner had room for when the claim was sent."""

    def take_ahead(self, claimed: list[ClaimedJob]) -> None:
        """Take the jobs that a part has claimed: see `InExchange.claimed_ahead`."""

    def settled(self, attempts: list[Attempt]) -> None:
        """Note that the database has accepted or rejected the outcomes of these attempts."""


class ExchangeService(Service):
    """A service that sends an exchange as soon as an outcome waits, or a claim is due and there is room for a job.

    Used only by the control loop's thread. All code that drops or releases jobs of the holder calls `apply` first.
    """

    name = "exchange"
    loop_handles_errors = False  # it handles the errors of each statement

    def __init__(  # noqa: PLR0913 (each has a use)
        self,
        holder: JobHolder,
        claiming: ClaimPolicy,
        *,
        id: str,
        store: Store,
        control: ControlConnection,
        dispatcher: EventDispatcher,
        shared: SharedCounts,
        in_exchange: InExchange,
        settle_services: Sequence[SettleService],
        write_notes: WriteNotes,
        exchanged: Callable[[bool], object] = lambda _: None,
        delays_full_claims_only: bool = False,
        remembered_attempts: int = 0,
        not_held_reason: str = "",
    ) -> None:
        """`remembered_attempts` and `not_held_reason`: see `OutcomeReports`.

        exchanged: called after each exchange. Its argument is whether the exchange found all queues empty.
        delays_full_claims_only: keep the result of a large claim waiting only if the claim has reached its limit.
        """
        self.claiming = claiming
        self.settle_services, self.write_notes = settle_services, write_notes
        self.jobs_claimed = 0
        self.jobs_done = 0
        self.pending = PendingOutcomes()
        self.observers = Observers()
        self.observing = self.observers.services(store)
        self.reports = OutcomeReports(
            dispatcher, self.observers.all, remembered_attempts=remembered_attempts, not_held_reason=not_held_reason
        )
        self.buffer = ExchangeBuffer(self._apply)
        self._id, self._holder, self._in_exchange = id, holder, in_exchange
        self.store, self._control, self._shared = store, control, shared
        self._exchanged, self._delays_full_claims_only = exchanged, delays_full_claims_only
        self._sent_exchange: SentExchange | None = None  # the exchange that was sent, and has not been answered yet
        self._to_send_alone: list[Half] = []  # after a failure, the halves of the exchange to send separately, in order

    @property
    def due_at(self) -> float:
        return self._plan(time.monotonic()).at

    def run(self, now: float) -> None:
        plan = self._plan(now)
        if plan.applies:
            self.apply()
            plan = self._plan(now)
        if plan.sends:
            self._exchanged(self.exchange(plan))

    def notified(self, payloads: Collection[str]) -> None:
        self.claiming.queues_notified({jobs_in(payload)[0] for payload in payloads} - {""})

    def _plan(self, now: float) -> Plan:
        """Decide whether to settle and to claim now."""
        work = Work(
            has_result=not self.buffer.is_empty,
            has_finished=self._holder.has_finished(now),
            outcomes_at=self.pending.due_at,
            admission_at=self._in_exchange.due_at,
            claim_at=self.claiming.next_check,
            room=self._holder.room(now),
            alone=self._to_send_alone,
            open_at=self._control.retry_at,
        )
        return next_plan(work, now)

    def exchange(self, plan: Plan) -> bool:
        """Settle finished attempts and claim jobs, as planned. Returns whether the queues were found empty.

        Applies the previous result while the database works. Applies the result of a small claim at once.
        """
        self.pending.add(self._holder.take_finished())
        found_empty = False
        with self._control.handling_errors():
            if self._shared.is_session or self._control.is_session:
                self._control.prepare_statements()
            self._shared.begin_claim()
            exchange = self._send(plan)
            if exchange.room:
                self._shared.end_claim()
            self.apply()  # for the case that the previous result was not applied, because an outcome was refused
            self.buffer.put(exchange)
            least_jobs_to_delay = exchange.room if self._delays_full_claims_only else 0
            if self.buffer.claimed < max(least_jobs_to_delay, DELAYED_RESULT_JOBS):
                found_empty = self.apply()
            self._control.note_exchange(exchange.ended - exchange.started)  # at the end, as it may send a statement
        if self._control.is_broken:
            self._failed()
        self.report_lost()
        return found_empty

    def _send(self, plan: Plan) -> Exchange:
        """Send the statements of the plan to the database, and wait for the answer."""
        started = time.monotonic()
        attempts = self.pending.next_batch(self.store.locked, started) if plan.settles else []
        room = 0 if attempts and (plan.settles_alone or self.pending.is_slow_alone) else plan.claims
        if room and self.claiming.lost:
            self._find_position(self.claiming.lost)
        queue_names = self.claiming.choose_queues(self.store.queues_with_jobs, time.monotonic, room) if room else []
        of_parts = self._in_exchange.statements_of_parts(attempts, has_room=room > 0, claims=bool(queue_names))
        after = self.claiming.after(queue_names, started, admitting=of_parts.admits) if room else {}
        room = self.claiming.limit(room, after)
        self._sent_exchange = SentExchange(attempts, Claim(queue_names, room, after) if room else None)
        answer = self.store.exchange(
            [attempt.settlement for attempt in attempts if not attempt.is_written],
            queue_names=queue_names,
            limit=room,
            worker_id=self._id,
            after=after,
            meanwhile=None if self.buffer.is_empty else self.apply,
            between=of_parts.statements,
            claim=of_parts.claim,
        )
        self._in_exchange.answered(answer)
        self._sent_exchange = None
        if attempts:
            self.pending.answered()
        if self._to_send_alone:
            was_sent = {"settle": bool(attempts), "claim": room > 0}
            self._to_send_alone = [half for half in self._to_send_alone if not was_sent[half]]
        return Exchange(answer, attempts, room, after, self.claiming.free, started, time.monotonic())

    def _failed(self) -> None:
        """Note that the last exchange failed, so that its settle and its claim are sent separately."""
        timed_out, now = self._control.timed_out, time.monotonic()
        sent_exchange, self._sent_exchange = self._sent_exchange, None
        self._in_exchange.failed(attempt.job for attempt in (sent_exchange.attempts if sent_exchange else ()))
        self.pending.failed(
            alone=sent_exchange is not None and sent_exchange.claim is None, timed_out=timed_out, now=now
        )
        if sent_exchange is None:
            return
        if sent_exchange.claim and not sent_exchange.attempts:
            self.claiming.failed(sent_exchange.claim, timed_out=timed_out, now=now)
        # If a settle failed alone, send a claim next, so that both make progress; otherwise begin with the settle.
        self._to_send_alone = ["settle", "claim"] if sent_exchange.claim else ["claim", "settle"]

    def _find_position(self, lost_claim: Claim) -> None:
        """After a claim timed out, find the positions of the first jobs. The search may take long."""
        self._control.allow(SEARCH_TIME + 1)
        self._sent_exchange = SentExchange([], lost_claim)  # if the search fails, outcomes are sent next
        first_jobs = first_in_queues(self.store, lost_claim.names, after=lost_claim.after, seconds=SEARCH_TIME)
        self._control.allow(ANSWER_TIME)
        self.claiming.resume_from(first_jobs, time.monotonic())

    def report_lost(self) -> None:
        if self.reports.lost and not self._control.is_broken:
            with self._control.handling_errors():
                self.reports.report_lost(self.store)

    def apply(self) -> bool:
        """Apply the result of the last exchange, if it waits. Returns whether the queues were found empty."""
        return self.buffer.apply()

    def _apply(self, exchange: Exchange) -> bool:
        """Forget the jobs whose outcomes were written, and take claimed jobs. Returns whether the queues were empty."""
        answer = exchange.answer
        if claimed_ahead := self._in_exchange.claimed_ahead(answer):
            for observer in self.observers.all:
                observer.claimed(claimed_ahead)
            self._holder.take_ahead(claimed_ahead)
        if attempts := exchange.attempts:
            settled = answer.settled()
            self.reports.report(attempts, settled, answer.refused)
            if any(settled.values()):  # at least one of the jobs is in a batch
                for service in self.settle_services:
                    service.settled(settled)
            for attempt in attempts:
                if attempt.is_written:
                    self.write_notes.add_late(attempt)
            self.jobs_done += len(attempts)
            self._holder.settled(attempts)
        claimed = answer.claimed()
        if claimed:
            self.jobs_claimed += len(claimed)
            for observer in self.observers.all:
                observer.claimed(claimed)
            self._in_exchange.claimed(claimed)
            self._holder.take(claimed, exchange.free)
        return exchange.room > 0 and self.claiming.claimed(
            claimed,
            room=exchange.room,
            names=answer.queue_names,
            after=exchange.after,
            started=exchange.started,
            ended=exchange.ended,
        )

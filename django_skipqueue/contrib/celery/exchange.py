"""The exchanges of a relay: each settles outcomes that came from the carrier, and claims jobs for it.

The relay sends the next exchange first, and publishes the jobs of the last one while PostgreSQL works.

Invariant: an outcome is acknowledged after its settle is committed. A claimed job is published, or released.

A job may have no outcome of the carrier's: it has ended there, or cannot be sent there. What becomes of it is decided
here, by functions that are pure.
"""

import time
from collections.abc import Iterable, Sequence

from ...exceptions import MessageTooLarge, UnreadableOutcome
from ...queue.notify import jobs_in
from ...queue.store import Store
from ...values.outcomes import Outcome, error_entry, summary
from ...values.records import Attempt, ClaimedJob
from ...worker.claiming import ClaimPolicy, Plan
from ...worker.control_connection import ControlConnection
from ...worker.dispatcher import EventDispatcher, Observers, settle_services
from ...worker.in_exchange import make_in_exchange
from ...worker.in_flight import ExchangeBuffer
from ...worker.loop import Service
from ...worker.notes import WriteNotes
from ...worker.options import WorkerOptions
from ...worker.outcomes import OutcomeReports, PendingOutcomes
from ...worker.protocol import Standby
from ...worker.round_trips import Exchange, Exchanger
from . import wire
from .carrier import ReturnedJob, TooLarge
from .connection import CarrierConnection
from .window import Window

REJECTED_DELAY = 10.0
"""Seconds until a job is tried again that a worker of the carrier has refused: it may have another version."""

UNREAD = "?"
"""The task and the queue, in events and roll-ups, of a job whose outcome cannot be read. Its row has them."""


def ended(returned: ReturnedJob, *, carrier: str, database: str, now: float) -> Attempt | None:
    """The attempt of the job; `None`: it has none to settle.

    A job that a worker has refused is scheduled again, and costs no attempt. One whose outcome cannot be read has run,
    so it fails; only its lease is known.
    """
    job = returned.job
    if returned.reason == "unreadable" and returned.ref:
        job = job or ClaimedJob(*returned.ref, UNREAD, UNREAD, "[]", "{}", 0, 0, 0, 0.0, 0.0, "{}")
        outcome = _failure(job, UnreadableOutcome(), carrier)
    elif returned.reason == "rejected" and job is not None:
        line = f"A worker of {carrier} refused the job: it may have another version of django_skipqueue."
        outcome = Outcome("scheduled", delay=REJECTED_DELAY, refund=1, last_error=line, is_unknown=True)
    else:
        return None
    return Attempt(job, outcome, now, now, carrier, database=database)


def not_sent(too_large: TooLarge, *, carrier: str, database: str, now: float) -> Attempt:
    """The failed attempt of a job whose message is too large. It has not begun, and would never be sent."""
    job, size, most = too_large
    error = MessageTooLarge(
        f"The message of the job has {size:,} bytes, and the carrier {carrier} takes {most:,} at most. The job has not "
        "begun. Pass less, such as the key of a row or the name of a file; or raise max_message_size of RabbitMQ, and "
        "MAX_MESSAGE_SIZE of the carrier in SKIPQUEUE['CARRIERS'], and retry the job."
    )
    return Attempt(wire.lean(job), _failure(job, error, carrier), now, now, carrier, database=database)


def _failure(job: ClaimedJob, error: Exception, carrier: str) -> Outcome:
    entry = error_entry(error, attempt=job.attempt, worker=carrier, duration_ms=0.0)
    return Outcome("failed", last_error=summary(error), error=entry)


DEFER_RESULT_ABOVE = 100
"""The jobs of a claim are published beside the next exchange if there are this many. Fewer are published at once."""

NOT_THE_CARRIERS = "the carrier does not hold the job"
"""The reason for which such an outcome is dropped."""

REPORTED = 10_000
"""Outcomes of which a relay remembers that it has reported them: the carrier may run a job twice."""


class RelayExchange(Service):
    """Used by the control loop's thread."""

    name = "relay_exchange"
    loop_handles_errors = False  # it handles the errors of each statement

    def __init__(
        self,
        options: WorkerOptions,
        *,
        id: str,
        store: Store,
        control: ControlConnection,
        dispatcher: EventDispatcher,
        standby: Standby,
        connection: CarrierConnection,
        window: Window,
    ) -> None:
        self.claiming = ClaimPolicy(options, standby)
        self.jobs_claimed = 0
        self.jobs_done = 0
        self.is_paused = False
        """Whether to claim and publish nothing: the relay stops, or has no row."""
        self._store, self._control, self._standby = store, control, standby
        self._connection, self._jobs, self._window = connection, window.jobs, window
        self._dispatcher = dispatcher
        self._pending = PendingOutcomes()
        self._in_exchange = make_in_exchange(store, id)
        self._exchanger = Exchanger(
            store, self.claiming, self._pending, control, worker_id=id, in_exchange=self._in_exchange
        )
        self._buffer = ExchangeBuffer(self._apply)
        self._observers = Observers()
        self.settle_services = settle_services(store)
        self._reports = OutcomeReports(dispatcher, self._observers.made, remembered=REPORTED, not_held=NOT_THE_CARRIERS)
        self.observing = self._observers.services(store)
        self.write_notes = WriteNotes(store, list)

    # When

    def room(self, now: float) -> int:
        if self.is_paused or self._dispatcher.is_full or self._pending.has_more or not self._connection.is_open:
            return 0
        return self._window.room(self._buffer.claimed, now)

    @property
    def due_at(self) -> float:
        return self._plan(time.monotonic()).at

    def _plan(self, now: float) -> Plan:
        has_result, has_outcomes = not self._buffer.is_empty, self._pending.due_at <= now
        return self._exchanger.plan(self.room(now), now, has_result=has_result, has_finished=has_outcomes)

    def notified(self, payloads: Iterable[str]) -> None:
        self.claiming.queues_notified({jobs_in(payload)[0] for payload in payloads} - {""})

    # The exchange

    def add(self, attempts: Iterable[Attempt]) -> None:
        self._pending.add(attempts)

    def run(self, now: float) -> None:
        plan = self._plan(now)
        if plan.applies:
            self.apply()
            plan = self._plan(now)
        if plan.sends:
            self._exchange(plan)

    def _exchange(self, plan: Plan) -> None:
        with self._control.handling_errors():
            if self._standby.is_session or self._control.is_session:
                self._control.prepare_statements()
            self._standby.looks()
            exchanged = self._exchanger.exchange(plan, None if self._buffer.is_empty else self.apply)
            if exchanged.room:
                self._standby.looked()
            self.apply()  # not yet applied if the database refused an outcome
            self._buffer.put(exchanged)
            if exchanged.answer.count_claimed() < max(exchanged.room, DEFER_RESULT_ABOVE):
                self.apply()
            self._control.note_exchange(exchanged.ended - exchanged.started)  # last: it may send a statement
        if self._control.is_broken:
            self._exchanger.failed(timed_out=self._control.timed_out, now=time.monotonic())
        elif self._reports.lost:
            with self._control.handling_errors():
                self._reports.report_lost(self._store)

    def apply(self) -> None:
        """Apply the result of the last exchange, if it waits: acknowledge its outcomes, and publish its jobs."""
        self._buffer.apply()

    def _apply(self, exchanged: Exchange) -> bool:
        self._written(exchanged)
        claimed = exchanged.answer.claimed()
        self._publish(claimed)
        return exchanged.room > 0 and self.claiming.claimed(
            claimed,
            room=exchanged.room,
            names=exchanged.answer.queue_names,
            after=exchanged.after,
            started=exchanged.started,
            ended=exchanged.ended,
        )

    def _written(self, exchanged: Exchange) -> None:
        attempts = exchanged.attempts
        if not attempts:
            return
        settled = exchanged.answer.settled()
        self._reports.sent(attempts, settled, exchanged.answer.refused)
        for service in self.settle_services:
            service.settled(settled)
        for attempt in attempts:
            if attempt.is_written:
                self.write_notes.add_late(attempt)
        self.jobs_done += len(attempts)
        deliveries = self._jobs.settled(attempts)
        if deliveries and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.acknowledge(deliveries)

    def _publish(self, claimed: list[ClaimedJob]) -> None:
        if not claimed:
            return
        self.jobs_claimed += len(claimed)
        for observer in self._observers.made:
            observer.claimed(claimed)
        self._in_exchange.claimed(claimed)
        self._window.claimed(claimed)
        if self.is_paused or not self._connection.is_open:
            self._jobs.release(job.ref for job in claimed)
            return
        self._jobs.published(claimed)  # before it is sent: an error leaves unknown what the carrier has
        with self._connection.handling_errors():
            if too_large := self._connection.carrier.publish(claimed):
                self._fail(too_large)

    def _fail(self, too_large: Sequence[TooLarge]) -> None:
        """Settle these jobs as failed with the next exchange: whoever claims them could not send them either."""
        self._jobs.not_sent(job.ref for job, *_ in too_large)
        carrier, now = self._connection.carrier.name, time.monotonic()
        self.add(not_sent(each, carrier=carrier, database=self._store.alias, now=now) for each in too_large)

    # At the end

    def settle_last(self, deadline: float) -> None:
        """Write the outcomes that wait, until the deadline, or until the database is broken twice."""
        self._pending.look_now()
        failures = 0
        while failures < 2 and self._pending.due_at <= time.monotonic() < deadline:
            self._exchange(Plan(0.0, settles=True))
            failures += self._control.is_broken
        self.apply()

    def connection_broke(self) -> None:
        self.apply()
        self.claiming.start_over()

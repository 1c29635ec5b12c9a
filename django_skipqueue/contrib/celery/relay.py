"""The relay process: it hands jobs over to a carrier, and settles the outcomes that come back.

No job is lost. While a job's row names the relay, the relay is responsible; if the relay dies, its supervisor releases
the job. Once the row names the carrier, the carrier has confirmed the job, and either runs it or gives it back.

The relay publishes or releases each job that it has claimed, and acknowledges an outcome only after its settle is
committed.

The pure functions at the top make attempts for jobs that came back without an outcome.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ...events import liveness_logs, logs
from ...exceptions import MessageTooLarge, UnreadableOutcome
from ...values.outcomes import Outcome, error_entry, summary
from ...values.records import Attempt, ClaimedJob
from ...worker.attempts.running_attempt import RunningJobs
from ...worker.claiming import ClaimPolicy, Free, Plan
from ...worker.control_loop import ControlLoop, WatchItself
from ...worker.dispatcher import ReceiverCheck, settle_services
from ...worker.exchange import ExchangeService
from ...worker.in_exchange import make_in_exchange
from ...worker.loop import Service
from ...worker.notes import WriteNotes
from ...worker.options import WorkerOptions
from ...worker.protocol import EXIT_BLOCKED, EXIT_RECYCLED, SharedCounts, Stamps
from ...worker.watchers import OrphanCheck
from . import logs as relay_logs
from . import wire
from .carrier import Carrier, CarrierConnection, ReturnedJob, Taken, TooLarge, carrier_id
from .rows import GUARDS, CarrierRow, HandOver, LostWindow, RevokeCancelled, TakeBack
from .settings import carriers, make_carrier
from .window import CarriedJobs, CarrierWindow

REJECTED_DELAY = 10.0
"""Seconds until the next attempt of a job that a worker of the carrier refused, perhaps because of its version."""

UNREADABLE_NAME = "?"
"""The name of the task and queue in events about a job whose outcome the relay cannot read."""


def attempt_of_returned(returned: ReturnedJob, *, carrier: str, database: str, now: float) -> Attempt | None:
    """Return the attempt of a job that came back without an outcome; `None` if there is nothing to settle.

    A refused job is scheduled again, which costs no attempt. If the relay cannot read an outcome, the job fails,
    because it has run; then only its id and lease are known.
    """
    job = returned.job
    if returned.reason == "unreadable" and returned.ref:
        job = job or _unreadable_job(*returned.ref)
        outcome = _failed_outcome(job, UnreadableOutcome(), carrier)
    elif returned.reason == "rejected" and job is not None:
        line = f"A worker of {carrier} refused the job. It may have another version of django_skipqueue."
        outcome = Outcome("scheduled", delay=REJECTED_DELAY, refund=1, last_error=line, is_unknown=True)
    else:
        return None
    return Attempt(job, outcome, now, now, carrier, database=database)


def _unreadable_job(job_id: int, lease: int) -> ClaimedJob:
    return ClaimedJob(
        job_id,
        lease,
        task=UNREADABLE_NAME,
        queue_name=UNREADABLE_NAME,
        args="[]",
        kwargs="{}",
        attempt=0,
        max_attempts=0,
        priority=0,
        run_after=0.0,
        locked_at=0.0,
        metadata="{}",
    )


def failed_too_large(too_large: TooLarge, *, carrier: str, database: str, now: float) -> Attempt:
    """Return the failed attempt of a job that cannot be sent because its message is too large. It has not begun."""
    job, size, most = too_large
    error = MessageTooLarge(
        f"The job needs a message of {size:,} bytes, but the carrier {carrier} accepts at most {most:,}. The job has "
        "not begun. Pass less, such as the key of a row or the name of a file; or raise RabbitMQ's max_message_size, "
        "and the carrier's MAX_MESSAGE_SIZE in SKIPQUEUE['CARRIERS'], and retry the job."
    )
    outcome, lean_job = _failed_outcome(job, error, carrier), wire.without_large_arguments(job)
    return Attempt(lean_job, outcome, now, now, carrier, database=database)


def _failed_outcome(job: ClaimedJob, error: Exception, carrier: str) -> Outcome:
    entry = error_entry(error, attempt=job.attempt, worker=carrier, duration_ms=0.0)
    return Outcome("failed", last_error=summary(error), error=entry)


GATHER_SECONDS = 0.02
"""Seconds until the next read, after a read that brought something from the carrier. The pause gathers outcomes,
because statements for many outcomes cost little more than for one."""

CONFIRM_TIME = 5.0
"""A stopping relay waits at most this many seconds for the carrier to confirm published jobs."""

LAST_RELAY_EVENTS = 2.0
"""Signal receivers may delay the end of a relay by at most this many seconds."""

NOT_WITH_CARRIER = "the carrier does not have the job"
"""The reason in the log when the relay drops the outcome of a job that the carrier does not have."""

MOST_REPORTED_REMEMBERED = 10_000
"""How many reported outcomes a relay remembers, because the carrier may run a job twice."""


@dataclass(frozen=True, kw_only=True)
class RelayOptions(WorkerOptions):
    """The options of a supervisor whose processes are relays. A relay has no slots."""

    carrier: str
    """The name of the carrier that gets the jobs."""
    concurrency: int = 0

    @property
    def runs(self) -> "type[Relay]":
        return Relay


class Relay(ControlLoop):
    """The control loop of a relay. It is a `JobHolder` for the exchanges of `worker.exchange`."""

    kind = "relay"

    def __init__(
        self,
        options: RelayOptions,
        *,
        id: str,
        name: str,
        lifeline: int,
        running_jobs: RunningJobs | None = None,
        stamps: Stamps | None = None,
        shared: SharedCounts | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        """running_jobs: stays empty, because no job runs in this process. carrier: replaces the settings' carrier."""
        super().__init__(options, id=id, name=name, lifeline=lifeline, stamps=stamps, shared=shared)
        carrier_settings = carriers()[options.carrier]
        carrier_row_id = carrier_id(carrier_settings.name)
        store = self._store
        store.guards, store.holder = GUARDS, {"carrier": carrier_settings.name, "carrier_id": carrier_row_id}
        self._is_paused = False  # while the relay stops, or has no row, it claims and publishes nothing
        self._read_again_at = 0.0  # when to read from the carrier next, in monotonic time
        self._unreadable = 0  # the number of unreadable messages since the start
        self.jobs = CarriedJobs()
        self.window = CarrierWindow(
            store, self.jobs, size=carrier_settings.window, worker_timeout=options.worker_timeout
        )
        self.connection = connection = CarrierConnection(
            carrier or make_carrier(carrier_settings, options.database),
            who=name,
            home=lambda: self.row.home,
            lost=self.jobs.connection_lost,
            stamp=self._stamp,
        )
        self.exchanges = ExchangeService(
            self,
            ClaimPolicy(options, self.shared),
            id=id,
            store=store,
            control=self.control,
            dispatcher=self.dispatcher,
            shared=self.shared,
            in_exchange=make_in_exchange(store, id),
            settle_services=settle_services(store),
            write_notes=WriteNotes(store, list),
            delays_full_claims_only=True,
            remembered_attempts=MOST_REPORTED_REMEMBERED,
            not_held_reason=NOT_WITH_CARRIER,
        )
        interval = options.seconds_between_heartbeats
        self.row = CarrierRow(store, carrier_settings, connection, self.window, relay_id=id, interval=interval)
        self._hand_over = HandOver(store, self.jobs, carrier_id=carrier_row_id)
        self._take_back = TakeBack(store, self.jobs, connection, who=name)
        self.lost_window = LostWindow(store, carrier_settings, connection, self.window, who=name)
        self._orphans = OrphanCheck(options.worker_timeout, self._release_orphans)
        self.control.on_broken = self._database_broke
        restart_claiming = self.exchanges.claiming.start_over
        services: list[Service] = [
            ReceiverCheck(
                self.dispatcher, who=f"relay {name}", hint="the process is replaced", then=self._stop_blocked
            ),
            self.row,
            self.window,
            connection,
            self._orphans,
            *([WatchItself(self.control, self.shared, on_listen=restart_claiming)] if options.listen else []),
            self.exchanges,
            self._hand_over,
            self._take_back,
            RevokeCancelled(store, connection, carrier_id=carrier_row_id),
            self.lost_window,
            *self.exchanges.settle_services,
            *self.exchanges.observing,
            self.exchanges.write_notes,
        ]
        self._make_loop(services)

    @property
    def jobs_done(self) -> int:
        return self.exchanges.jobs_done

    # One turn of the loop

    def _turn(self) -> None:
        self._stamp()
        self._receive()
        may_claim = not self.stopping and self.row.is_written and self.own_row.is_alive(time.monotonic())
        self._is_paused = not may_claim
        self._loop.run_due()

    def _receive(self) -> None:
        """Take what the carrier has sent, and acknowledge what needs no settle."""
        connection = self.connection
        if not connection.is_open or (now := time.monotonic()) < self._read_again_at:
            return
        with connection.handling_errors():
            taken = connection.carrier.take()
            self._read_again_at = now + GATHER_SECONDS if taken else 0.0
            if (is_blocked := connection.carrier.is_blocked) != self.window.is_blocked:
                self.window.is_blocked = is_blocked
                write_log = relay_logs.carrier_blocked if is_blocked else relay_logs.carrier_unblocked
                write_log(self.name, connection.carrier.name)
            make_attempt = partial(
                attempt_of_returned, carrier=connection.carrier.name, database=self.options.database, now=now
            )
            attempts, to_acknowledge = self.jobs.take(taken, make_attempt)
            self.exchanges.pending.add(map(self._as_of_this_relay, attempts))
            connection.acknowledge(to_acknowledge)
            self._log(taken)

    def _as_of_this_relay(self, attempt: Attempt) -> Attempt:
        """Give the job the time of its claim by this process's clock, so that the waiting time can be computed.

        Also name the relay's database, whatever database the message names.
        """
        job = attempt.job._replace(claimed_at=self.window.claimed_at(attempt.job))
        return attempt._replace(job=job, database=self.options.database)

    def _log(self, taken: Taken) -> None:
        carrier = self.connection.carrier.name
        dropped_count = sum(returned.reason == "maxlen" for returned in taken.jobs)
        if refused_count := len(taken.refused) + dropped_count:
            relay_logs.carrier_refused(self.name, carrier, refused_count, self.window.pause(refused_count))
        elif taken.confirmed:
            self.window.end_refusals()
        unreadable = [returned.problem for returned in taken.jobs if returned.problem]
        if unreadable:
            self._unreadable += len(unreadable)
            relay_logs.message_unreadable(self.name, carrier, len(unreadable), self._unreadable, unreadable[0])
        for reason, count in Counter(returned.reason for returned in taken.jobs if returned.ref).items():
            relay_logs.carried_returned(self.name, carrier, count, reason)

    # Round trips

    def room(self, now: float) -> int:
        """Return how many jobs the relay may claim now."""
        if self._is_paused or self.dispatcher.is_full or self.exchanges.pending.has_more or not self.connection.is_open:
            return 0
        return self.window.room(self.exchanges.buffer.claimed, now)

    def has_finished(self, now: float) -> bool:
        return self.exchanges.pending.due_at <= now

    def take_finished(self) -> Iterable[Attempt]:
        return ()  # `_receive` has added them to the pending outcomes

    def settled(self, attempts: list[Attempt]) -> None:
        self.connection.acknowledge(self.jobs.settled(attempts))

    def take(self, claimed: list[ClaimedJob], free: Free) -> None:
        """Publish these jobs. Jobs that are too large fail, because no relay could send them."""
        self.window.claimed(claimed)
        if self._is_paused or not self.connection.is_open:
            self.jobs.release(job.ref for job in claimed)
            return
        self.jobs.published(claimed)  # before the call, because after an error nobody knows which jobs the carrier has
        with self.connection.handling_errors():
            carrier = self.connection.carrier
            if unsent_jobs := carrier.publish(claimed):
                self.jobs.not_sent(too_large.job.ref for too_large in unsent_jobs)
                name, alias, now = carrier.name, self._store.alias, time.monotonic()
                self.exchanges.pending.add(
                    failed_too_large(too_large, carrier=name, database=alias, now=now) for too_large in unsent_jobs
                )

    def take_ahead(self, claimed: list[ClaimedJob]) -> None:
        self.take(claimed, {})

    def _database_broke(self) -> None:
        self.exchanges.apply()
        self.exchanges.claiming.start_over()
        self._orphans.expect(time.monotonic())

    def _release_orphans(self) -> None:
        """Release jobs whose rows name this relay, although the relay does not have them."""
        self.exchanges.apply()
        orphans = self._store.release_orphans(self.id, known=self.jobs.held_ids)
        if orphans:
            logs.orphans_released(self.name, len(orphans))

    # Waiting

    def _has_work(self) -> bool:
        return False

    def _called(self, queue_name: str) -> None:
        self.exchanges.claiming.called(queue_name)

    def _offer(self) -> None:
        room = 0 if self.control.is_broken else self.room(time.monotonic())
        self.shared.offer(slots=room, room=room, claimed=self.exchanges.jobs_claimed, running=self.jobs.count)

    def _sleep(self, longest: float, files: Iterable[int] = ()) -> None:
        gathering_seconds = self._read_again_at - time.monotonic()
        if gathering_seconds > 0:
            super()._sleep(min(longest, gathering_seconds), files)
        else:
            super()._sleep(longest, (*files, *self.connection.files))

    # Stopping

    def _stop_blocked(self) -> None:
        self._exit_code = EXIT_BLOCKED
        self.stop()

    def _recycle(self, reason: str) -> None:
        if not self.stopping:
            liveness_logs.recycling(self.name, reason)
            self._exit_code = EXIT_RECYCLED
            self.stop()

    def _shut_down(self) -> None:
        self._is_paused = True
        deadline = min(self._shutdown_deadline, time.monotonic() + CONFIRM_TIME)
        exchanges, failures = self.exchanges, 0
        exchanges.apply()
        # First wait until the carrier has confirmed the published jobs.
        while self.jobs.unconfirmed and self.connection.is_open and (seconds_left := deadline - time.monotonic()) > 0:
            self._sleep(seconds_left)
            self._turn()
        # Then settle the outcomes that have arrived, and give up after two failures.
        exchanges.pending.check_now()
        while failures < 2 and exchanges.pending.due_at <= time.monotonic() < deadline:
            exchanges.exchange(Plan(0.0, settles=True))
            failures += self.control.is_broken
        exchanges.apply()
        # Finally write who has the remaining jobs: the carrier has the confirmed jobs, and the others are released.
        self.jobs.release_unconfirmed()
        while not self.control.is_broken and self._hand_over.due_at <= time.monotonic() < self._shutdown_deadline:
            with self.control.handling_errors(refused=self._hand_over.refused):
                self._hand_over.run(time.monotonic())
        for service in (self._hand_over, self._take_back, self.row, *exchanges.observing):
            with self.control.handling_errors(refused=service.refused):
                service.run(time.monotonic())
        self._emit_stop()
        self.dispatcher.flush(timeout=LAST_RELAY_EVENTS)
        with self.control.handling_errors():
            self._store.release_orphans(self.id, known=[])
            self._store.delete_workers([self.id])
        self.dispatcher.stop(timeout=LAST_RELAY_EVENTS)
        self.connection.close()
        self.control.close()

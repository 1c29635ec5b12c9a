"""One relay process: gives jobs to a carrier, and settles the outcomes that come back.

Invariant: at every instant somebody will act on a job. While its row names the relay, the relay does; after the death
of the relay its supervisor releases the job. Once its row names the carrier, the carrier has confirmed the job, and
delivers it or gives it back.

A service asks the carrier not to begin the jobs that were cancelled. If the carrier begins one all the same, its
outcome is dropped.

Another service notices that the broker has lost a full window of jobs: then no job is handed over, and nothing else
says why. A job that waits with the broker for longer than `WAIT` comes back, and one that a worker runs ends within its
time limit. If the window is full, and no job of it was handed over within both together, none of them is there any
more.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ...events import liveness_logs, logs
from ...exceptions import UnknownTask
from ...jobs.registry import registry
from ...queue.store import Store
from ...values.records import Attempt
from ...worker.attempts.running_attempt import RunningJobs
from ...worker.control_loop import ControlLoop, WatchItself
from ...worker.dispatcher import ReceiverCheck
from ...worker.loop import Periodic, Service
from ...worker.options import WorkerOptions
from ...worker.protocol import EXIT_BLOCKED, EXIT_RECYCLED, Stamps, Standby
from ...worker.watchers import OrphanCheck
from . import logs as relay_logs
from . import sql
from .carrier import Carrier, ReturnedJob, Taken, carrier_id
from .carrier_row import CarrierRow
from .conf import carriers
from .connection import CarrierConnection
from .exchange import RelayExchange, ended
from .hand_over import HandOver, TakeBack
from .making import make_carrier
from .settings import CarrierSettings
from .window import CarriedJobs, Window

INTERVAL = 1.0
"""Seconds between two looks."""

MOST_REVOKED = 1_000
"""Jobs of one look."""


class RevokeCancelled(Periodic):
    """Used by the control loop's thread. What was cancelled while no relay looked is not revoked."""

    name = "revoke_cancelled"

    def __init__(self, store: Store, connection: CarrierConnection, *, carrier_id: str) -> None:
        self._store = store
        self._connection = connection
        self._carrier_id = carrier_id

    def run(self, now: float) -> None:
        """Look for the jobs that were cancelled since the last look, or a little before it."""
        values = {"carrier_id": self._carrier_id, "seconds": 2 * INTERVAL, "limit": MOST_REVOKED}
        rows = self._store.rows(sql.CANCELLED, values)
        if rows and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.revoke([(id, lease) for id, lease in rows])
        self.due_at = time.monotonic() + INTERVAL


LOOK_INTERVAL = 30.0
"""Seconds between two looks, while the window is full."""

BROKERS_TIMEOUT = 1_800.0
"""Seconds after which RabbitMQ takes a message back from a worker that has not acknowledged it, by its default."""


def time_limit(task: str, timeout: float | None) -> float:
    """The seconds that an attempt of a carried job may take. `timeout` is that of the job itself."""
    try:
        return timeout or registry.get(task).timeout or BROKERS_TIMEOUT
    except UnknownTask:
        return BROKERS_TIMEOUT


def is_window_lost(store: Store, carrier: CarrierSettings) -> bool:
    """Whether the window is full, and each of its jobs should have ended or come back."""
    rows = store.rows(sql.CARRIED_BY_TASK, {"carrier_id": carrier_id(carrier.name)})
    return sum(number for *_, number, _ in rows) >= carrier.window and all(
        youngest > carrier.wait + time_limit(task, timeout) for task, timeout, _, youngest in rows
    )


class LostWindow(Periodic):
    """Used by the control loop's thread."""

    name = "lost_window"

    def __init__(
        self, store: Store, carrier: CarrierSettings, connection: CarrierConnection, window: Window, *, who: str
    ) -> None:
        self._store, self._carrier = store, carrier
        self._connection, self._window = connection, window
        self._who = who
        self._is_lost = False

    def run(self, now: float) -> None:
        """Log it once, when it is so."""
        looks = self._window.is_full and self._connection.is_open
        was_lost, self._is_lost = self._is_lost, looks and is_window_lost(self._store, self._carrier)
        if self._is_lost and not was_lost:
            relay_logs.carrier_window_lost(self._who, self._carrier.name, self._window.jobs.with_carrier)
        self.run_again_in(LOOK_INTERVAL)


GATHER_SECONDS = 0.02
"""Seconds between two looks at what the carrier has sent, if the first brought something. Each leads to statements, and
these cost little more for many outcomes than for one."""

CONFIRM_TIME = 5.0
"""Seconds that a stopping relay waits for the confirms of what it has published."""

LAST_EVENTS = 2.0
"""Seconds for which signal receivers may delay the end of a relay."""


@dataclass(frozen=True, kw_only=True)
class RelayOptions(WorkerOptions):
    """The options of a supervisor of relays. A relay has no slots."""

    carrier: str
    """The name of the carrier that the relays give the jobs to."""
    concurrency: int = 0

    @property
    def runs(self) -> "type[Relay]":
        return Relay


class Relay(ControlLoop):
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
        standby: Standby | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        """`running_jobs` stays empty: no job runs in this process. `carrier` takes the place of the setting's."""
        super().__init__(options, id=id, name=name, lifeline=lifeline, stamps=stamps, standby=standby)
        chosen = carriers()[options.carrier]
        holder = carrier_id(chosen.name)
        self._store.guards, self._store.holder = sql.GUARDS, {"carrier": chosen.name, "carrier_id": holder}
        self._look_at = 0.0  # not before this monotonic time at what the carrier has sent
        self._unreadable = 0  # messages, since the start
        self._jobs = CarriedJobs()
        self._window = Window(self._store, self._jobs, size=chosen.window, worker_timeout=options.worker_timeout)
        carrier = carrier or make_carrier(chosen, options.database)
        self._connection = CarrierConnection(
            carrier, who=name, home=lambda: self._row.home, lost=self._jobs.connection_lost, stamp=self._stamp
        )
        self._exchange = RelayExchange(
            options,
            id=id,
            store=self._store,
            control=self._control,
            dispatcher=self._dispatcher,
            standby=self._standby,
            connection=self._connection,
            window=self._window,
        )
        self._row = CarrierRow(
            self._store,
            chosen,
            self._connection,
            self._window,
            relay_id=id,
            interval=options.seconds_between_heartbeats,
        )
        self._hand_over = HandOver(self._store, self._jobs, carrier_id=holder)
        self._take_back = TakeBack(self._store, self._jobs, self._connection, who=name)
        self._revoke = RevokeCancelled(self._store, self._connection, carrier_id=holder)
        self._lost_window = LostWindow(self._store, chosen, self._connection, self._window, who=name)
        self._orphans = OrphanCheck(options.worker_timeout, self._release_orphans)
        self._control.on_broken = self._database_broke
        self._make_loop(self._services())

    def _services(self) -> list[Service]:
        exchange = self._exchange
        return [
            ReceiverCheck(
                self._dispatcher, who=f"relay {self.name}", hint="the process is replaced", then=self._stop_blocked
            ),
            self._row,
            self._window,
            self._connection,
            self._orphans,
            *([WatchItself(self._control, self._standby, look=exchange.claiming.start_over)] * self.options.listen),
            exchange,
            self._hand_over,
            self._take_back,
            self._revoke,
            self._lost_window,
            *exchange.settle_services,
            *exchange.observing,
            exchange.write_notes,
        ]

    @property
    def jobs_done(self) -> int:
        return self._exchange.jobs_done

    # One turn of the loop

    def _turn(self) -> None:
        self._stamp()
        self._take()
        may_claim = not self._stopping and self._row.is_written and self._own_row.is_alive(time.monotonic())
        self._exchange.is_paused = not may_claim
        self._loop.run_due()

    def _take(self) -> None:
        if not self._connection.is_open or (now := time.monotonic()) < self._look_at:
            return
        with self._connection.handling_errors():
            taken = self._connection.carrier.take()
            self._look_at = now + GATHER_SECONDS if taken else 0.0
            self._note_blocked(self._connection.carrier.is_blocked)
            attempts, known = self._jobs.take(taken, partial(self._ended, now=now))
            self._exchange.add(map(self._here, attempts))
            if known:
                self._connection.carrier.acknowledge(known)
            self._log(taken)

    def _ended(self, returned: ReturnedJob, *, now: float) -> Attempt | None:
        carrier = self._connection.carrier.name
        return ended(returned, carrier=carrier, database=self.options.database, now=now)

    def _here(self, attempt: Attempt) -> Attempt:
        """The attempt with the time of its claim, by this process's monotonic clock: its waiting time needs it.

        The database is that of the relay, whatever the message says.
        """
        job = attempt.job._replace(claimed_at=self._window.claimed_at(attempt.job))
        return attempt._replace(job=job, database=self.options.database)

    def _note_blocked(self, is_blocked: bool) -> None:
        if is_blocked != self._window.is_blocked:
            self._window.is_blocked = is_blocked
            log = relay_logs.carrier_blocked if is_blocked else relay_logs.carrier_unblocked
            log(self.name, self._connection.carrier.name)

    def _log(self, taken: Taken) -> None:
        carrier = self._connection.carrier.name
        dropped = sum(returned.reason == "maxlen" for returned in taken.jobs)
        if refused := len(taken.refused) + dropped:
            relay_logs.carrier_refused(self.name, carrier, refused, self._window.pause(refused))
        elif taken.confirmed:
            self._window.go_on()
        unreadable = [returned.problem for returned in taken.jobs if returned.problem]
        if unreadable:
            self._unreadable += len(unreadable)
            relay_logs.message_unreadable(self.name, carrier, len(unreadable), self._unreadable, unreadable[0])
        for reason, count in Counter(returned.reason for returned in taken.jobs if returned.ref).items():
            relay_logs.carried_returned(self.name, carrier, count, reason)

    def _stop_blocked(self) -> None:
        self._exit_code = EXIT_BLOCKED
        self._stop()

    def _recycle(self, reason: str) -> None:
        if not self._stopping:
            liveness_logs.recycling(self.name, reason)
            self._exit_code = EXIT_RECYCLED
            self._stop()

    def _database_broke(self) -> None:
        self._exchange.connection_broke()
        self._orphans.expect(time.monotonic())

    def _release_orphans(self) -> None:
        self._exchange.apply()
        orphans = self._store.release_orphans(self.id, known=self._jobs.held_ids)
        if orphans:
            logs.orphans_released(self.name, len(orphans))

    # Waiting

    def _has_work(self) -> bool:
        return False

    def _called(self, queue_name: str) -> None:
        self._exchange.claiming.called(queue_name)

    def _offer(self) -> None:
        room = 0 if self._control.is_broken else self._exchange.room(time.monotonic())
        self._standby.offer(slots=room, room=room, claimed=self._exchange.jobs_claimed, running=self._jobs.count)

    def _sleep(self, longest: float, files: Iterable[int] = ()) -> None:
        gathers = self._look_at - time.monotonic()
        if gathers > 0:
            super()._sleep(min(longest, gathers), files)
        else:
            super()._sleep(longest, (*files, *self._connection.files))

    # Stopping

    def _shut_down(self) -> None:
        self._exchange.is_paused = True
        deadline = min(self._shutdown_deadline, time.monotonic() + CONFIRM_TIME)
        self._exchange.apply()
        while self._jobs.unconfirmed and self._connection.is_open and (left := deadline - time.monotonic()) > 0:
            self._sleep(left)
            self._turn()
        self._exchange.settle_last(deadline)
        self._jobs.release_unconfirmed()
        while not self._control.is_broken and self._hand_over.due_at <= time.monotonic() < self._shutdown_deadline:
            with self._control.handling_errors(refused=self._hand_over.refused):
                self._hand_over.run(time.monotonic())
        for service in (self._hand_over, self._take_back, self._row, *self._exchange.observing):
            with self._control.handling_errors(refused=service.refused):
                service.run(time.monotonic())
        self._emit_stop()
        self._dispatcher.flush(timeout=LAST_EVENTS)
        with self._control.handling_errors():
            self._store.release_orphans(self.id, known=[])
            self._store.delete_workers([self.id])
        self._dispatcher.stop(timeout=LAST_EVENTS)
        self._connection.close()
        self._control.close()

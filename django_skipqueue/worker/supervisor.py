"""The parent of the worker processes: keeps them alive, says so to the database, and does the queue's chores.

Invariant: no user code runs in its main thread, no log handler either, and no thread but that one exists while it forks
(unless code of the project's hangs in it). What a worker held when it ended is taken back as soon as the end is seen.
"""

import signal
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db import Error

from .. import databases, liveness_logs, logs
from ..models import Job
from ..models import Worker as WorkerRow
from ..records import RecoveredJob
from ..signals import job_recovered
from .announcer import Announcer
from .children import children
from .control import ControlConnection
from .dead_workers import DeadWorkers, Forget, Recover
from .log_queue import LogQueue, pause_listeners, resume_listeners
from .maintenance import Chore, Promote, Prune
from .options import WorkerOptions
from .own_row import described
from .protocol import ENDED_WELL, RECYCLED, STOP, STOP_NOW, signal_name
from .slots import LAST_LINES, LOCKED_INTERVAL, NEVER, Dead, Slot
from .wakeup import Wakeup
from .watchdog import Watchdog, print_stacks_on_signal
from .worker import Worker

KILL_AFTER = 10.0
"""Seconds beyond the shutdown timeout after which a worker that is still there is killed."""

REFUSED_INTERVAL = 10.0
"""Seconds until jobs of a dead worker are taken back after the database has refused that."""

LISTEN_INTERVAL = 1.0
"""Seconds between two looks whether the connection still listens."""


class Supervisor:
    """Runs in the main thread of the `runworker` command. The end of `lifeline`, a pipe, stops it as SIGTERM does."""

    def __init__(self, options: WorkerOptions, *, lifeline: int | None = None) -> None:
        databases.close_before_fork()  # what the start of the project may have opened
        self.options = options
        self._lifeline = lifeline
        self._wakeup = Wakeup()
        self._control = ControlConnection(options.database, who=f"supervisor {options.name}")
        self._announcer = Announcer()
        self._log = LogQueue()
        self._watchdog = Watchdog()
        self._slots = [
            Slot(f"{options.name}/{number}", options.concurrency) for number in range(1, options.processes + 1)
        ]
        self._beat = Beat(options.database, self)
        dead = DeadWorkers(
            options.database, timeout=options.lease, own=lambda: [slot.id for slot in self._slots if slot.pid]
        )
        self._promote = Promote(options.database)
        self._recover = Recover(
            options.database, dead=dead, timeout=options.lease, tell=self._tell, beats=self._is_heard
        )
        self._listen = Listen(options.database, self._control)
        self._chores: list[Chore] = [
            *([self._listen] if options.listen else []),
            self._promote,
            self._recover,
            Forget(options.database, dead=dead, timeout=options.lease),
            Prune(options.database),
        ]
        self._signals: list[int] = []
        self._kill_at = float("inf")
        self._bury_by = float("inf")
        self._stopping = False

    def run(self) -> None:
        """Keep workers running until told to stop."""
        self._wakeup.on_signals(self._signals.append, (signal.SIGTERM, signal.SIGINT))
        self._wakeup.on_signals(lambda _: None, (signal.SIGCHLD,))
        while self._working():
            self._heed_signals()
            self._watchdog.look(self._slots)
            self._see_deaths()
            self._fill_slots()
            self._maintain()
            self._see_hanging_receiver()
            if self._working():
                self._wait()
        self._announcer.stop(timeout=5)
        self._control.close()
        self._log.end(LAST_LINES)

    def _wait(self) -> None:
        """Sleep until something is to be done."""
        socket = self._control.fileno()
        files = [file for file in (self._lifeline, socket) if file is not None]
        ready = self._wakeup.wait(self._until_next(), unless=lambda: self._signals, files=files)
        if self._lifeline in ready:
            self._lifeline = None
            if not (self._stopping or self._signals):  # else Ctrl-C has reached us as well
                self._signals.append(signal.SIGTERM)
        if socket in ready:
            self._hear()

    @property
    def workers(self) -> list[Mapping[str, Any]]:
        """The rows of the processes that run now."""
        return [described(self.options, id=slot.id, name=slot.name, pid=slot.pid) for slot in self._slots if slot.pid]

    def _working(self) -> bool:
        if any(slot.pid or slot.start_at < NEVER for slot in self._slots):
            return True
        # Without a database the dead cannot be buried: other supervisors recover their jobs after the lease.
        return any(slot.unburied for slot in self._slots) and time.monotonic() < self._bury_by

    # Signals

    def _heed_signals(self) -> None:
        while self._signals:
            name = signal_name(self._signals.pop(0))
            if not self._stopping:
                liveness_logs.stopping(name, self.options.shutdown_timeout)
                self._stop(STOP, time.monotonic() + self.options.shutdown_timeout + KILL_AFTER)
            else:
                liveness_logs.stopping_now(name)
                self._stop(STOP_NOW, time.monotonic() + KILL_AFTER)
        if self._kill_at <= time.monotonic():
            for slot in self._slots:
                slot.signal(signal.SIGKILL)
            self._kill_at = float("inf")

    def _stop(self, command: bytes, kill_at: float) -> None:
        self._stopping = True
        self._kill_at = min(self._kill_at, kill_at)
        self._bury_by = self._kill_at if command == STOP else time.monotonic() + 1
        for slot in self._slots:
            slot.start_at = NEVER
            slot.tell(command)

    # Processes

    def _fill_slots(self) -> None:
        empty = [slot for slot in self._slots if not slot.pid and slot.start_at <= time.monotonic()]
        if not empty:
            return
        self._announcer.stop(timeout=5)  # no thread while forking
        self._log.stop(LAST_LINES)
        pause_listeners(LAST_LINES)
        self._control.close()  # and no connection that two processes share
        for slot in empty:
            try:
                slot.fork(partial(self._become_worker, slot))
            except OSError as error:  # no memory, or as many processes or files as there may be
                liveness_logs.worker_not_started(slot.name, error, slot.refill())
        resume_listeners()
        self._log.start()
        self._beat.due_at = self._listen.due_at = 0.0

    def _become_worker(self, slot: Slot, lifeline: int) -> int:
        """In the child: let go of what is the supervisor's, and work."""
        for other in self._slots:
            other.let_go()
        self._wakeup.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        logs.identify(slot.id, slot.name)
        print_stacks_on_signal()
        children.become_worker()
        return Worker(
            self.options, id=slot.id, name=slot.name, lifeline=lifeline, started=slot.started, stamps=slot.stamps
        ).run()

    def _see_deaths(self) -> None:
        for slot in self._slots:
            dead = slot.reap()
            if dead is not None:
                self._died(slot, dead)
        if any(slot.unburied for slot in self._slots) and not self._control.retry_in:
            self._bury()

    def _died(self, slot: Slot, dead: Dead) -> None:
        """Replace a process that nobody asked to end, and say so."""
        ended_well = dead.code == ENDED_WELL
        its_work_is_done = ended_well and (self.options.drain or self.options.max_jobs is not None)
        if dead.code == RECYCLED:
            if not self._stopping:
                slot.refill_now()
        elif not (self._stopping or its_work_is_done):
            liveness_logs.worker_died(slot.name, dead.cause, slot.refill(dead))
        elif not ended_well:
            liveness_logs.worker_died(slot.name, dead.cause, None)

    def _bury(self) -> None:
        """Take back what the dead held, and remove their rows; tried again until the database can be used."""
        for slot in self._slots:
            for dead in list(slot.unburied):
                if dead.look_at > (now := time.monotonic()):
                    continue
                with self._control.attempt(refused=partial(self._not_buried, dead)):
                    while self._take_back(slot.name, dead):
                        pass
                    WorkerRow.objects.using(self.options.database).deregister([dead.id])
                    if dead.surely_over_at > now:
                        dead.look_at = dead.surely_over_at
                    elif Job.objects.using(self.options.database).holds(dead.id):  # somebody has locked what is left
                        dead.look_at = now + LOCKED_INTERVAL
                    else:
                        slot.unburied.remove(dead)
                if self._control.is_broken:
                    return

    def _not_buried(self, dead: Dead, error: Error) -> None:
        """The database refuses what is asked about one of the dead: that is no reason to do nothing else."""
        dead.look_at = time.monotonic() + REFUSED_INTERVAL
        liveness_logs.service_failed("take_back", error, REFUSED_INTERVAL)

    def _take_back(self, name: str, dead: Dead) -> bool:
        """One batch: recover what ran, give back free what was not begun; whether there was any."""
        jobs = Job.objects.using(self.options.database)
        recovered = jobs.recover(worker_ids=[dead.id], job_ids=dead.started, reason=f"worker died: {dead.cause}")
        self._tell(recovered)
        released = jobs.release_strays(dead.id, known=dead.started)
        if released:
            liveness_logs.unstarted_released(name, len(released))
        return bool(recovered or released)

    def _see_hanging_receiver(self) -> None:
        """Say once that a receiver of recoveries hangs. It costs nobody but the receivers after it."""
        if self._announcer.hangs_at <= time.monotonic() and not self._announcer.is_said_to_hang:
            self._announcer.is_said_to_hang = True
            liveness_logs.receiver_hangs("supervisor", self._announcer.stack(), "later recoveries are not signalled")

    # Chores

    def _maintain(self) -> None:
        """Do what is due. Before each chore come heartbeats that are; and before the one that judges others, always."""
        for chore in self._chores:
            if chore is self._recover and chore.is_due:
                self._beat.due_at = 0.0
            self._do_if_due(self._beat)
            self._do_if_due(chore)
        if self._control.has_heard:
            self._hear()

    def _hear(self) -> None:
        """Read the notifications that have come: a job was scheduled that is due soon."""
        with self._control.attempt():
            if self._control.notified():
                self._promote.hurry()

    def _do_if_due(self, chore: Chore) -> None:
        if chore.is_due and not self._control.retry_in:
            with self._control.attempt(refused=chore.failed):
                chore.do()

    def _until_next(self) -> float:
        """Seconds until something is to be done, if no signal comes first."""
        now = time.monotonic()
        times = [self._kill_at, self._watchdog.due_at]
        times += [slot.start_at for slot in self._slots if not slot.pid]
        if self._bury_by > now:
            times.append(self._bury_by)
        if self._control.is_broken:
            times.append(self._control.retry_at)
        else:
            times += [chore.due_at for chore in (self._beat, *self._chores)]
            times += [dead.look_at for slot in self._slots for dead in slot.unburied]
        return max(0.0, min(times) - now)

    def _is_heard(self) -> bool:
        return not self._beat.is_refused

    def _tell(self, recovered: list[RecoveredJob]) -> None:
        for job in recovered:
            self._announcer.event(job_recovered, job.task, job=job)


class Beat(Chore):
    """Says that the supervisor's workers are alive."""

    def __init__(self, database: str, supervisor: Supervisor) -> None:
        super().__init__(database)
        self._supervisor = supervisor

    def run(self) -> float:
        """See `Chore.run`."""
        WorkerRow.objects.using(self.database).beat(self._supervisor.workers)
        return self._supervisor.options.beat_interval


class Listen(Chore):
    """Has the supervisor woken when a job is scheduled that is due before its next look; anew after a reconnect."""

    def __init__(self, database: str, control: ControlConnection) -> None:
        super().__init__(database)
        self._control = control

    def run(self) -> float:
        """See `Chore.run`."""
        self._control.listen_for_scheduled()
        return LISTEN_INTERVAL

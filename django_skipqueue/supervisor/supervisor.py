"""The parent of the worker processes: keeps them alive, says so to the database, and does the queue's services.

Invariant: no user code runs in its main thread, no log handler either, and no thread but that one exists while it forks
(unless code of the project's hangs in it). What a worker held when it ended is taken back as soon as the end is seen.
"""

import signal
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db import Error

from ..events import liveness_logs, logs
from ..execution.forked_children import children
from ..runtime.control_connection import ControlConnection
from ..runtime.dispatcher import EventDispatcher
from ..runtime.log_queue import LogQueue, pause_listeners, resume_listeners
from ..runtime.protocol import EXIT_OK, EXIT_RECYCLED, STOP, STOP_NOW, signal_name
from ..runtime.wakeup import Wakeup
from ..runtime.worker_options import WorkerOptions
from ..services import SERVICES, Service
from ..services.dead_workers import DeadWorkers
from ..services.heartbeat import Heartbeat
from ..services.listen import Listen
from ..services.loop import ServiceLoop
from ..services.prune_workers import PruneWorkers
from ..services.recover import Recover
from ..signals import job_recovered
from ..store import Store
from ..store import connections as databases
from ..values.records import RecoveredJob
from ..worker.own_row import described
from ..worker.worker import Worker
from .process import LAST_LINES, LOCKED_INTERVAL, NEVER, DeadProcess, WorkerProcess
from .watchdog import Watchdog, print_stacks_on_signal

KILL_AFTER = 10.0
"""Seconds beyond the shutdown timeout after which a worker that is still there is killed."""

REFUSED_INTERVAL = 10.0
"""Seconds until jobs of a dead worker are taken back after the database has refused that."""


class Supervisor:
    """Runs in the main thread of the `runworker` command. The end of `lifeline`, a pipe, stops it as SIGTERM does."""

    def __init__(self, options: WorkerOptions, *, lifeline: int | None = None) -> None:
        databases.close_before_fork()  # what the start of the project may have opened
        self.options = options
        self._lifeline = lifeline
        self._wakeup = Wakeup()
        self._store = Store(options.database)
        self._control = ControlConnection(self._store, who=f"supervisor {options.name}")
        self._dispatcher = EventDispatcher()
        self._log = LogQueue()
        self._watchdog = Watchdog()
        self._processes = [
            WorkerProcess(f"{options.name}/{number}", options.concurrency) for number in range(1, options.processes + 1)
        ]
        self._heartbeat = Heartbeat(self._store, workers=self._workers, interval=options.seconds_between_heartbeats)
        self._listen = Listen(self._store, self._control)
        self._services = ServiceLoop(self._control, self._heartbeat, self._other_services())
        self._signals: list[int] = []
        self._kill_at = float("inf")
        self._recover_deadline = float("inf")
        self._stopping = False

    def _other_services(self) -> list[Service]:
        timeout = self.options.worker_timeout
        dead = DeadWorkers(
            self._store, timeout=timeout, own=lambda: [process.id for process in self._processes if process.pid]
        )
        return [
            *([self._listen] if self.options.listen else []),
            Recover(self._store, dead=dead, timeout=timeout, report=self._report_recovered, heartbeat=self._heartbeat),
            PruneWorkers(self._store, dead=dead, timeout=timeout),
            *(service(self._store) for service in SERVICES),
        ]

    def run(self) -> None:
        """Keep workers running until told to stop."""
        self._log.start()
        self._wakeup.on_signals(self._signals.append, (signal.SIGTERM, signal.SIGINT))
        self._wakeup.on_signals(lambda _: None, (signal.SIGCHLD,))
        while self._working():
            self._handle_signals()
            self._watchdog.look(self._processes)
            self._notice_ended()
            self._start_processes()
            self._services.run_due()
            self._see_hanging_receiver()
            if self._working():
                self._wait()
        self._dispatcher.stop(timeout=5)
        self._control.close()
        self._log.end(LAST_LINES)

    def _wait(self) -> None:
        """Sleep until something is to be done."""
        self._hear()  # what came with the answers of this turn: the socket will not tell of it
        socket = self._control.fileno()
        files = [file for file in (self._lifeline, socket) if file is not None]
        ready = self._wakeup.wait(self._until_next(), unless=lambda: self._signals, files=files)
        if self._lifeline in ready:
            self._lifeline = None
            if not (self._stopping or self._signals):  # else Ctrl-C has reached this process as well, and is noted
                self._signals.append(signal.SIGTERM)
        if socket in ready:
            self._hear()

    def _workers(self) -> list[Mapping[str, Any]]:
        """The rows of the processes that run now."""
        return [
            described(self.options, id=process.id, name=process.name, pid=process.pid)
            for process in self._processes
            if process.pid
        ]

    def _working(self) -> bool:
        if any(process.pid or process.start_at < NEVER for process in self._processes):
            return True
        # Without a database nothing can be recovered: another supervisor does that after the worker timeout.
        return (
            any(process.awaiting_recovery for process in self._processes) and time.monotonic() < self._recover_deadline
        )

    # Signals

    def _handle_signals(self) -> None:
        while self._signals:
            name = signal_name(self._signals.pop(0))
            if not self._stopping:
                liveness_logs.stopping(name, self.options.shutdown_timeout)
                self._stop(STOP, time.monotonic() + self.options.shutdown_timeout + KILL_AFTER)
            else:
                liveness_logs.stopping_now(name)
                self._stop(STOP_NOW, time.monotonic() + KILL_AFTER)
        if self._kill_at <= time.monotonic():
            for process in self._processes:
                process.signal(signal.SIGKILL)
            self._kill_at = float("inf")

    def _stop(self, command: bytes, kill_at: float) -> None:
        self._stopping = True
        self._kill_at = min(self._kill_at, kill_at)
        self._recover_deadline = self._kill_at if command == STOP else time.monotonic() + 1
        for process in self._processes:
            process.start_at = NEVER
            process.send_command(command)

    # Processes

    def _start_processes(self) -> None:
        empty = [process for process in self._processes if not process.pid and process.start_at <= time.monotonic()]
        if not empty:
            return
        self._dispatcher.stop(timeout=5)  # no thread while forking
        self._log.stop(LAST_LINES)
        pause_listeners(LAST_LINES)
        self._control.close()  # and no connection that two processes share
        for process in empty:
            try:
                process.fork(partial(self._become_worker, process))
            except OSError as error:  # no memory, or as many processes or files as there may be
                liveness_logs.worker_not_started(process.name, error, process.schedule_restart())
        resume_listeners()
        self._log.start()
        self._heartbeat.due_at = self._listen.due_at = 0.0

    def _become_worker(self, process: WorkerProcess, lifeline: int) -> int:
        """In the child: let go of what is the supervisor's, and work."""
        for other in self._processes:
            other.close_inherited()
        self._wakeup.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        logs.identify(process.id, process.name)
        print_stacks_on_signal()
        children.become_worker()
        return Worker(
            self.options,
            id=process.id,
            name=process.name,
            lifeline=lifeline,
            started=process.started,
            stamps=process.stamps,
        ).run()

    def _notice_ended(self) -> None:
        for process in self._processes:
            dead = process.ended()
            if dead is not None:
                self._died(process, dead)
        if any(process.awaiting_recovery for process in self._processes) and not self._control.retry_in:
            self._recover_dead()

    def _died(self, process: WorkerProcess, dead: DeadProcess) -> None:
        """Replace a process that nobody asked to end, and say so."""
        ended_well = dead.code == EXIT_OK
        its_work_is_done = ended_well and (self.options.drain or self.options.max_jobs is not None)
        if dead.code == EXIT_RECYCLED:
            if not self._stopping:
                process.restart_now()
        elif not (self._stopping or its_work_is_done):
            liveness_logs.worker_died(process.name, dead.cause, process.schedule_restart(dead))
        elif not ended_well:
            liveness_logs.worker_died(process.name, dead.cause, None)

    def _recover_dead(self) -> None:
        """Take back what the dead held, and remove their rows; tried again until the database can be used."""
        for process in self._processes:
            for dead in list(process.awaiting_recovery):
                if dead.look_at > (now := time.monotonic()):
                    continue
                with self._control.attempt(refused=partial(self._put_off_recovery, dead)):
                    while self._take_back(process.name, dead):
                        pass
                    self._store.delete_workers([dead.id])
                    if dead.no_statement_after > now:
                        dead.look_at = dead.no_statement_after
                    elif self._store.has_jobs(dead.id):  # somebody has locked what is left
                        dead.look_at = now + LOCKED_INTERVAL
                    else:
                        process.awaiting_recovery.remove(dead)
                if self._control.is_broken:
                    return

    def _put_off_recovery(self, dead: DeadProcess, error: Error) -> None:
        """The database refuses what is asked about one of the dead: that is no reason to do nothing else."""
        dead.look_at = time.monotonic() + REFUSED_INTERVAL
        liveness_logs.service_failed("recover_own", error, REFUSED_INTERVAL)

    def _take_back(self, name: str, dead: DeadProcess) -> bool:
        """One batch: recover what ran, give back free what was not begun; whether there was any."""
        recovered = self._store.recover(worker_ids=[dead.id], job_ids=dead.started, reason=f"worker died: {dead.cause}")
        self._report_recovered(recovered)
        released = self._store.release_orphans(dead.id, known=dead.started)
        if released:
            liveness_logs.unstarted_released(name, len(released))
        return bool(recovered or released)

    def _see_hanging_receiver(self) -> None:
        """Say once that a receiver of recoveries hangs. It costs nobody but the receivers after it."""
        if self._dispatcher.hangs_at <= time.monotonic() and not self._dispatcher.is_said_to_hang:
            self._dispatcher.is_said_to_hang = True
            liveness_logs.receiver_hangs("supervisor", self._dispatcher.stack(), "later recoveries are not signalled")

    # Waiting

    def _hear(self) -> None:
        """Take up the notifications that have come: a job was scheduled that is due soon."""
        if self._control.fileno() is not None:
            with self._control.attempt():
                if self._control.notified():
                    self._services.hurry()

    def _until_next(self) -> float:
        """Seconds until something is to be done, if no signal comes first."""
        now = time.monotonic()
        times = [self._kill_at, self._watchdog.due_at]
        times += [process.start_at for process in self._processes if not process.pid]
        if self._recover_deadline > now:
            times.append(self._recover_deadline)
        if self._control.is_broken:
            times.append(self._control.retry_at)
        else:
            times.append(self._services.due_at)
            times += [dead.look_at for process in self._processes for dead in process.awaiting_recovery]
        return max(0.0, min(times) - now)

    def _report_recovered(self, recovered: list[RecoveredJob]) -> None:
        for job in recovered:
            self._dispatcher.event(job_recovered, job.task, job=job)

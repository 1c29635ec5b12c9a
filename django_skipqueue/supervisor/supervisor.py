"""`Supervisor`: the parent of the worker processes. It keeps them running, writes their heartbeats, and runs services.

No code of the project and no log handler runs in the supervisor's main thread. Before it forks a process, the
supervisor ends its other threads. When a worker ends, its jobs are recovered or released at once.
"""

import gc
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ..events import liveness_logs, log_context
from ..queue.store import Store
from ..values.records import NEVER, session_name
from ..worker.attempts.forked_children import children
from ..worker.control_connection import ControlConnection
from ..worker.dispatcher import EventDispatcher, Observers, ReceiverCheck
from ..worker.log_queue import LogQueue, pause_listeners, resume_listeners
from ..worker.loop import Loop, Service, Timer, Wakeup
from ..worker.options import WorkerOptions
from ..worker.own_connections import close_before_fork, keep_sessions_alive, name_sessions
from ..worker.protocol import (
    COMMANDS_SIZE,
    EXIT_CLEAN,
    EXIT_RECYCLED,
    EXIT_STUCK,
    RECYCLE,
    STOP,
    STOP_NOW,
    decode_commands,
    signal_name,
)
from ..worker.worker import WorkerLoop
from .calls import CallWorkers, Contention, WatchQueues
from .health import HealthPages, HealthPort
from .liveness import DeadWorkers, Heartbeat, PruneWorkers, Watchdog, print_stacks_on_signal, rows_of
from .processes import LAST_LINES, DeadProcess, RunAlone, WorkerProcess
from .recover import Recover, RecoverOwn
from .services import services, watches
from .state import DatabaseState, Pulse, SharedState, ShowState, SupervisorState, observe
from .systemd import NotifySystemd

KILL_AFTER = 10.0
"""A worker that still runs this many seconds after the shutdown timeout is killed."""

COMMAND_TIME = 1.0
"""If a signal has reached the steward as well, its command arrives within this many seconds."""


class Supervisor:
    """Runs in the main thread of its process. `lifeline` is a pipe; when it is closed, the supervisor stops.

    If the parent process is a steward, the supervisor shows its state in shared memory, takes commands from this pipe,
    and ignores signals. A signal to the whole service reaches the steward and this process. If both obeyed it, one
    signal would count as two.
    """

    def __init__(
        self,
        options: WorkerOptions,
        *,
        lifeline: int | None = None,
        health_listener: socket.socket | None = None,
        log: LogQueue | None = None,
        shared: SharedState | None = None,
    ) -> None:
        """health_listener: the socket on which to answer health probes. log: writes the log lines of this process."""
        close_before_fork()  # the project may have opened connections at import
        self.options = options
        self._lifeline = lifeline
        self._shared = shared
        self.wakeup = Wakeup()
        self._dispatcher = EventDispatcher()
        self._observers = Observers()
        self.store = Store(options.database, send=self._observers.observing(self._dispatcher.send))
        self._pulse = shared.pulse if shared else Pulse()
        self.control = ControlConnection(
            self.store, who=f"supervisor {options.name}", before_statements=self._pulse.turn
        )
        self._log = log or LogQueue()
        self._workers = [WorkerProcess(name, options.concurrency) for name in options.worker_names]
        self._alone = WorkerProcess(f"{options.name}/alone", 1, start_at=NEVER)  # for jobs that must run alone
        self.processes = [*self._workers, self._alone]
        self._run_alone = RunAlone(self._workers, self._alone)
        self._heartbeat = Heartbeat(
            self.store,
            workers=lambda: rows_of(options, self.processes),
            interval=options.seconds_between_heartbeats,
            on_written=self._note_heartbeats,
            on_requests=self._obey_requests,
        )
        self._heartbeat.due_at = NEVER  # until workers are started
        self._contention = Contention()
        self._call_workers = CallWorkers(self._workers, options.serves, self._contention)
        self._watch = WatchQueues(
            self.store, self.control, self.processes, options, queues_found=self._call_workers.queues_found
        )
        self._watchdog = Watchdog(self.processes)
        self._systemd = NotifySystemd(self._states, os.environ)
        self._health_port = health_listener and HealthPort(health_listener, HealthPages(self._states).page)
        self.loop = Loop(self.control, self.wakeup, heartbeat=self._heartbeat, services=self._services())
        self._signals: list[int] = []
        self._command_follows = False
        self._kill_at = NEVER
        self._recover_deadline = NEVER
        self._stopping = False

    def _services(self) -> list[Service]:
        """The services in order. The services for worker processes come first, because they are urgent."""
        timeout = self.options.worker_timeout
        dead = DeadWorkers(
            self.store,
            timeout=timeout,
            own=lambda: [process.id for process in self.processes if process.pid],
            seen=self._contention.see,
        )
        return [
            Timer("kill", lambda: self._kill_at, self._kill),
            self._watchdog,
            self._systemd,
            *([ShowState(self._shared, self._states)] if self._shared else []),
            RecoverOwn(self.store, self.processes),
            self._run_alone,
            Timer("start", self._next_start, self._start_processes),
            self._watch,
            self._call_workers,
            Recover(self.store, dead=dead, timeout=timeout, heartbeat=self._heartbeat),
            PruneWorkers(self.store, dead=dead, timeout=timeout),
            *(service(self.store) for service in services()),
            *self._observers.services(self.store),
            *(watch(self.store, lambda: self._dispatcher.backlog == 0) for watch in watches()),
            ReceiverCheck(self._dispatcher, who="supervisor", hint="later recoveries are not signalled"),
        ]

    def _states(self) -> list[SupervisorState]:
        database = DatabaseState.UNKNOWN if self._heartbeat.due_at == NEVER else DatabaseState.REACHED
        if self.control.is_broken:
            database = DatabaseState.LOST
        alias, pulse, watchdog = self.options.database, self._pulse, self._watchdog
        return [observe(alias, self._workers, pulse=pulse, watchdog=watchdog, database=database)]

    def run(self) -> None:
        log_context.serve(self.options.database)
        self._start_threads()
        handler = self._expect_command if self._shared else self._signals.append
        self.wakeup.on_signals(handler, (signal.SIGTERM, signal.SIGINT))
        self.wakeup.on_signals(lambda _: None, (signal.SIGCHLD,))
        while self._working():
            self._pulse.turn()
            self._handle_signals()
            self._notice_ended()
            self.loop.run_due()
            if self._working():
                self.wait()
        self._dispatcher.stop(timeout=5)
        self.control.close()
        if self._health_port:
            self._health_port.stop()
            self._health_port.close()
        self._log.end(LAST_LINES)

    def _note_heartbeats(self, began: float) -> None:
        self.control.check_timeouts()
        for process in self.processes:
            if process.pid:
                process.shared.heartbeat_at = began

    def _obey_requests(self, requests: Mapping[str, str]) -> None:
        """Obey the requests of operators to the running processes. Each heartbeat returns all open requests."""
        for process in self.processes:
            if process.pid and not self._stopping:
                match requests.get(process.id):
                    case "restart":
                        process.send(RECYCLE)
                    case "stop":
                        liveness_logs.stop_requested(process.name, self.options.shutdown_timeout)
                        self._stop(STOP)

    def _working(self) -> bool:
        if any(process.pid or process.start_at < NEVER for process in self.processes):
            return True
        # If the database cannot be reached, give up: another supervisor recovers the jobs after the worker timeout.
        return (
            any(process.awaiting_recovery for process in self.processes) and time.monotonic() < self._recover_deadline
        )

    # Signals

    def _handle_signals(self) -> None:
        while self._signals:
            name = signal_name(self._signals.pop(0))
            if not self._stopping:
                liveness_logs.stopping(name, self.options.shutdown_timeout)
                self._stop(STOP)
            else:
                liveness_logs.stopping_now(name)
                self._stop(STOP_NOW)

    def _expect_command(self, _: int) -> None:
        """Handle a signal if the parent is a steward, which may have received the signal too."""
        self._command_follows = True

    def _handle_signals_first(self) -> None:
        """Handle signals before judging why a worker has ended, because a signal may have reached all processes."""
        self._handle_signals()
        if self._command_follows and self._lifeline is not None and not self._stopping:
            self._command_follows = False  # if no command comes, the signal was only for this process
            poller = select.poll()
            poller.register(self._lifeline, select.POLLIN)
            if poller.poll(COMMAND_TIME * 1000):
                self._read_lifeline()

    def _kill(self) -> None:
        for process in self.processes:
            process.signal(signal.SIGKILL)
        self._kill_at = NEVER

    def _stop(self, command: bytes) -> None:
        self._stopping = True
        self._systemd.stopping()
        grace = self.options.shutdown_timeout if command == STOP else 0.0
        self._kill_at = min(self._kill_at, time.monotonic() + grace + KILL_AFTER)
        self._recover_deadline = self._kill_at if command == STOP else time.monotonic() + 1
        self._run_alone.due_at = NEVER
        for process in self.processes:
            process.start_at = NEVER
            process.send(command)

    # Processes

    def _next_start(self) -> float:
        return min((process.start_at for process in self.processes if not process.pid), default=NEVER)

    def _start_processes(self) -> None:
        """End all other threads, and fork the processes that must start now."""
        due = [process for process in self.processes if not process.pid and process.start_at <= time.monotonic()]
        if self._health_port:
            self._health_port.stop()
        self._dispatcher.stop(timeout=5)
        self._log.stop(LAST_LINES)
        pause_listeners(LAST_LINES)
        self.control.close()  # two processes must not share a connection
        for process in due:
            try:
                process.fork(partial(self._become_worker, process))
            except OSError as error:  # there is no memory, or there are too many processes or open files
                liveness_logs.worker_not_started(process.name, error, process.schedule_restart())
        resume_listeners()
        self._start_threads()
        self._heartbeat.due_at = self._watch.due_at = 0.0

    def _start_threads(self) -> None:
        """Start the threads that run all the time. The dispatcher's thread starts with the first event."""
        self._log.start()
        if self._health_port:
            self._health_port.start()

    def _become_worker(self, process: WorkerProcess, lifeline: int, _: LogQueue) -> int:
        """Close the supervisor's resources in the child process, and run its control loop. Returns the exit code."""
        for sibling in self.processes:
            sibling.close_inherited()
        self.wakeup.close()
        self._systemd.forget()
        if self._health_port:
            self._health_port.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log_context.identify(process.id, process.name)
        print_stacks_on_signal()
        children.become_worker()
        name_sessions(session_name(process.id) or "")
        options = replace(self.options, concurrency=1, max_jobs=1) if process.suspect else self.options
        make_loop = options.runs or partial(WorkerLoop, suspect=process.suspect)
        loop = make_loop(
            options,
            id=process.id,
            name=process.name,
            lifeline=lifeline,
            running_jobs=process.running_jobs,
            stamps=process.stamps,
            shared=process.shared,
        )
        loop.when_options_are_taken(partial(keep_sessions_alive, options.database))
        gc.freeze()  # garbage collections then skip all imported objects: this saves an eighth of an empty job's time
        exit_code: int = loop.run()
        return exit_code

    def _notice_ended(self) -> None:
        for process in self.processes:
            dead = process.ended()
            if dead is not None:
                self._handle_signals_first()
                self._handle_death(process, dead)

    def _handle_death(self, process: WorkerProcess, dead: DeadProcess) -> None:
        ended_well = dead.code == EXIT_CLEAN
        work_is_done = ended_well and (self.options.drain or self.options.max_jobs is not None)
        restarts = not (self._stopping or work_is_done or process is self._alone)
        restart_in = process.schedule_restart(dead) if restarts else None
        is_logged = dead.code in (EXIT_RECYCLED, EXIT_STUCK)  # already logged as `worker recycled` or `job stuck`
        if not is_logged and (restarts or not ended_well):
            liveness_logs.worker_died(process.name, dead.cause, restart_in)

    # Waiting

    def wait(self) -> None:
        until = self._recover_deadline if self._recover_deadline > time.monotonic() else NEVER
        if self.loop.sleep(until=until, lifeline=self._lifeline, unless=lambda: self._signals):
            self._read_lifeline()

    def _read_lifeline(self) -> None:
        """Obey commands of the steward. If the pipe is closed, stop, because the parent process is gone."""
        assert self._lifeline is not None  # noqa: S101 (for the type checker: only an open lifeline is read)
        data = os.read(self._lifeline, COMMANDS_SIZE)
        for command, _ in decode_commands(data):
            self._stop(command)
        if not data:
            self._lifeline = None
            if self._shared and not self._stopping:
                liveness_logs.steward_gone(self.options.name, self.options.shutdown_timeout)
                self._stop(STOP)
            elif not (self._stopping or self._signals):  # otherwise Ctrl-C has reached this process too
                self._signals.append(signal.SIGTERM)

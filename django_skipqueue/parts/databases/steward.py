"""The steward: the parent process of one supervisor per database. It keeps them running, and stops them together.

The steward opens no database connection and runs no user code, so that no database can delay another. While it forks,
it has only one thread.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...events import liveness_logs
from ...supervisor.health import HealthPages, HealthPort
from ...supervisor.processes import LAST_LINES, ForkedProcess, Run
from ...supervisor.state import DatabaseState, SharedState, SupervisorState
from ...supervisor.supervisor import Supervisor
from ...supervisor.systemd import NotifySystemd
from ...values.records import NEVER
from ...worker.log_queue import LogQueue, pause_listeners, resume_listeners
from ...worker.loop import Wakeup
from ...worker.options import WorkerOptions
from ...worker.own_connections import close_before_fork
from ...worker.protocol import EXIT_CLEAN, STOP, STOP_NOW, describe_exit, signal_name

KILLED_EXIT_CODE = 128
"""If a signal has killed a process, its exit code is this number plus the signal's number, as in shells."""


@dataclass(eq=False)
class SupervisorProcess(ForkedProcess):
    """The supervisor of one database. If its process dies, a new process with the same name and options replaces it.

    Only the steward's main thread changes this object. The thread of the health port reads its state.
    """

    options: WorkerOptions
    last_code: int = EXIT_CLEAN
    """The exit code of the last process. A negative code is the number of the signal that killed it."""
    shared: SharedState = field(init=False)
    """The shared memory in which the process publishes its state."""

    def __post_init__(self) -> None:
        self.shared = SharedState(self.options)

    def fork(self, run: Run) -> None:
        """Fork a child process that shares memory with the steward."""
        self.shared = SharedState(self.options)
        super().fork(run)

    @property
    def is_to_run(self) -> bool:
        """Whether the process runs, or will be started again."""
        return bool(self.pid) or self.start_at < NEVER

    @property
    def state(self) -> SupervisorState:
        """The last published state of the process. If the process has ended, none of its workers counts as running."""
        published = self.shared.read()
        if self.pid:
            return published
        workers = tuple(worker._replace(pid=0, has_started=False, is_frozen=False) for worker in published.workers)
        return published._replace(database=DatabaseState.UNKNOWN, workers=workers)

    @property
    def exit_code(self) -> int:
        """The exit code that `runworker` would have if it served only this database."""
        if self.last_code == EXIT_CLEAN:
            return 0
        return self.last_code if self.last_code > 0 else KILLED_EXIT_CODE - self.last_code


LONGEST_STEWARD_SLEEP = 60.0
"""The longest sleep in seconds, even if nothing is due."""


class Steward:
    """Runs in the main thread of `runworker`. When the pipe `lifeline` is closed, it stops as it does at SIGTERM."""

    def __init__(
        self,
        options: Sequence[WorkerOptions],
        *,
        lifeline: int | None = None,
        health_listener: socket.socket | None = None,
    ) -> None:
        """options: the options of each supervisor. health_listener: the listening socket of the health port."""
        close_before_fork()  # the project may have opened connections at import
        self._lifeline = lifeline
        self._wakeup = Wakeup()
        self._log = LogQueue()
        self._processes = [
            SupervisorProcess(supervisor_options.name, supervisor_options) for supervisor_options in options
        ]
        self._systemd = NotifySystemd(self._states, os.environ)
        health = HealthPages(self._states, names_databases=True)
        self._health_port = health_listener and HealthPort(health_listener, health.page)
        self._signals: list[int] = []
        self._stopping = False

    def run(self) -> int:
        """Keep the supervisors running until all have ended, by themselves or by a signal. Return the exit code."""
        self._start_threads()
        self._wakeup.on_signals(self._signals.append, (signal.SIGTERM, signal.SIGINT))
        self._wakeup.on_signals(lambda _: None, (signal.SIGCHLD,))
        while self._has_supervisors():
            self._handle_signals()
            self._notice_ended()
            self._start_due()
            if self._systemd.due_at <= (now := time.monotonic()):
                self._systemd.run(now)
            if self._has_supervisors():
                self._wait()
        if self._health_port:
            self._health_port.stop()
            self._health_port.close()
        self._log.end(LAST_LINES)
        return max(process.exit_code for process in self._processes)

    def _has_supervisors(self) -> bool:
        return any(process.is_to_run for process in self._processes)

    def _states(self) -> list[SupervisorState]:
        return [process.state for process in self._processes if process.is_to_run]

    # Signals

    def _handle_signals(self) -> None:
        while self._signals:
            name = signal_name(self._signals.pop(0))
            if not self._stopping:
                liveness_logs.stopping(name, self._processes[0].options.shutdown_timeout)
                self._stop(STOP)
            else:
                liveness_logs.stopping_now(name)
                self._stop(STOP_NOW)

    def _stop(self, command: bytes) -> None:
        self._stopping = True
        self._systemd.stopping()
        for process in self._processes:
            process.start_at = NEVER
            process.send(command)

    # Processes

    def _start_due(self) -> None:
        due = [process for process in self._processes if not process.pid and process.start_at <= time.monotonic()]
        if not due:
            return
        self._stop_threads()
        for process in due:
            try:
                process.fork(partial(self._become_supervisor, process))
            except OSError as error:  # no memory, or too many processes or open files
                liveness_logs.supervisor_not_started(process.name, error, process.restart_later())
        resume_listeners()
        self._start_threads()

    def _start_threads(self) -> None:
        self._log.start()
        if self._health_port:
            self._health_port.start()

    def _stop_threads(self) -> None:
        if self._health_port:
            self._health_port.stop()
        self._log.stop(LAST_LINES)
        pause_listeners(LAST_LINES)

    def _become_supervisor(self, process: SupervisorProcess, lifeline: int, log: LogQueue) -> int:
        for other_process in self._processes:
            other_process.close_inherited()
        self._wakeup.close()
        if self._health_port:
            self._health_port.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
        Supervisor(process.options, lifeline=lifeline, log=log, shared=process.shared).run()
        return EXIT_CLEAN

    def _notice_ended(self) -> None:
        """Restart supervisors that died. A supervisor that ended cleanly has no work left, or was stopped."""
        for process in self._processes:
            code = process.take_exit_code()
            if code is None:
                continue
            process.last_code = code
            if code != EXIT_CLEAN:
                restart_in = None if self._stopping else process.restart_later()
                liveness_logs.supervisor_died(process.name, describe_exit(code), restart_in)
            process.pid = 0  # last, because the health port's thread ignores a process that neither runs nor will start

    # Waiting

    def _wait(self) -> None:
        """Sleep until a supervisor must start, systemd needs a message, a signal arrives, or the lifeline is closed."""
        due_at = min(self._systemd.due_at, *(process.start_at for process in self._processes))
        files = [] if self._lifeline is None else [self._lifeline]
        seconds = min(due_at - time.monotonic(), LONGEST_STEWARD_SLEEP)
        if self._wakeup.wait(seconds, unless=lambda: self._signals, files=files):
            self._lifeline = None  # nobody writes into the pipe, so it was closed
            if not (self._stopping or self._signals):  # otherwise Ctrl-C has reached this process too
                self._signals.append(signal.SIGTERM)


def run_supervisors(workers: Sequence[WorkerOptions], **options: Any) -> int:
    return Steward(workers, **options).run()

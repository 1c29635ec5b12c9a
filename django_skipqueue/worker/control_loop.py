"""The control loop of a process that a supervisor has forked: runs services, sleeps until one is due, takes commands.

Invariant: no code of the project runs in its thread. So nothing of the project can keep the process from settling,
releasing jobs or stopping.
"""

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from ..events import liveness_logs
from ..events.events import WorkerStarted, WorkerStopped
from ..queue.store import Store
from ..values.records import NEVER, RESTART_REASON, session_name
from .control_connection import ControlConnection
from .dispatcher import EventDispatcher
from .loop import Loop, Service, Wakeup
from .options import WorkerOptions
from .own_row import OwnRow
from .protocol import CALL, COMMANDS_SIZE, EXIT_CLEAN, RECYCLE, STOP_NOW, Stamps, Standby, decode_commands

STAMP_INTERVAL = 5.0
"""Seconds for which the loop sleeps at most: each turn shows the supervisor that the loop is not frozen."""


class ControlLoop(ABC):
    """Runs in the main thread of a process of its own, with `lifeline`, a pipe from its supervisor."""

    kind = "worker"
    """What log lines call it."""

    def __init__(
        self,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        lifeline: int,
        stamps: Stamps | None = None,
        standby: Standby | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.options = options
        self._lifeline: int | None = lifeline
        self._wakeup = Wakeup()
        self._stamps = stamps or Stamps()
        self._standby = standby or Standby()
        self._dispatcher = EventDispatcher()
        self._store = Store(options.database, send=self._dispatcher.send)
        self._control = ControlConnection(
            self._store,
            who=f"{self.kind} {name}",
            session_name=session_name(id),
            before_statements=self._stamp,
        )
        self._own_row = OwnRow(self._store, options, id=id, name=name, standby=self._standby, requested=self._requested)
        self._stopping, self._shutdown_deadline = False, NEVER
        self._exit_code = EXIT_CLEAN

    def when_options_are_taken(self, call: Callable[[], object]) -> None:
        """Call this once the server has taken the options of the control connection; a pooler may refuse them."""
        self._control.on_options_taken = call

    def _make_loop(self, services: Sequence[Service]) -> None:
        """Make the loop with these services, in this order. A heartbeat that is due comes before each."""
        self._loop = Loop(self._control, self._wakeup, heartbeat=self._own_row, services=services)

    # A subclass says

    @property
    @abstractmethod
    def jobs_done(self) -> int:
        """Number of attempts whose outcomes the database has accepted or rejected."""

    @abstractmethod
    def _turn(self) -> None:
        """Run the services that are due, after a stamp."""

    @abstractmethod
    def _offer(self) -> None:
        """Show the supervisor what this process has room for, before it sleeps."""

    @abstractmethod
    def _called(self, queue_name: str) -> None:
        """Look for jobs in this queue; in all, if the name is empty."""

    @abstractmethod
    def _has_work(self) -> bool:
        """Whether there is something to do at once, so that the loop must not sleep."""

    @abstractmethod
    def _recycle(self, reason: str) -> None:
        """Finish the running jobs, and end to be replaced."""

    @abstractmethod
    def _shut_down(self) -> None:
        """Settle or release all that this process holds, and end."""

    # The loop

    def run(self) -> int:
        """Work until a signal or a limit stops the process. Returns its exit code."""
        self._wakeup.on_signals(lambda _: self._stop(), (signal.SIGTERM, signal.SIGINT))
        self._emit_start()
        try:
            while not self._stopping:
                self._turn()
                if not self._stopping:
                    self._sleep(self.options.poll_interval)
            self._shut_down()
        except Exception as error:
            liveness_logs.part_died(self.name, error)
            return 1
        return self._exit_code

    def _emit_start(self) -> None:
        queue_names = list(self.options.queue_names)
        self._dispatcher.send(WorkerStarted(self.name, self.id, queue_names, self.options.concurrency))

    def _emit_stop(self) -> None:
        self._dispatcher.send(WorkerStopped(self.name, self.id, self.jobs_done))

    def _stamp(self, within: float = STAMP_INTERVAL) -> None:
        """Show the supervisor that this loop is running, and that the next stamp follows within this many seconds."""
        self._stamps.put(jobs_done=self.jobs_done, within=within)

    def _requested(self, request: str) -> None:
        """Do what an operator has requested of this process. Its supervisor does the rest once it is back."""
        if request == "restart":
            self._recycle(RESTART_REASON)
        elif not self._stopping:
            self._stop()

    def _sleep(self, longest: float, files: Iterable[int] = ()) -> None:
        """Sleep until there is work, a notification or a command arrives, a service is due, or a file can be read."""
        self._offer()
        if self._loop.sleep(
            until=time.monotonic() + min(longest, STAMP_INTERVAL),
            lifeline=self._lifeline,
            unless=self._has_work,
            files=files,
        ):
            self._read_commands()

    def _read_commands(self) -> None:
        """Read commands of the supervisor. If the supervisor is gone, stop before this process can count as dead."""
        assert self._lifeline is not None  # noqa: S101 (for the type checker: only an open lifeline is read)
        data = os.read(self._lifeline, COMMANDS_SIZE)
        if not data:
            timeout = min(self.options.shutdown_timeout, self.options.worker_timeout / 2)
            if not self._stopping:
                liveness_logs.supervisor_gone(self.name, timeout)
            self._lifeline = None
            self._stop(timeout)
        for kind, queue_name in decode_commands(data):
            if kind == CALL:
                self._standby.read_call()
                self._called(queue_name)
            elif kind == RECYCLE:
                self._recycle(RESTART_REASON)
            else:
                self._stop(0 if kind == STOP_NOW else None)

    def _stop(self, timeout: float | None = None) -> None:
        """Set flags only, since signal handlers call this. A later call may shorten the time left, not extend it."""
        self._stopping = True
        wait = self.options.shutdown_timeout if timeout is None else timeout
        self._shutdown_deadline = min(self._shutdown_deadline, time.monotonic() + wait)

"""The control loop of a process that a supervisor has forked: runs services, sleeps until one is due, takes commands.

Invariant: no code of the project runs in the thread of the control loop. So nothing of the project can keep the process
from settling jobs, releasing jobs or stopping.

While its supervisor hangs, the process writes its own heartbeat, and listens for notifications itself. A supervisor
writes the heartbeats of all its workers, and shows each worker when it wrote them. A worker whose supervisor has
written no heartbeat for a third of the worker timeout writes one. So the worker's jobs are not recovered if only its
supervisor hangs, is stopped or has lost the database.

Invariant: a worker claims only if its last heartbeat, its own or its supervisor's, is at most half a worker timeout
old. So a worker that counts as dead has claimed nothing for a long time.
"""

import os
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..conf import settings
from ..events import liveness_logs
from ..events.events import WorkerStarted, WorkerStopped
from ..queue.store import Store
from ..values.records import NEVER, RESTART_REASON, session_name
from .control_connection import ControlConnection
from .dispatcher import EventDispatcher
from .loop import Loop, Service, Wakeup
from .options import WorkerOptions
from .protocol import CALL, COMMANDS_SIZE, EXIT_CLEAN, RECYCLE, STOP_NOW, SharedCounts, Stamps, decode_commands

STAMP_INTERVAL = 5.0
"""Seconds for which the loop sleeps at most: each turn shows the supervisor that the loop is not frozen."""


class ControlLoop(ABC):
    """Runs in the main thread of a process of its own, with `lifeline`, a pipe from its supervisor."""

    kind = "worker"
    """What log lines call the process."""

    def __init__(
        self,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        lifeline: int,
        stamps: Stamps | None = None,
        shared: SharedCounts | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.options = options
        self._lifeline: int | None = lifeline
        self.wakeup = Wakeup()
        self.stamps = stamps or Stamps()
        self.shared = shared or SharedCounts()
        self.dispatcher = EventDispatcher()
        self._store = Store(options.database, send=self.dispatcher.send)
        self.control = ControlConnection(
            self._store, who=f"{self.kind} {name}", session_name=session_name(id), before_statements=self._stamp
        )
        self.own_row = OwnRow(self._store, options, id=id, name=name, shared=self.shared, requested=self._requested)
        self.stopping, self._shutdown_deadline = False, NEVER
        self._exit_code = EXIT_CLEAN

    def when_options_are_taken(self, call: Callable[[], object]) -> None:
        """Call `call` once the server has taken the options of the control connection: a pooler may refuse them."""
        self.control.on_options_taken = call

    def _make_loop(self, services: Sequence[Service]) -> None:
        self._loop = Loop(self.control, self.wakeup, heartbeat=self.own_row, services=services)

    # A subclass defines

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
        """Look for jobs in this queue, or in all queues if the name is empty."""

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
        self.wakeup.on_signals(lambda _: self.stop(), (signal.SIGTERM, signal.SIGINT))
        queue_names = list(self.options.queue_names)
        self.dispatcher.send(WorkerStarted(self.name, self.id, queue_names, self.options.concurrency))
        try:
            while not self.stopping:
                self._turn()
                if not self.stopping:
                    self._sleep(self.options.poll_interval)
            self._shut_down()
        except Exception as error:
            liveness_logs.part_died(self.name, error)
            return 1
        return self._exit_code

    def _emit_stop(self) -> None:
        self.dispatcher.send(WorkerStopped(self.name, self.id, self.jobs_done))

    def _stamp(self, within: float = STAMP_INTERVAL) -> None:
        """Show the supervisor that this loop is running, and that the next stamp follows within this many seconds."""
        self.stamps.put(jobs_done=self.jobs_done, within=within)

    def _requested(self, request: str) -> None:
        """Do what an operator has requested of this process, while its supervisor is silent."""
        if request == "restart":
            self._recycle(RESTART_REASON)
        elif not self.stopping:
            self.stop()

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
            if not self.stopping:
                liveness_logs.supervisor_gone(self.name, timeout)
            self._lifeline = None
            self.stop(timeout)
        for kind, queue_name in decode_commands(data):
            if kind == CALL:
                self.shared.read_call()
                self._called(queue_name)
            elif kind == RECYCLE:
                self._recycle(RESTART_REASON)
            else:
                self.stop(0 if kind == STOP_NOW else None)

    def stop(self, timeout: float | None = None) -> None:
        """Set flags only: signal handlers call this. A later call may shorten the remaining time, not extend it."""
        self.stopping = True
        wait = self.options.shutdown_timeout if timeout is None else timeout
        self._shutdown_deadline = min(self._shutdown_deadline, time.monotonic() + wait)


HEARTBEAT_RETRY_SECONDS = 1.0
"""Seconds until the next heartbeat after one that failed."""


def worker_row(options: WorkerOptions, *, id: str, name: str, pid: int, **figures: int | None) -> Mapping[str, Any]:
    """The row of a worker process, without its times.

    figures: memory_mb and jobs_done, if they are known; and the concurrency, if it differs from the options.
    """
    return {
        "id": id,
        "name": name,
        "hostname": socket.gethostname(),
        "pid": pid,
        "queues": list(options.queue_names),
        "concurrency": options.concurrency,
        "deployment": settings.deployment or "",
        **figures,
    }


class OwnRow(Service):
    """Writes the heartbeat of a process while its supervisor does not."""

    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        shared: SharedCounts | None = None,
        requested: Callable[[str], object] = lambda _: None,
    ) -> None:
        """requested: called with what an operator has requested, while the supervisor is silent."""
        self._requested = requested
        self._row = worker_row(options, id=id, name=name, pid=os.getpid())
        self._store = store
        self.shared = shared or SharedCounts()
        self._next = 0.0  # when to write the next heartbeat, unless the supervisor writes one
        self._timeout = options.worker_timeout
        self._interval = options.worker_timeout / 4
        self._silence = options.worker_timeout / 3  # longer than the pause between two heartbeats of the supervisor
        self._alive_at = float("-inf")  # time of the last heartbeat that this worker wrote
        self._written: datetime | None = None  # the last heartbeat that this worker wrote, by the database's clock
        self.supervisor_seen_at = time.monotonic()  # when the row last had a heartbeat from the supervisor
        self._is_alone = False
        self._was_made = False
        self._was_refused = False

    @property
    def due_at(self) -> float:
        """When to write a heartbeat: the first, which inserts the row, or one after a silence of the supervisor."""
        if self._is_alone or not self._was_made:
            return self._next
        return max(self._next, self.shared.heartbeat_at + self._silence)

    def is_alive(self, now: float) -> bool:
        """Whether this worker or its supervisor wrote a heartbeat within half a worker timeout."""
        return self._was_made and now - max(self._alive_at, self.shared.heartbeat_at) <= self._timeout / 2

    def run(self, now: float) -> None:
        """Write a heartbeat, and check whether the supervisor has written one since this worker's last heartbeat.

        If the connection breaks, the heartbeat stays due: the loop runs it again as soon as the connection is open.
        """
        found = self._store.heartbeat_worker(self._row["id"])
        if found is None:
            self._store.heartbeat_workers([self._row])
            if self._was_made:
                liveness_logs.row_gone(self._row["name"])
        self._was_made = True
        self._was_refused = False
        self._alive_at = now
        self._next = now + self._interval
        before, written, requested = found or (None, None, "")
        self._note_supervisor(before, written)
        if requested and self._is_alone:
            self._requested(requested)

    def refused(self, error: BaseException) -> None:
        self._next = time.monotonic() + min(self._interval, HEARTBEAT_RETRY_SECONDS)
        if not self._was_refused:
            liveness_logs.heartbeat_refused(self._row["name"], error)
        self._was_refused = True

    def _note_supervisor(self, before: datetime | None, written: datetime | None) -> None:
        """Note whether the supervisor wrote a heartbeat: then `before` is not the last heartbeat of this worker."""
        now = time.monotonic()
        self.supervisor_seen_at = max(self.supervisor_seen_at, self.shared.heartbeat_at)
        if before is None or before != self._written:
            self.supervisor_seen_at = now
            if self._is_alone:
                liveness_logs.supervisor_back(self._row["name"])
            self._is_alone = False
        elif not self._is_alone and now - self.supervisor_seen_at >= self._timeout / 2:
            self._is_alone = True
            liveness_logs.supervisor_silent(self._row["name"], now - self.supervisor_seen_at)
        self._written = written


LISTEN_CHECK_SECONDS = 1.0
"""Seconds between two checks whether notifications arrive, and whether the supervisor watches again."""


class WatchItself(Service):
    """Listens for notifications while the supervisor does not watch the queues."""

    name = "watch_itself"

    def __init__(self, control: ControlConnection, shared: SharedCounts, *, on_listen: Callable[[], object]) -> None:
        """on_listen: called when this connection begins to listen, since notifications of jobs may have been missed."""
        self.control = control
        self.shared = shared
        self._on_listen = on_listen
        self._check_at = 0.0

    @property
    def due_at(self) -> float:
        """When the promise of the supervisor ends, or, while this connection listens, when to check again."""
        return self._check_at if self.control.listens else self.shared.watched_until

    def run(self, now: float) -> None:
        self._check_at = now + LISTEN_CHECK_SECONDS
        if self.shared.watched_until > now:
            self.control.unlisten()
        elif self.control.listen():
            self._on_listen()

"""The control loop of a worker process runs services, sleeps until one is due, and obeys the supervisor's commands.

No code of the project runs in the thread of the control loop. So the project's code can never keep the process from
settling jobs, releasing jobs or stopping.

A supervisor writes the heartbeats of all its workers, and shows each worker when it wrote them. If it has written none
for a third of the worker timeout, the worker writes its own heartbeat, and listens for notifications itself. So the
worker's jobs are not recovered if only the supervisor hangs, or has lost the database.

A worker claims jobs only if its last heartbeat is at most half a worker timeout old. So a worker that counts as dead
has not claimed a job for a long time.
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
from ..values.version import VERSION
from .control_connection import ControlConnection
from .dispatcher import EventDispatcher
from .loop import Loop, Service, Wakeup
from .options import WorkerOptions
from .protocol import CALL, COMMANDS_SIZE, EXIT_CLEAN, RECYCLE, STOP_NOW, SharedCounts, Stamps, decode_commands

STAMP_INTERVAL = 5.0
"""The most seconds for which the loop sleeps. Each turn of the loop shows the supervisor that it is not frozen."""


class ControlLoop(ABC):
    """The main loop of a process that a supervisor has forked. `lifeline` is a pipe from the supervisor."""

    kind = "worker"
    """What log lines call this kind of process."""

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
        """Call `call` when the server has accepted the options of the control connection, which a pooler may refuse."""
        self.control.on_options_taken = call

    def _make_loop(self, services: Sequence[Service]) -> None:
        self._loop = Loop(self.control, self.wakeup, heartbeat=self.own_row, services=services)

    # A subclass defines these methods

    @property
    @abstractmethod
    def jobs_done(self) -> int:
        """The number of attempts whose outcomes the database has accepted or rejected."""

    @abstractmethod
    def _turn(self) -> None:
        """Show the supervisor that this loop is running, and run the services that are due."""

    @abstractmethod
    def _offer(self) -> None:
        """Show the supervisor how many jobs this process has room for. Called before each sleep."""

    @abstractmethod
    def _called(self, queue_name: str) -> None:
        """Claim jobs from this queue, or from all queues if the name is empty, because the supervisor has called."""

    @abstractmethod
    def _has_work(self) -> bool:
        """Whether there is something to do at once, so that the loop must not sleep."""

    @abstractmethod
    def _recycle(self, reason: str) -> None:
        """Finish the running jobs, and then end, so that the supervisor starts a new process."""

    @abstractmethod
    def _shut_down(self) -> None:
        """Settle or release all jobs of this process, and end."""

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
        """Show the supervisor that this loop is running, and will call `_stamp` again within this many seconds."""
        self.stamps.put(jobs_done=self.jobs_done, within=within)

    def _requested(self, request: str) -> None:
        """Obey an operator's request to this process, because its supervisor does not respond."""
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
        """Obey commands of the supervisor. If the supervisor is gone, stop before this process counts as dead."""
        assert self._lifeline is not None  # noqa: S101 (for the type checker: only an open lifeline is read)
        data = os.read(self._lifeline, COMMANDS_SIZE)
        if not data:
            timeout = min(self.options.shutdown_timeout, self.options.worker_timeout / 2)
            if not self.stopping:
                liveness_logs.supervisor_gone(self.name, timeout)
            self._lifeline = None
            self.stop(timeout)
        for command, queue_name in decode_commands(data):
            if command == CALL:
                self.shared.read_call()
                self._called(queue_name)
            elif command == RECYCLE:
                self._recycle(RESTART_REASON)
            else:
                self.stop(0 if command == STOP_NOW else None)

    def stop(self, timeout: float | None = None) -> None:
        """Begin to stop. Only sets flags, because signal handlers call this. A later call never delays the deadline."""
        self.stopping = True
        wait = self.options.shutdown_timeout if timeout is None else timeout
        self._shutdown_deadline = min(self._shutdown_deadline, time.monotonic() + wait)


HEARTBEAT_RETRY_SECONDS = 1.0
"""The seconds until a failed heartbeat is repeated."""


def worker_row(options: WorkerOptions, *, id: str, name: str, pid: int, **columns: int | None) -> Mapping[str, Any]:
    """The columns of a worker's row, without its times.

    columns: memory_mb and jobs_done, if they are known; and concurrency, if it differs from the options.
    """
    return {
        "id": id,
        "name": name,
        "hostname": socket.gethostname(),
        "pid": pid,
        "queues": list(options.queue_names),
        "concurrency": options.concurrency,
        "deployment": settings.deployment or "",
        "version": VERSION,
        **columns,
    }


class OwnRow(Service):
    """A service that writes the heartbeat of its process while the supervisor does not write one."""

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
        """requested: called with an operator's request, if the supervisor does not respond."""
        self._requested = requested
        self._row = worker_row(options, id=id, name=name, pid=os.getpid())
        self._store = store
        self.shared = shared or SharedCounts()
        self._next = 0.0  # when to write the next heartbeat, unless the supervisor writes one
        self._timeout = options.worker_timeout
        self._interval = options.worker_timeout / 4
        self._silence = options.worker_timeout / 3  # longer than the time between two heartbeats of the supervisor
        self._alive_at = float("-inf")  # when this worker last wrote a heartbeat, by the monotonic clock
        self._written: datetime | None = None  # the last heartbeat that this worker wrote, by the database's clock
        self.supervisor_seen_at = time.monotonic()  # when the row last had a heartbeat from the supervisor
        self._is_alone = False  # whether the supervisor has written no heartbeat for half the worker timeout
        self._was_made = False  # whether the row was inserted
        self._was_refused = False  # whether PostgreSQL refused the last heartbeat

    @property
    def due_at(self) -> float:
        """When to write a heartbeat: once to insert the row, and later only if the supervisor does not write any."""
        if self._is_alone or not self._was_made:
            return self._next
        return max(self._next, self.shared.heartbeat_at + self._silence)

    def is_alive(self, now: float) -> bool:
        """Whether this worker or its supervisor wrote a heartbeat within half a worker timeout."""
        return self._was_made and now - max(self._alive_at, self.shared.heartbeat_at) <= self._timeout / 2

    def run(self, now: float) -> None:
        """Write a heartbeat, and check whether the supervisor has written one since this worker's last heartbeat.

        If the connection breaks, the heartbeat stays due, so that it is written when the connection is open again.
        """
        row = self._store.heartbeat_worker(self._row["id"])
        if row is None:
            self._store.heartbeat_workers([self._row])
            if self._was_made:
                liveness_logs.row_gone(self._row["name"])
        self._was_made = True
        self._was_refused = False
        self._alive_at = now
        self._next = now + self._interval
        previous_heartbeat, new_heartbeat, requested = row or (None, None, "")
        self._note_supervisor(previous_heartbeat, new_heartbeat)
        if requested and self._is_alone:
            self._requested(requested)

    def refused(self, error: BaseException) -> None:
        self._next = time.monotonic() + min(self._interval, HEARTBEAT_RETRY_SECONDS)
        if not self._was_refused:
            liveness_logs.heartbeat_refused(self._row["name"], error)
        self._was_refused = True

    def _note_supervisor(self, previous_heartbeat: datetime | None, new_heartbeat: datetime | None) -> None:
        """Note whether the supervisor has written a heartbeat.

        previous_heartbeat: the heartbeat that the row had. If this worker did not write it, the supervisor did.
        """
        now = time.monotonic()
        self.supervisor_seen_at = max(self.supervisor_seen_at, self.shared.heartbeat_at)
        if previous_heartbeat is None or previous_heartbeat != self._written:
            self.supervisor_seen_at = now
            if self._is_alone:
                liveness_logs.supervisor_back(self._row["name"])
            self._is_alone = False
        elif not self._is_alone and now - self.supervisor_seen_at >= self._timeout / 2:
            self._is_alone = True
            liveness_logs.supervisor_silent(self._row["name"], now - self.supervisor_seen_at)
        self._written = new_heartbeat


LISTEN_CHECK_SECONDS = 1.0
"""Seconds between two checks whether notifications arrive, and whether the supervisor watches the queues again."""


class WatchItself(Service):
    """A service that listens for notifications while the supervisor does not watch the queues."""

    name = "watch_itself"

    def __init__(self, control: ControlConnection, shared: SharedCounts, *, on_listen: Callable[[], object]) -> None:
        """on_listen: called when this connection begins to listen, because notifications may have been missed."""
        self.control = control
        self.shared = shared
        self._on_listen = on_listen
        self._check_at = 0.0

    @property
    def due_at(self) -> float:
        """When the supervisor may stop watching the queues; while this connection listens, when to check again."""
        return self._check_at if self.control.listens else self.shared.watched_until

    def run(self, now: float) -> None:
        self._check_at = now + LISTEN_CHECK_SECONDS
        if self.shared.watched_until > now:
            self.control.unlisten()
        elif self.control.listen():
            self._on_listen()

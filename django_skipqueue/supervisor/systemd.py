"""Notify systemd, by the `sd_notify` protocol: ready, alive, stopping, and a line for `systemctl status`.

Only the process that systemd has started sends notifications: the supervisor, or the steward of several supervisors.
Its child processes, and programs that tasks start, do not inherit the address of systemd's socket.
"""

import os
import socket
from collections.abc import Callable, MutableMapping, Sequence

from ..events.log_format import counted
from ..values.records import NEVER
from ..worker.loop import Periodic
from .state import DatabaseState, SupervisorState

START_INTERVAL = 0.1
"""Seconds between two checks whether the workers have started."""

STATUS_INTERVAL = 5.0
"""The most seconds between two status lines."""


class NotifySystemd(Periodic):
    """A service that sends a datagram at intervals. If the control loop hangs, it sends nothing, so systemd notices."""

    name = "systemd"
    loop_handles_errors = False

    def __init__(self, states: Callable[[], Sequence[SupervisorState]], environment: MutableMapping[str, str]) -> None:
        """Remove systemd's variables from the environment. `states`: returns the state of each supervisor."""
        self._states = states
        self._address = environment.pop("NOTIFY_SOCKET", "")
        self.seconds_of_watchdog = _watchdog_seconds(environment)
        self._is_ready = False
        if not self._address:
            self.due_at = NEVER

    def run(self, now: float) -> None:
        """Tell systemd when the workers are ready, and from then on that all supervisors are alive."""
        states = self._states()
        if not self._is_ready:
            # A database that cannot be reached does not delay the workers of other databases.
            settled = all(state.has_worker or state.database is DatabaseState.LOST for state in states)
            self._is_ready = settled and any(state.has_worker for state in states)
            if not self._is_ready:
                self.run_again_in(START_INTERVAL)
                return
            self._send("READY=1")
        sign_of_life = [] if any(state.is_late for state in states) else ["WATCHDOG=1"]
        self._send(*sign_of_life, f"STATUS={_status(states)}")
        self.run_again_in(min(self.seconds_of_watchdog / 2, STATUS_INTERVAL))

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping: running jobs may finish")

    def forget(self) -> None:
        """Send nothing from now on. Called in a forked child process."""
        self._address = ""

    def _send(self, *lines: str) -> None:
        """Send one datagram without waiting. It is lost if systemd does not read it."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address  # the abstract namespace
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, address)
        except OSError:
            return


def _status(states: Sequence[SupervisorState]) -> str:
    workers = [worker for state in states for worker in state.workers]
    running = sum(worker.pid > 0 for worker in workers)
    running_jobs, attempts = sum(worker.jobs_running for worker in workers), sum(worker.jobs_done for worker in workers)
    counts = f"{running} of {counted(len(workers), 'worker')}, {counted(running_jobs, 'job')} running, "
    lost_aliases = [state.alias for state in states if state.database is DatabaseState.LOST] if len(states) > 1 else []
    unreachable = f"; cannot be reached: {', '.join(lost_aliases)}" if lost_aliases else ""
    return f"{counts}{counted(attempts, 'attempt')} done{unreachable}"


def _watchdog_seconds(environment: MutableMapping[str, str]) -> float:
    """The seconds within which systemd expects a sign of life of this process; infinity if it expects none."""
    microseconds = environment.pop("WATCHDOG_USEC", "")
    watched_pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
    return int(microseconds) / 1e6 if microseconds.isdecimal() and watched_pid == str(os.getpid()) else NEVER

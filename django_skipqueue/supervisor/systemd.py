"""Notifies systemd, by the protocol of `sd_notify`: ready, alive, stopping, and a line for `systemctl status`.

Invariant: only the supervisor sends. Its workers, and the programs that tasks start, inherit neither the address nor a
socket.
"""

import os
import socket
from collections.abc import MutableMapping, Sequence

from ..events.log_format import counted
from ..runtime.service import Periodic
from ..values.times import NEVER
from .process import WorkerProcess

START_INTERVAL = 0.1
"""Seconds between two looks whether the first worker has started."""

STATUS_INTERVAL = 5.0
"""Seconds between two status lines, at most."""


class NotifySystemd(Periodic):
    """Sends a datagram at intervals. Because it is a service of the control loop, it is silent when the loop hangs."""

    name = "systemd"
    loop_handles_errors = False

    def __init__(self, processes: Sequence[WorkerProcess], environment: MutableMapping[str, str]) -> None:
        """Takes systemd's variables out of the environment."""
        self._processes = processes
        self._address = environment.pop("NOTIFY_SOCKET", "")
        self._watchdog_seconds = _watchdog_seconds(environment)
        self._is_ready = False
        if not self._address:
            self.due_at = NEVER

    def run(self, now: float) -> None:
        """Send that a worker is ready, once one is; after that, that the loop turns."""
        if not self._is_ready:
            self._is_ready = any(process.has_started for process in self._processes)
            if not self._is_ready:
                self.run_again_in(START_INTERVAL)
                return
            self._send("READY=1")
        self._send("WATCHDOG=1", f"STATUS={self._status()}")
        self.run_again_in(min(self._watchdog_seconds / 2, STATUS_INTERVAL))

    def stopping(self) -> None:
        """Send that the supervisor stops."""
        self._send("STOPPING=1", "STATUS=stopping: running jobs may finish")

    def forget(self) -> None:
        """In a forked child: give up the right to send."""
        self._address = ""

    def _status(self) -> str:
        running = [process for process in self._processes if process.pid]
        jobs = sum(process.standby.running for process in running)
        done = sum(process.jobs_done for process in self._processes)
        workers = f"{len(running)} of {counted(len(self._processes), 'worker')}"
        return f"{workers}, {counted(jobs, 'job')} running, {counted(done, 'attempt')} done"

    def _send(self, *lines: str) -> None:
        """Send one datagram. It is lost if systemd does not read: the loop never waits."""
        if not self._address:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address  # the abstract namespace
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, name)
        except OSError:
            return


def _watchdog_seconds(environment: MutableMapping[str, str]) -> float:
    """The time within which systemd wants a sign, if it is for this process; else infinity."""
    microseconds = environment.pop("WATCHDOG_USEC", "")
    process = environment.pop("WATCHDOG_PID", str(os.getpid()))
    return int(microseconds) / 1e6 if microseconds.isdecimal() and process == str(os.getpid()) else NEVER

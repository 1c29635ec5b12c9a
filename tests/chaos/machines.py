"""A machine: a process group of `runworker` and its workers, which a thread restarts as a process manager would.

Invariant: a death is recorded with the time before the kill, so that no recovery seems faster than it was.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from .clocks import Clock
from .cluster import Cluster
from .evidence import Death, Stop
from .logbook import Logbook
from .proxy import Proxy

ROOT = Path(__file__).parents[2]
PROCESSES_EACH = 2
"""Worker processes of each machine."""

RESTART_DELAY = 1.0
"""Seconds after which the process manager starts a `runworker` again that ended."""

LONGEST_STOP = 40.0
"""Seconds within which a `runworker` must end after SIGTERM; otherwise it hangs."""


class Machine:
    """A `runworker` with two worker processes, a proxy to each PostgreSQL and, on demand, its own clock."""

    def __init__(
        self, name: str, cluster: Cluster, folder: Path, *, own_clock: bool = False, knows_standby: bool = False
    ) -> None:
        self.name = name
        self.proxy, *self._standby_proxies = [Proxy(socket) for socket in cluster.sockets[: 2 if knows_standby else 1]]
        self.logbook = Logbook(name)
        self.clock = Clock(folder / f"{name}.clock", threads=True)
        self._witness = cluster.url
        self._own_clock = own_clock
        self._process: subprocess.Popen[bytes] | None = None
        self._manager: threading.Thread | None = None
        self._wanted = threading.Event()
        self._lock = threading.Lock()

    @property
    def _command(self) -> list[str]:
        """The Python module that the machine runs, with its arguments."""
        return ["django", "runworker", "--processes", str(PROCESSES_EACH), "--name", self.name]

    @property
    def _settings(self) -> dict[str, str]:
        """Environment variables of this kind of machine."""
        return {}

    def boot(self) -> None:
        """Start the proxies, and start `runworker` for the first time."""
        self.clock.set(0)
        for proxy in (self.proxy, *self._standby_proxies):
            proxy.start()
        self.start()

    def end(self) -> None:
        """Kill all processes, and stop the proxies."""
        if self._process is not None:
            self.resume()
            self.kill()
            for proxy in (self.proxy, *self._standby_proxies):
                proxy.stop()

    def start(self) -> None:
        """Run `runworker`, and restart it whenever it ends."""
        self._wanted.set()
        self._run()
        self._manager = threading.Thread(target=self._manage, daemon=True)
        self._manager.start()

    def stop(self) -> Stop:
        """Send SIGTERM to the supervisor, and wait for its end. Returns how it ended."""
        pids, began = self.pids, time.time()
        process = self._stop_restarts()
        process.terminate()
        try:
            code: int | None = process.wait(LONGEST_STOP)
        except subprocess.TimeoutExpired:
            code = None
            self._signal(signal.SIGKILL)
        ended = time.time()
        self._join_manager()
        return Stop(frozenset(pids), began, ended, code)

    def kill(self) -> list[Death]:
        """SIGKILL all processes at once, as a power cut does, without a restart."""
        deaths = [Death(pid, time.time(), alone=False) for pid in self.pids]
        process = self._stop_restarts()
        self._signal(signal.SIGKILL)
        process.wait()
        self._join_manager()
        return deaths

    def kill_worker(self, number: int) -> list[Death]:
        """SIGKILL one of the workers, if there is one."""
        workers = self.pids[1:]
        return self._kill(workers[number % len(workers)], alone=True) if workers else []

    def kill_supervisor(self) -> list[Death]:
        """SIGKILL the supervisor, so that its workers become orphans."""
        orphans = [Death(pid, time.time(), alone=False) for pid in self.pids[1:]]
        return self._kill(self.pids[0], alone=False) + orphans if self.pids else []

    def pause(self) -> list[Death]:
        """SIGSTOP all processes. After a while, the other machine counts this machine as dead."""
        deaths = [Death(pid, time.time(), alone=False) for pid in self.pids]
        self._stop_running(death.pid for death in deaths)
        return deaths

    def pause_supervisor(self) -> None:
        """SIGSTOP the supervisor, but not its workers."""
        self._stop_running(self.pids[:1])

    def pause_workers(self) -> None:
        """SIGSTOP all workers, but not the supervisor."""
        self._stop_running(self.pids[1:])

    def pause_worker(self, number: int) -> list[Death]:
        """SIGSTOP one of the workers, if there is one."""
        workers = self.pids[1:]
        if not workers:
            return []
        death_of_paused_worker = Death(workers[number % len(workers)], time.time(), alone=True, frozen=True)
        self._stop_running([death_of_paused_worker.pid])
        return [death_of_paused_worker]

    def resume(self) -> None:
        """SIGCONT all processes."""
        self._signal(signal.SIGCONT)

    @property
    def has_workers(self) -> bool:
        """Whether there is a worker process."""
        return len(self.pids) > 1

    @property
    def pids(self) -> list[int]:
        """The process ids of the supervisor and, after it, of its workers."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children()
            return [process.pid, *sorted(child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE)]
        return []

    @property
    def supervisor(self) -> int | None:
        """The process id of the supervisor; `None` while there is none."""
        return next(iter(self.pids), None)

    def _manage(self) -> None:
        assert self._process is not None
        while True:
            self._process.wait()
            if self._wanted.is_set():
                time.sleep(RESTART_DELAY)
            with self._lock:
                if not self._wanted.is_set():
                    return
                self._clear_away()
                self._run()

    def _clear_away(self) -> None:
        """Subclasses may clean up before the next start."""

    def _stop_restarts(self) -> subprocess.Popen[bytes]:
        """Keep the process manager from starting `runworker` again. Returns the last process."""
        with self._lock:
            self._wanted.clear()
            assert self._process is not None
            return self._process

    def _join_manager(self) -> None:
        """Wait until the thread of the process manager has ended: it must not watch the next process."""
        assert self._manager is not None
        self._manager.join()

    def _run(self) -> None:
        ports = [str(proxy.port) for proxy in (self.proxy, *self._standby_proxies)]
        hosts = ["127.0.0.1"] * len(ports)
        query = f"host={','.join(hosts)}&port={','.join(ports)}&target_session_attrs=read-write"
        address = f"postgres://postgres@/chaos?{query}&sslmode=disable&gssencmode=disable"
        settings = {"DATABASE_URL": address, "CHAOS_WITNESS": self._witness, "PYTHONPATH": str(ROOT), **self._settings}
        clock = self.clock.environment if self._own_clock else {}
        log = self.logbook.open()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._command],
            env={**os.environ, **settings, **clock},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(log)

    def _kill(self, pid: int, *, alone: bool) -> list[Death]:
        death = Death(pid, time.time(), alone=alone)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return [death]
        return []

    @staticmethod
    def _stop_running(pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

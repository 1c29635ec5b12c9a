"""A machine: a process group of `runworker` and its workers, kept running as a process manager would.

Invariant: what is killed here is written down with the time before the blow, so that a recovery is never timed short.
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
"""Seconds in which a `runworker` must end after SIGTERM; a hang if it does not."""


class Machine:
    """Two worker processes of four threads, with a proxy before each PostgreSQL and, if asked for, an own clock."""

    def __init__(
        self, name: str, cluster: Cluster, folder: Path, *, own_clock: bool = False, knows_standby: bool = False
    ) -> None:
        self.name = name
        self.proxy, *self._others = [Proxy(socket) for socket in cluster.sockets[: 2 if knows_standby else 1]]
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
        """The module that it runs, with its arguments."""
        return ["django", "runworker", "--processes", str(PROCESSES_EACH), "--name", self.name]

    @property
    def _settings(self) -> dict[str, str]:
        """Variables of the environment that only this machine has."""
        return {}

    def boot(self) -> None:
        """Set it up and start it for the first time."""
        self.clock.set(0)
        for proxy in (self.proxy, *self._others):
            proxy.start()
        self.start()

    def end(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            self.resume()
            self.kill()
            for proxy in (self.proxy, *self._others):
                proxy.stop()

    def start(self) -> None:
        """Run `runworker`, and again whenever it ends."""
        self._wanted.set()
        self._run()
        self._manager = threading.Thread(target=self._manage, daemon=True)
        self._manager.start()

    def stop(self) -> Stop:
        """SIGTERM to the supervisor; what became of that once all is over."""
        pids, began = self.pids, time.time()
        process = self._let_end()
        process.terminate()
        try:
            code: int | None = process.wait(LONGEST_STOP)
        except subprocess.TimeoutExpired:
            code = None
            self._signal(signal.SIGKILL)
        ended = time.time()
        self._dismiss_manager()
        return Stop(frozenset(pids), began, ended, code)

    def kill(self) -> list[Death]:
        """End all its processes at once, as a power cut does. It stays down."""
        deaths = [Death(pid, time.time(), alone=False) for pid in self.pids]
        process = self._let_end()
        self._signal(signal.SIGKILL)
        process.wait()
        self._dismiss_manager()
        return deaths

    def kill_worker(self, number: int) -> list[Death]:
        """SIGKILL one of its workers, if there is one."""
        workers = self.pids[1:]
        return self._kill(workers[number % len(workers)], alone=True) if workers else []

    def kill_supervisor(self) -> list[Death]:
        """SIGKILL the parent; its workers must see that they are orphans."""
        orphans = [Death(pid, time.time(), alone=False) for pid in self.pids[1:]]
        return self._kill(self.pids[0], alone=False) + orphans if self.pids else []

    def pause(self) -> list[Death]:
        """SIGSTOP to everything. Whole machines that are paused for long are dead to the others."""
        deaths = [Death(pid, time.time(), alone=False) for pid in self.pids]
        self._stop_running(death.pid for death in deaths)
        return deaths

    def pause_supervisor(self) -> None:
        """SIGSTOP to the parent alone."""
        self._stop_running(self.pids[:1])

    def pause_workers(self) -> None:
        """SIGSTOP to all of the workers."""
        self._stop_running(self.pids[1:])

    def pause_worker(self, number: int) -> list[Death]:
        """SIGSTOP to one of the workers, if there is one."""
        workers = self.pids[1:]
        if not workers:
            return []
        frozen = Death(workers[number % len(workers)], time.time(), alone=True, frozen=True)
        self._stop_running([frozen.pid])
        return [frozen]

    def resume(self) -> None:
        """SIGCONT, to all of them."""
        self._signal(signal.SIGCONT)

    @property
    def has_workers(self) -> bool:
        """Whether there is anybody besides the supervisor."""
        return len(self.pids) > 1

    @property
    def pids(self) -> list[int]:
        """Of the supervisor, and after it of its workers."""
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
        """Do what is to be done before the next start."""

    def _let_end(self) -> subprocess.Popen[bytes]:
        """Have the process manager not start it again; the process that is the last one."""
        with self._lock:
            self._wanted.clear()
            assert self._process is not None
            return self._process

    def _dismiss_manager(self) -> None:
        """Wait for its end: it must not take what is started next for what it was to start."""
        assert self._manager is not None
        self._manager.join()

    def _run(self) -> None:
        ports = [str(proxy.port) for proxy in (self.proxy, *self._others)]
        hosts = ["127.0.0.1"] * len(ports)
        where = f"host={','.join(hosts)}&port={','.join(ports)}&target_session_attrs=read-write"
        address = f"postgres://postgres@/chaos?{where}&sslmode=disable&gssencmode=disable"
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

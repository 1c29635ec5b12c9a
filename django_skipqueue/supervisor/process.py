"""A place for a worker, which several processes fill one after the other.

Invariant: a place without a process has no open pipe; a process that has ended stands in `awaiting_recovery` until what
it held has been taken back.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..events import liveness_logs
from ..execution.runners import ENTRIES_PER_SLOT
from ..execution.running_jobs import RunningJobs
from ..runtime.log_queue import LogQueue, revive_listeners
from ..runtime.protocol import EXIT_BLOCKED, EXIT_CLEAN, EXIT_RECYCLED, EXIT_STUCK, describe_exit
from ..runtime.service import NEVER
from ..runtime.stamps import Stamps
from ..values.codec import shorten

FIRST_RESTART_DELAY, LONGEST_RESTART_DELAY = 0.5, 30.0
"""Seconds before a worker is replaced that died again within `SETTLED` of its start."""

ORDERLY_RESTART_DELAY = 1.0
"""The most of that where jobs are to blame: the process had settled others, and nothing but them is lost with it."""

SETTLED = 10.0
"""Seconds after which a worker counts as running well."""

LAST_STATEMENT = 1.0
"""Seconds after a process was killed in which a claim that it had sent may still be committed. One that comes later is
recovered after the worker timeout, as that of a machine that died."""

LOCKED_INTERVAL = 1.0
"""Seconds between two looks whether what is left of a dead process's jobs is still locked by somebody."""

LAST_LINES = 2.0
"""Seconds for which a log that blocks may hold up the end of a process."""


@dataclass(eq=False)
class DeadProcess:
    """A process that has ended."""

    id: str
    code: int
    """Its exit code; below 0 a signal."""
    cause: str
    job_ids: list[int]
    """The jobs that it was running."""
    no_statement_after: float
    """When no statement of its can be under way any more, in monotonic seconds."""
    look_at: float = 0.0
    """When to take back what it held, or what is left of it, in monotonic seconds."""


@dataclass(eq=False)
class WorkerProcess:
    """Used by the supervisor alone, but for `run` in `fork`, which is the child's."""

    name: str
    concurrency: int
    id: str = ""
    """Of the process: the name and 12 hex digits, fresh at every start, so that two are never confused."""
    pid: int = 0
    """0: no process runs."""
    start_at: float = 0.0
    """When to start one, in monotonic seconds."""
    running_jobs: RunningJobs = field(init=False)
    """What the process has begun; shared with it."""
    stamps: Stamps = field(init=False)
    """The signs of life of its control loop; shared with it."""
    awaiting_recovery: list[DeadProcess] = field(default_factory=list)
    """Processes whose jobs have not been taken back yet."""
    _lifeline: int = -1
    _filled_at: float = 0.0
    _frozen: str = ""
    """Why the process was killed; empty: it was not, or for another reason."""
    _deaths: int = 0
    """In a row, each soon after its start."""

    def fork(self, run: Callable[[int], int]) -> None:
        """Fork a child that calls `run` with the end of its lifeline, and ends with the code returned.

        Raises `OSError` where there is no room for another process; no process runs then.
        """
        self.start_at, self._filled_at, self._frozen = NEVER, time.monotonic(), ""
        self.id = f"{shorten(self.name, 200)}:{secrets.token_hex(6)}"
        with contextlib.ExitStack() as opened:
            read_end, self._lifeline = os.pipe()
            opened.callback(os.close, read_end)
            opened.callback(self._close_lifeline)
            self.stamps = Stamps()
            self.running_jobs = RunningJobs(ENTRIES_PER_SLOT * self.concurrency)
            self.pid = os.fork()
            if self.pid == 0:
                _run_and_exit(self.name, run, read_end)
            opened.pop_all()
        os.close(read_end)

    def send_command(self, command: bytes) -> None:
        """Say something to the process, if there is one."""
        if self.pid:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, command)

    def signal(self, number: signal.Signals) -> None:
        """Signal the process, if there is one."""
        if self.pid:
            os.kill(self.pid, number)

    def kill_frozen(self, silent: float) -> None:
        """End the process, whose control loop has stood still for so many seconds."""
        self._frozen = f"it was frozen for {silent:.0f} s"
        self.signal(signal.SIGKILL)

    def close_inherited(self) -> None:
        """In another child: a lifeline ends with its last writer, which must be the supervisor."""
        if self._lifeline >= 0:
            os.close(self._lifeline)

    def ended(self) -> DeadProcess | None:
        """The process once it has ended, else `None`."""
        if not self.pid:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        self._close_lifeline()
        self.pid = 0
        last_statement = 0.0 if code in (EXIT_CLEAN, EXIT_RECYCLED) else LAST_STATEMENT
        over_at = time.monotonic() + last_statement
        dead = DeadProcess(self.id, code, self._frozen or describe_exit(code), self.running_jobs.job_ids(), over_at)
        self.awaiting_recovery.append(dead)
        return dead

    def restart_now(self) -> None:
        """Start another process at once: nothing went wrong."""
        self.start_at = time.monotonic()

    def schedule_restart(self, dead: DeadProcess | None = None) -> float:
        """Start another later, and say after how many seconds: more each time that one dies soon after its start."""
        self._deaths = self._deaths + 1 if time.monotonic() - self._filled_at < SETTLED else 0
        doublings = self._deaths - 2
        blames_jobs = dead is not None and (bool(self._frozen) or dead.code in (EXIT_STUCK, EXIT_BLOCKED))
        is_orderly = blames_jobs and self.stamps.last().jobs_done > 0
        longest = ORDERLY_RESTART_DELAY if is_orderly else LONGEST_RESTART_DELAY
        delay = 0.0 if doublings < 0 else min(longest, FIRST_RESTART_DELAY * 2**doublings)
        self.start_at = time.monotonic() + delay
        return delay

    def _close_lifeline(self) -> None:
        os.close(self._lifeline)
        self._lifeline = -1


def _run_and_exit(name: str, run: Callable[[int], int], lifeline: int) -> None:
    """In the child. Never returns: it must not run the parent's code on its way out."""
    code = 1
    log = LogQueue()
    try:
        revive_listeners()
        log.start()
        code = run(lifeline)
    except BaseException as error:
        liveness_logs.part_died(name, error)
    finally:
        log.end_process(LAST_LINES)
        os._exit(code)

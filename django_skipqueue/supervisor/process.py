"""One worker of a supervisor: a name, under which a new process replaces the last one.

Invariant: without a running process there is no open pipe. A process that has ended stays in `awaiting_recovery` until
its jobs are recovered or released.
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
from ..runtime.protocol import (
    CALL,
    EXIT_BLOCKED,
    EXIT_CLEAN,
    EXIT_RECYCLED,
    EXIT_STUCK,
    describe_exit,
    encode_command,
)
from ..runtime.stamps import Stamps
from ..runtime.standby import Standby
from ..values.codec import shorten
from ..values.times import NEVER

FIRST_RESTART_DELAY, LONGEST_RESTART_DELAY = 0.5, 30.0
"""Seconds until the replacement of a worker whose processes keep dying within `SETTLED` of their start."""

ORDERLY_RESTART_DELAY = 1.0
"""The longest such delay if jobs caused the end, and the process had settled others: only those jobs were lost."""

SETTLED = 10.0
"""Seconds after which a worker counts as running well."""

LAST_STATEMENT = 1.0
"""Seconds after the death of a process within which its last claim may still be committed. If it is committed later,
its jobs are recovered after the worker timeout, as after the death of a machine."""

LOCKED_INTERVAL = 1.0
"""Seconds between two tries to recover jobs of a dead process whose rows another transaction has locked."""

PATIENCE = 0.02
"""Seconds for which a worker may let a call wait before another is called."""

MOST_CALLS = 3
"""Calls for single queues that a process has not heard yet, at most; the next one is for all. With their names, of a
thousand bytes at most, they fit into a page: the smallest pipe of Linux, in which no write has to wait."""

LAST_LINES = 2.0
"""Seconds for which a log that blocks may delay the end of a process."""


@dataclass
class Call:
    """A call that the process has not answered yet."""

    number: int
    queue_name: str
    """Empty: all queues."""
    jobs: int
    """For how many jobs the process was called."""
    sent_at: float


@dataclass(eq=False)
class DeadProcess:
    """A process that has ended."""

    id: str
    code: int
    """Its exit code; below 0 a signal."""
    cause: str
    job_ids: list[int]
    """The jobs to charge: those that it was running."""
    no_statement_after: float
    """The time from which none of its statements can be under way, in monotonic seconds."""
    look_at: float = 0.0
    """When to recover or release its jobs, or the rest of them, in monotonic seconds."""


@dataclass(eq=False)
class WorkerProcess:
    """Used by the supervisor alone, except for `run` in `fork`, which the child calls."""

    name: str
    concurrency: int
    id: str = ""
    """The name and 12 hex digits, new for every process."""
    pid: int = 0
    """0: no process runs."""
    start_at: float = 0.0
    """When to start the next process, in monotonic seconds."""
    running_jobs: RunningJobs = field(init=False)
    """The jobs that the process has started; shared with it."""
    stamps: Stamps = field(init=False)
    """The stamps of its control loop; shared with it."""
    awaiting_recovery: list[DeadProcess] = field(default_factory=list)
    """Ended processes with jobs that are not recovered or released yet."""
    standby: Standby = field(init=False)
    """What the supervisor and the process let each other know."""
    starts: int = 0
    """How many processes were started under this name."""
    _done_before: int = 0
    _lifeline: int = -1
    _calls: int = 0
    """Number of calls that the process was sent."""
    _unanswered: list[Call] = field(default_factory=list)
    _filled_at: float = 0.0
    _frozen: str = ""
    """Why the watchdog killed the process; empty if it did not."""
    _deaths: int = 0
    """Number of deaths in a row, each soon after the start."""

    def fork(self, run: Callable[[int], int]) -> None:
        """Fork a child that calls `run` with the read end of its lifeline, and exits with the returned code.

        Raises `OSError` if the system allows no further process.
        """
        self.start_at, self._filled_at, self._frozen = NEVER, time.monotonic(), ""
        self.id = f"{shorten(self.name, 200)}:{secrets.token_hex(6)}"
        with contextlib.ExitStack() as opened:
            read_end, self._lifeline = os.pipe()
            opened.callback(os.close, read_end)
            opened.callback(self._close_lifeline)
            os.set_blocking(self._lifeline, False)
            self.stamps = Stamps()
            self.standby = Standby()
            self._calls, self._unanswered = 0, []
            self.running_jobs = RunningJobs(ENTRIES_PER_SLOT * self.concurrency)
            self.pid = os.fork()
            if self.pid == 0:
                _run_and_exit(self.name, run, read_end)
            opened.pop_all()
            self.starts += 1
        os.close(read_end)

    def stop(self, command: bytes) -> None:
        """Have the process stop, if it runs."""
        self._send_command(command)

    @property
    def has_started(self) -> bool:
        """Whether a process runs, its row is written, and its control loop turns."""
        return bool(self.pid) and self.standby.heartbeat_at > 0 and self.stamps.last().number > 0

    @property
    def jobs_done(self) -> int:
        """Number of attempts that the processes of this name have settled."""
        return self._done_before + (self.stamps.last().jobs_done if self.pid and self.starts else 0)

    @property
    def has_room(self) -> bool:
        """Whether the process would claim a job."""
        return bool(self.pid) and self.standby.room > 0

    def vacancy(self, now: float) -> int:
        """How many more jobs the process could begin at once, beside those that it was called for.

        0 if it lets a call wait too long.
        """
        if not self.pid:
            return 0
        waiting = self._waiting_calls()
        if waiting and now - waiting[0].sent_at > PATIENCE:
            return 0
        return max(self.standby.slots - sum(call.jobs for call in waiting), 0)

    def call(self, queue_name: str, jobs: int, now: float) -> int:
        """Have the process look for jobs in this queue; in all queues, if the name is empty. Returns the call's number.

        If it has yet to hear a call for this queue, that one will do: it begins its claim later.
        """
        if not self.pid:
            return 0
        unheard = [call for call in self._waiting_calls() if call.number > self.standby.heard]
        for call in unheard:
            if call.queue_name in (queue_name, ""):
                call.jobs += jobs
                return call.number
        if len(unheard) >= MOST_CALLS:
            queue_name = ""
        self._calls += 1
        self._unanswered.append(Call(self._calls, queue_name, jobs, now))
        self._send_command(CALL, queue_name)
        return self._calls

    def _waiting_calls(self) -> list[Call]:
        """The calls that wait for an answer, the first one first."""
        answered = self.standby.answered
        self._unanswered = [call for call in self._unanswered if call.number > answered]
        return self._unanswered

    def _send_command(self, kind: bytes, queue_name: str = "") -> None:
        """Write a command into the lifeline of the process, if it runs."""
        if self.pid:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, encode_command(kind, queue_name))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.pid:
            os.kill(self.pid, number)

    def kill_frozen(self, silent: float) -> None:
        """Kill the process, whose control loop has been frozen for `silent` seconds."""
        self._frozen = f"it was frozen for {silent:.0f} s"
        self.signal(signal.SIGKILL)

    def close_inherited(self) -> None:
        """In another child: close the lifeline's write end, which only the supervisor may hold open."""
        if self._lifeline >= 0:
            os.close(self._lifeline)

    def ended(self) -> DeadProcess | None:
        """Check whether the process has ended, and if so, note and return it. Otherwise returns `None`."""
        if not self.pid:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        self._close_lifeline()
        self._done_before = self.jobs_done
        self.pid = 0
        last_statement = 0.0 if code in (EXIT_CLEAN, EXIT_RECYCLED) else LAST_STATEMENT
        over_at = time.monotonic() + last_statement
        dead = DeadProcess(self.id, code, self._frozen or describe_exit(code), self.running_jobs.job_ids(), over_at)
        self.awaiting_recovery.append(dead)
        return dead

    def restart_now(self) -> None:
        """Start the next process at once."""
        self.start_at = time.monotonic()

    def schedule_restart(self, dead: DeadProcess | None = None) -> float:
        """Start the next process later. Returns the delay in seconds, which grows with deaths soon after a start."""
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
    """Run the child. Never returns, so that the child runs no code of the parent afterwards."""
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

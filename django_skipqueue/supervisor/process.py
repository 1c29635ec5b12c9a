"""One worker of a supervisor: a name, under which a new process replaces the last one.

Invariant: a process that has ended stays in `awaiting_recovery` until its jobs are recovered or released.
"""

import secrets
import signal
import time
from dataclasses import dataclass, field

from ..execution.runners import ENTRIES_PER_SLOT
from ..execution.running_jobs import RunningJobs
from ..runtime.hanging_queues import HangingQueues
from ..runtime.protocol import (
    CALL,
    EXIT_BLOCKED,
    EXIT_CLEAN,
    EXIT_RECYCLED,
    EXIT_STUCK,
    describe_exit,
)
from ..runtime.stamps import Stamps
from ..runtime.standby import Standby
from ..values.codec import shorten
from ..values.records import LeaseRef
from .forked_process import ForkedProcess, Run

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


@dataclass
class Call:
    number: int
    queue_name: str
    """Empty: all queues."""
    jobs: int
    """For how many jobs the process was called."""
    sent_at: float


@dataclass(eq=False)
class DeadProcess:
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

    @property
    def ended_well(self) -> bool:
        return self.code in (EXIT_CLEAN, EXIT_RECYCLED)


@dataclass(eq=False)
class WorkerProcess(ForkedProcess):
    """Used by the supervisor alone, except for `run` in `fork`, which the child calls."""

    concurrency: int
    is_relay: bool = False
    suspect: LeaseRef | None = None
    """The job that the next process takes over, runs alone, and ends after; `None`: it claims jobs."""
    id: str = ""
    """The name and 12 hex digits, new for every process."""
    running_jobs: RunningJobs = field(init=False)
    """The jobs that the process has started; shared with it."""
    stamps: Stamps = field(init=False)
    """The stamps of its control loop; shared with it."""
    awaiting_recovery: list[DeadProcess] = field(default_factory=list)
    """Ended processes with jobs that are not recovered or released yet."""
    standby: Standby = field(init=False)
    """What the supervisor and the process let each other know."""
    hanging_queues: HangingQueues = field(default_factory=HangingQueues)
    """What each process of this name tells the next one."""
    _done_before: int = 0
    _calls: int = 0
    """Number of calls that the process was sent."""
    _unanswered: list[Call] = field(default_factory=list)
    _frozen: str = ""
    """Why the watchdog killed the process; empty if it did not."""

    def fork(self, run: Run) -> None:
        """Fork a child as the base class does, with memory that it shares with the supervisor."""
        self._frozen = ""
        self.id = f"{shorten(self.name, 200)}:{secrets.token_hex(6)}"
        self.stamps = Stamps()
        self.standby = Standby(self.hanging_queues)
        self._calls, self._unanswered = 0, []
        self.running_jobs = RunningJobs(ENTRIES_PER_SLOT * self.concurrency)
        super().fork(run)

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

        If it has yet to hear a call for this queue, that call will do: the process claims after it has heard it.
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
        answered = self.standby.answered
        self._unanswered = [call for call in self._unanswered if call.number > answered]
        return self._unanswered

    def kill_frozen(self, silent: float) -> None:
        """Kill the process, whose control loop has been frozen for `silent` seconds."""
        self._frozen = f"it was frozen for {silent:.0f} s"
        self.signal(signal.SIGKILL)

    def ended(self) -> DeadProcess | None:
        """Check whether the process has ended, and if so, note and return it. Otherwise returns `None`."""
        code = self.take_exit_code()
        if code is None:
            return None
        self._done_before = self.jobs_done
        self.pid = 0
        last_statement = 0.0 if code in (EXIT_CLEAN, EXIT_RECYCLED) else LAST_STATEMENT
        over_at = time.monotonic() + last_statement
        dead = DeadProcess(self.id, code, self._frozen or describe_exit(code), self.running_jobs.job_ids(), over_at)
        self.awaiting_recovery.append(dead)
        return dead

    def restart_now(self) -> None:
        self.start_at = time.monotonic()

    def schedule_restart(self, dead: DeadProcess | None = None) -> float:
        """Start the next process, and return the delay in seconds. It grows with deaths soon after a start.

        But it is 0 if the process has begun jobs: in its place the jobs that it was running wait.
        """
        if dead is not None and (dead.job_ids or dead.code in (EXIT_RECYCLED, EXIT_STUCK, EXIT_BLOCKED)):
            self.restart_now()
            return 0.0
        return self.restart_later()

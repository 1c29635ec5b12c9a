"""A process that a parent forks, keeps alive, and gives commands: a worker of a supervisor, a supervisor of a steward.

Invariant: a pipe is open only while its process runs. After a worker's process has ended, it stays in
`awaiting_recovery` until its jobs are recovered or released.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ..events import liveness_logs
from ..values.codec import shorten
from ..values.records import NEVER, LeaseRef
from ..worker.attempts.pool import ENTRIES_PER_SLOT
from ..worker.attempts.running_attempt import RunningJobs
from ..worker.log_queue import LogQueue, revive_listeners
from ..worker.loop import Periodic
from ..worker.protocol import (
    CALL,
    EXIT_BLOCKED,
    EXIT_CLEAN,
    EXIT_RECYCLED,
    EXIT_STUCK,
    HangingQueues,
    SharedCounts,
    Stamps,
    describe_exit,
    encode_command,
)

FIRST_RESTART_DELAY, LONGEST_RESTART_DELAY = 0.5, 30.0
"""Seconds until a process is replaced, if process after process dies within `RUNS_WELL_AFTER` of its start."""

RUNS_WELL_AFTER = 10.0
"""Seconds after which a process counts as running well."""

LAST_LINES = 2.0
"""How many seconds a blocking log may delay the end of a process."""

Run = Callable[[int, LogQueue], int]
"""The code of the child. It takes the read end of the lifeline and the started log queue, and returns the exit code."""


@dataclass(eq=False)
class ForkedProcess:
    """A name, and the process that has it: a new process replaces one that has ended. Used by the parent alone."""

    name: str
    pid: int = field(default=0, kw_only=True)
    """0: no process runs."""
    start_at: float = field(default=0.0, kw_only=True)
    """When to start the next process, in monotonic seconds."""
    starts: int = field(default=0, kw_only=True)
    """How many processes were started under this name."""
    lifeline: int = field(default=-1, kw_only=True)
    filled_at: float = field(default=0.0, kw_only=True)
    _deaths: int = field(default=0, kw_only=True)
    """Number of deaths in a row, each soon after the start."""

    def fork(self, run: Run) -> None:
        """Fork a child that calls `run` and exits with the returned code.

        Raises `OSError` if the system allows no further process.
        """
        self.start_at, self.filled_at = NEVER, time.monotonic()
        with contextlib.ExitStack() as opened:
            read_end, self.lifeline = os.pipe()
            opened.callback(os.close, read_end)
            opened.callback(self._close_lifeline)
            os.set_blocking(self.lifeline, False)
            self.pid = os.fork()
            if self.pid == 0:
                _run_and_exit(self.name, run, read_end)
            opened.pop_all()
            self.starts += 1
        os.close(read_end)

    def signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)

    def close_inherited(self) -> None:
        """In a child: close the lifeline's write end, which only the parent may hold open."""
        if self.lifeline >= 0:
            os.close(self.lifeline)

    def take_exit_code(self) -> int | None:
        """Return the exit code of the process if it has ended, below 0 for a signal; otherwise `None`.

        The caller sets `pid` to 0, once it has noted what the process has left.
        """
        if not self.pid:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self._close_lifeline()
        return os.waitstatus_to_exitcode(status)

    def restart_later(self) -> float:
        """Set when the next process starts. Returns the seconds until then, which grow with each early death."""
        self._deaths = self._deaths + 1 if time.monotonic() - self.filled_at < RUNS_WELL_AFTER else 0
        doublings = self._deaths - 2
        delay = 0.0 if doublings < 0 else min(LONGEST_RESTART_DELAY, FIRST_RESTART_DELAY * 2**doublings)
        self.start_at = time.monotonic() + delay
        return delay

    def send(self, command: bytes, queue_name: str = "") -> None:
        """Write a command into the lifeline of the process, if it runs."""
        if self.pid:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.lifeline, encode_command(command, queue_name))

    def _close_lifeline(self) -> None:
        os.close(self.lifeline)
        self.lifeline = -1


def _run_and_exit(name: str, run: Run, lifeline: int) -> NoReturn:
    """Run the child. Never returns, so that the child runs no code of the parent afterwards."""
    code = 1
    log = LogQueue()
    try:
        revive_listeners()
        log.start()
        code = run(lifeline, log)
    except BaseException as error:
        liveness_logs.part_died(name, error)
    finally:
        log.end_process(LAST_LINES)
        os._exit(code)


LAST_STATEMENT = 1.0
"""Seconds after the death of a process within which its last claim may still be committed. If the claim is committed
later, its jobs are recovered after the worker timeout, as after the death of a machine."""

CALL_PATIENCE_SECONDS = 0.02
"""Seconds for which a worker may let a call wait before the supervisor calls another worker."""

MOST_CALLS = 3
"""Calls for single queues that a process has not heard, at most: the next call is for all queues. A queue's name has at
most a thousand bytes, so the calls fit into a page, the smallest pipe of Linux, and no write has to wait."""


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
    """The jobs that the process was running, which are charged."""
    no_statement_after: float
    """The time from which no statement of the process can be under way, in monotonic seconds."""
    check_at: float = 0.0
    """When to recover or release jobs of the process, in monotonic seconds."""

    @property
    def ended_well(self) -> bool:
        return self.code in (EXIT_CLEAN, EXIT_RECYCLED)


@dataclass(eq=False)
class WorkerProcess(ForkedProcess):
    """A worker's process. Used by the supervisor alone, except for `run` in `fork`, which the child calls."""

    concurrency: int
    """0: the process runs no jobs, and hands the jobs that it claims on."""
    suspect: LeaseRef | None = None
    """The job that the next process takes over and runs alone, before it ends; `None`: the process claims jobs."""
    id: str = ""
    """The name and 12 hex digits, new for every process."""
    running_jobs: RunningJobs = field(init=False)
    """The jobs that the process has started; shared with it."""
    stamps: Stamps = field(init=False)
    """The stamps of its control loop; shared with it."""
    awaiting_recovery: list[DeadProcess] = field(default_factory=list)
    """Ended processes that may still have jobs to recover or to release."""
    shared: SharedCounts = field(init=False)
    """What the supervisor and the process let each other know."""
    hanging_queues: HangingQueues = field(default_factory=HangingQueues)
    """The queues that hang, as the processes of this name have noted them."""
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
        self.shared = SharedCounts(self.hanging_queues)
        self._calls, self._unanswered = 0, []
        self.running_jobs = RunningJobs(ENTRIES_PER_SLOT * max(self.concurrency, 1))
        super().fork(run)

    @property
    def has_started(self) -> bool:
        """Whether a process runs, its row is written, and its control loop turns."""
        return bool(self.pid) and self.shared.heartbeat_at > 0 and self.stamps.last().number > 0

    @property
    def jobs_done(self) -> int:
        """Number of attempts that the processes of this name have settled."""
        return self._done_before + (self.stamps.last().jobs_done if self.pid and self.starts else 0)

    @property
    def has_room(self) -> bool:
        return bool(self.pid) and self.shared.room > 0

    def vacancy(self, now: float) -> int:
        """How many jobs the process could begin at once, without the jobs that it was already called for.

        0 if the process lets a call wait too long.
        """
        if not self.pid:
            return 0
        waiting = self._waiting_calls()
        if waiting and now - waiting[0].sent_at > CALL_PATIENCE_SECONDS:
            return 0
        return max(self.shared.slots - sum(call.jobs for call in waiting), 0)

    def call(self, queue_name: str, jobs: int, now: float) -> int:
        """Have the process look for jobs in this queue, or in all if the name is empty. Returns the call's number.

        A call for this queue that the process has not heard is enough: the process claims after it has heard the call.
        """
        if not self.pid:
            return 0
        unheard = [call for call in self._waiting_calls() if call.number > self.shared.heard]
        for call in unheard:
            if call.queue_name in (queue_name, ""):
                call.jobs += jobs
                return call.number
        if len(unheard) >= MOST_CALLS:
            queue_name = ""
        self._calls += 1
        self._unanswered.append(Call(self._calls, queue_name, jobs, now))
        self.send(CALL, queue_name)
        return self._calls

    def _waiting_calls(self) -> list[Call]:
        answered = self.shared.answered
        self._unanswered = [call for call in self._unanswered if call.number > answered]
        return self._unanswered

    def kill_frozen(self, silent: float) -> None:
        """Kill the process, whose control loop has been frozen for `silent` seconds."""
        self._frozen = f"it was frozen for {silent:.0f} s"
        self.signal(signal.SIGKILL)

    def ended(self) -> DeadProcess | None:
        """Note and return the process if it has ended; otherwise return `None`."""
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

    def schedule_restart(self, dead: DeadProcess | None = None) -> float:
        """Set when the next process starts. Returns the seconds until then, which grow with each early death.

        They are 0 if the dead process has begun jobs.
        """
        if dead is not None and (dead.job_ids or dead.code in (EXIT_RECYCLED, EXIT_STUCK, EXIT_BLOCKED)):
            self.start_at = time.monotonic()
            return 0.0
        return self.restart_later()


OFFERS_SECONDS = 0.25
"""Seconds between two checks whether a worker offers a suspect. A check reads shared memory."""


class RunAlone(Periodic):
    """Starts a process for each suspect that a worker offers, one after the other. The process runs no other job.

    Used by the supervisor's thread. It sends no statement.
    """

    name = "run_alone"
    loop_handles_errors = False

    def __init__(self, workers: Sequence[WorkerProcess], alone: WorkerProcess) -> None:
        self._workers = workers
        self._alone = alone

    def run(self, now: float) -> None:
        self.run_again_in(OFFERS_SECONDS)
        if not self._alone.pid and self._alone.start_at == NEVER:
            offers = (worker.shared.take_suspect() for worker in self._workers if worker.pid)
            self._alone.suspect = next((suspect for suspect in offers if suspect), None)
            if self._alone.suspect:
                self._alone.start_at = time.monotonic()

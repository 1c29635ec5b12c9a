"""Child processes that a parent forks and keeps alive: the workers of a supervisor, or the supervisors of a steward.

The parent sends commands through a pipe, which is open only while the process runs. After a worker process has ended,
it stays in `awaiting_recovery` until its jobs are recovered or released.
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
"""The seconds until a process is replaced, if several successive processes died soon after their start."""

RUNS_WELL_AFTER = 10.0
"""A process that has run for this many seconds did not die soon after its start."""

LAST_LINES = 2.0
"""For how many seconds a blocking log handler may delay the end of a process."""

Run = Callable[[int, LogQueue], int]
"""The function that a child process runs. It takes the read end of the lifeline and the log queue, and returns the exit
code."""


@dataclass(eq=False)
class ForkedProcess:
    """A named child process. When it has ended, a new process takes its place. Used only by the parent."""

    name: str
    pid: int = field(default=0, kw_only=True)
    """The process id; 0 if no process runs."""
    start_at: float = field(default=0.0, kw_only=True)
    """When to start the next process, by the monotonic clock."""
    starts: int = field(default=0, kw_only=True)
    """How many processes were started under this name."""
    lifeline: int = field(default=-1, kw_only=True)
    """The write end of the pipe to the process; -1 if no process runs."""
    started_at: float = field(default=0.0, kw_only=True)
    _deaths: int = field(default=0, kw_only=True)
    """How many successive processes have died soon after their start."""

    def fork(self, run: Run) -> None:
        """Fork a child process that calls `run`, and exits with the returned code.

        Raises `OSError` if the system does not allow another process.
        """
        self.start_at, self.started_at = NEVER, time.monotonic()
        with contextlib.ExitStack() as cleanup:
            read_end, self.lifeline = os.pipe()
            cleanup.callback(os.close, read_end)
            cleanup.callback(self._close_lifeline)
            os.set_blocking(self.lifeline, False)
            self.pid = os.fork()
            if self.pid == 0:
                _run_and_exit(self.name, run, read_end)
            cleanup.pop_all()
            self.starts += 1
        os.close(read_end)

    def signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)

    def close_inherited(self) -> None:
        """Close the write end of the lifeline in a child process, because only the parent may keep it open."""
        if self.lifeline >= 0:
            os.close(self.lifeline)

    def take_exit_code(self) -> int | None:
        """Return the exit code of the process if it has ended, or else `None`. A negative code is a signal.

        The caller must set `pid` to 0 afterwards.
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
        self._deaths = self._deaths + 1 if time.monotonic() - self.started_at < RUNS_WELL_AFTER else 0
        doublings = self._deaths - 2  # after the first early death, there is no delay yet
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
    """Run a child process. Never returns, so that the child runs no code of the parent afterwards."""
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
"""For how many seconds after the death of a process its last claim may still be committed. If the claim is committed
later, its jobs are recovered after the worker timeout, as after the death of a machine."""

CALL_PATIENCE_SECONDS = 0.02
"""If a worker does not answer a call within this many seconds, the supervisor calls another worker."""

MOST_CALLS = 3
"""The most calls for single queues that a process may not have heard yet. The next call is for all queues. A queue name
has at most a thousand bytes, so that these calls fit into the smallest pipe of Linux, and no write has to wait."""


@dataclass
class Call:
    """A command to a worker to look for jobs."""

    number: int
    queue_name: str
    """The queue in which to look; empty for all queues."""
    jobs: int
    """For how many jobs the process was called."""
    sent_at: float


@dataclass(eq=False)
class DeadProcess:
    """A worker process that has ended, and may still hold jobs."""

    id: str
    code: int
    """Its exit code. A negative code is a signal."""
    cause: str
    job_ids: list[int]
    """The jobs that the process was running, whose attempts are counted."""
    no_statement_after: float
    """After this time, by the monotonic clock, no statement of the process can still be committed."""
    check_at: float = 0.0
    """When to recover or release the jobs of the process, by the monotonic clock."""

    @property
    def ended_well(self) -> bool:
        return self.code in (EXIT_CLEAN, EXIT_RECYCLED)


@dataclass(eq=False)
class WorkerProcess(ForkedProcess):
    """A worker process. Used only by its supervisor."""

    concurrency: int
    """How many jobs it runs at once. 0 if it passes the jobs on to another system."""
    suspect: LeaseRef | None = None
    """A job that the next process takes over and runs alone; `None` if the process claims jobs."""
    id: str = ""
    """The name and 12 hex digits, which are new for each process."""
    running_jobs: RunningJobs = field(init=False)
    """The jobs that the process has started, in shared memory."""
    stamps: Stamps = field(init=False)
    """The stamps of the process's control loop, in shared memory."""
    awaiting_recovery: list[DeadProcess] = field(default_factory=list)
    """Ended processes that may still have jobs to recover or to release."""
    shared: SharedCounts = field(init=False)
    """The counts that the supervisor and the process show each other, in shared memory."""
    hanging_queues: HangingQueues = field(default_factory=HangingQueues)
    """The hanging queues, which the successive processes with this name have noted."""
    _done_before: int = 0
    """How many attempts the earlier processes with this name have settled."""
    _calls: int = 0
    """How many calls were sent to the process."""
    _unanswered: list[Call] = field(default_factory=list)
    _frozen: str = ""
    """Why the watchdog killed the process; empty if it did not."""

    def fork(self, run: Run) -> None:
        """Fork a child process as the base class does, with new shared memory."""
        self._frozen = ""
        self.id = f"{shorten(self.name, 200)}:{secrets.token_hex(6)}"
        self.stamps = Stamps()
        self.shared = SharedCounts(self.hanging_queues)
        self._calls, self._unanswered = 0, []
        self.running_jobs = RunningJobs(ENTRIES_PER_SLOT * max(self.concurrency, 1))
        super().fork(run)

    @property
    def has_started(self) -> bool:
        """Whether a process runs, its row is written, and its control loop runs."""
        return bool(self.pid) and self.shared.heartbeat_at > 0 and self.stamps.last().number > 0

    @property
    def jobs_done(self) -> int:
        """How many attempts the processes with this name have settled."""
        return self._done_before + (self.stamps.last().jobs_done if self.pid and self.starts else 0)

    @property
    def has_room(self) -> bool:
        return bool(self.pid) and self.shared.room > 0

    def vacancy(self, now: float) -> int:
        """How many more jobs the process could begin at once, apart from jobs for which it was already called.

        Returns 0 if the process has not answered a call for too long.
        """
        if not self.pid:
            return 0
        waiting = self._waiting_calls()
        if waiting and now - waiting[0].sent_at > CALL_PATIENCE_SECONDS:
            return 0
        return max(self.shared.slots - sum(call.jobs for call in waiting), 0)

    def call(self, queue_name: str, jobs: int, now: float) -> int:
        """Tell the process to look for jobs in this queue, or in all if the name is empty. Returns the call's number.

        If the process has not heard an earlier call for this queue yet, sends no new call, because the process will
        claim after it has heard the earlier call.
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
        """If the process has ended, note this, and return the dead process; otherwise return `None`."""
        code = self.take_exit_code()
        if code is None:
            return None
        self._done_before = self.jobs_done
        self.pid = 0
        last_statement = 0.0 if code in (EXIT_CLEAN, EXIT_RECYCLED) else LAST_STATEMENT
        no_statement_after = time.monotonic() + last_statement
        cause = self._frozen or describe_exit(code)
        dead = DeadProcess(self.id, code, cause, self.running_jobs.job_ids(), no_statement_after)
        self.awaiting_recovery.append(dead)
        return dead

    def schedule_restart(self, dead: DeadProcess | None = None) -> float:
        """Set when the next process starts. Returns the seconds until then, which grow with each early death.

        If the dead process has begun jobs, the next process starts at once.
        """
        if dead is not None and (dead.job_ids or dead.code in (EXIT_RECYCLED, EXIT_STUCK, EXIT_BLOCKED)):
            self.start_at = time.monotonic()
            return 0.0
        return self.restart_later()


OFFERS_SECONDS = 0.25
"""Seconds between two checks whether a worker offers a suspect, in shared memory."""


class RunAlone(Periodic):
    """A service that starts a process for each suspect which a worker offers, one process at a time.

    A suspect is a job that was running in two workers when they died. The process runs no other job.
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

"""The jobs that one worker holds: what it asks of the database about them, and what it does with the answers.

Invariant: a job in `jobs` is this worker's until it is known that its outcome is written, or that somebody took it, or
until it is released. What the last exchange has brought is taken up before anything but the next exchange happens.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import Error

from .. import logs
from ..managers.batches import Answer
from ..models import Job
from ..records import Attempt, ClaimedJob, Lease
from .announcer import Announcer
from .claiming import Claiming
from .control import ControlConnection
from .exchanging import Exchanged, Exchanging
from .kinds import Free
from .options import WorkerOptions
from .outbox import Outbox
from .pool import Pool
from .reports import Reports
from .revocations import Revocations
from .strays import StrayChecks

if TYPE_CHECKING:
    from ..managers import JobQuerySet

SURPLUS_CHECK = 0.1
"""Seconds between two looks at what waits here too long."""

LARGE_ANSWER = 100
"""A claim that brought all it asked for, and as many jobs as this, waits until the next is on its way. Others are begun
at once."""

LAST_OUTCOMES = 10.0
"""Seconds for which outcomes are written when the time to stop is over."""


class Holdings:
    """Used by the control loop's thread."""

    def __init__(
        self,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        control: ControlConnection,
        pool: Pool,
        announcer: Announcer,
    ) -> None:
        self.jobs: dict[Lease, ClaimedJob] = {}
        self.claiming = Claiming(options)
        self.jobs_done = 0
        self._id = id
        self._name = name
        self._options = options
        self._control = control
        self._pool = pool
        self._announcer = announcer
        self._outbox = Outbox()
        self._exchanging = Exchanging(self.claiming, self._outbox, control, worker_id=id)
        self._exchanged: Exchanged | None = None  # while what it has brought is still to be taken up
        self._reports = Reports(announcer)
        self._revocations = Revocations()
        self._stray_checks = StrayChecks(options.lease)
        self._next_surplus_check = 0.0
        self._misplaced: list[ClaimedJob] = []  # what is to go back at once

    def room(self, now: float) -> int:
        """How many more jobs to claim, within what `--max-jobs` leaves.

        What has finished takes no room: it is settled in the round trip that claims.
        """
        if self._announcer.is_full or self._outbox.has_more:
            return 0
        coming = self._exchanged.answer.count_claimed() if self._exchanged else 0
        threads, coroutines = self._unfinished()
        room = self.claiming.room(threads, coroutines, coming, now)
        if self._options.max_jobs is None:
            return room
        return max(0, min(room, self._options.max_jobs - self.jobs_done - len(self.jobs) - coming))

    def _unfinished(self) -> tuple[int, int]:
        """How many jobs run and wait here: of `def` tasks, and of `async def` tasks."""
        finished = len(self._outbox) + len(self._pool.finished)
        if self._exchanged:
            finished += len(self._exchanged.attempts)
        coroutines = self._pool.coroutines
        return len(self.jobs) - finished - coroutines, coroutines

    def has_outcomes(self, now: float) -> bool:
        """Whether outcomes are to be written."""
        return bool(self._pool.finished) or self._outbox.is_due(now)

    def exchange_is_due(self, room: int, now: float) -> bool:
        """Whether there is a reason to go to the database, and it can be gone to, for somebody with so much room."""
        if now < self._control.retry_at:
            return False
        look = room > 0 and self.claiming.next_look <= now
        return look or self.has_outcomes(now) or self._stray_checks.next_at <= now

    def next_turn(self, room: int, now: float) -> float:
        """When something is to be done that no outcome, no notification and no command asks for."""
        if self._exchanged:
            return now
        until = self._stray_checks.next_at
        if room:
            until = min(until, self.claiming.next_look)
        if self.jobs:
            until = min(until, self._pool.next_deadline, self._revocations.next_look)
            if max(self._unfinished()) > self._options.concurrency:
                until = min(until, self._next_surplus_check)
        return until

    # With the database, in one round trip

    def exchange(self, room: int) -> bool:
        """Settle what finished, and claim up to `room` jobs; whether it found the queues empty.

        What the one before has brought is taken up while the database works. Of two that follow each other closely, the
        first is taken up while the second is on its way: a quarter more jobs a second where they take no time.
        """
        self._outbox.add(self._pool.take_finished())
        now = time.monotonic()
        found_empty = False
        if not self._release_strays(now):
            return False
        with self.asking():
            if self._options.listen:
                self._control.listen()
            exchanged = self._exchanging.exchange(self._jobs, room, self.take_up if self._exchanged else None)
            self.take_up()  # where an outcome was refused, that was not done meanwhile
            self._exchanged = exchanged
            if exchanged.answer.count_claimed() < max(exchanged.room, LARGE_ANSWER):
                found_empty = self.take_up()
            self.claiming.heard(self._control.notified())
        if self._control.is_broken:
            self._exchanging.failed(timed_out=self._control.timed_out, now=time.monotonic())
        self._tell_lost()
        return found_empty

    def take_up(self) -> bool:
        """Take up what the last exchange has brought, if that is still to be done; whether it found the queues empty.

        Asks nothing of the database.
        """
        if self._exchanged is None:
            return False
        exchanged, self._exchanged = self._exchanged, None
        self._written(exchanged.attempts, exchanged.answer)
        claimed = exchanged.answer.claimed()
        self._take(claimed, exchanged.free)
        return exchanged.room > 0 and self.claiming.claimed(
            claimed,
            room=exchanged.room,
            names=exchanged.answer.queue_names,
            after=exchanged.after,
            started=exchanged.started,
            ended=exchanged.ended,
        )

    def _written(self, attempts: list[Attempt], answer: Answer) -> None:
        """Note that the database has answered for these, and tell the world."""
        if not attempts:
            return
        self._reports.sent(attempts, answer)
        for attempt in attempts:
            self.jobs.pop((attempt.job.id, attempt.job.lease), None)
        self.jobs_done += len(attempts)
        coroutines = self._pool.count_coroutines(attempts)
        self.claiming.finished(len(attempts) - coroutines, coroutines, time.monotonic())

    def _take(self, claimed: list[ClaimedJob], free: Free) -> None:
        """Have the jobs run, but for those that were claimed beside others, when there was no room for their kind."""
        if claimed:
            self.jobs.update(((job.id, job.lease), job) for job in claimed)
            if not all(free):
                self._misplaced += [job for job in claimed if not free.for_job(job)]
                claimed = [job for job in claimed if free.for_job(job)]
            self._pool.submit(claimed)

    def _tell_lost(self) -> None:
        if self._reports.lost and not self._control.is_broken:
            with self.asking():
                self._reports.tell_lost(self._jobs)

    # What others take away

    def let_go_of_revoked(self, now: float) -> None:
        """Drop and interrupt the jobs that were cancelled, or taken from us by a recovery."""
        if not self.jobs or now < max(self._revocations.next_look, self._control.retry_at):
            return
        self.take_up()
        leases = self._revocations.due(self.jobs, now)
        if not leases:
            return
        revoked: dict[Lease, str | None] = {}
        with self.asking():
            revoked = self._jobs.revoked(leases)
        if revoked:
            for job in self._pool.drop(revoked):
                del self.jobs[job.id, job.lease]
        for lease, reason in revoked.items():
            if lease in self.jobs:
                self._pool.cancel(self.jobs[lease], reason or "the job was taken from this worker")

    # Giving back

    def give_back_surplus(self, now: float) -> None:
        """Give back, the last claimed first, what would wait here for too long: others may run it, or something urgent.

        What has finished and is not written yet is progress as well. Nothing is given back while a large answer waits
        for the next exchange: jobs that follow each other so fast do not wait.
        """
        if self._exchanged or now < self._control.retry_at:
            return
        if now < self._next_surplus_check and not self._misplaced:
            return
        self._next_surplus_check = now + SURPLUS_CHECK
        threads, coroutines = self._unfinished()
        unwritten = len(self._outbox) + len(self._pool.finished)
        surplus = self.claiming.threads.surplus(threads - unwritten, now)
        coroutines_surplus = self.claiming.coroutines.surplus(coroutines - unwritten, now)
        self._give_back(self._pool.withdraw_last(threads=surplus, coroutines=coroutines_surplus))

    def give_back_unstarted(self) -> None:
        """Give back what no thread has begun."""
        self.take_up()
        self._give_back(self._pool.withdraw())
        self._next_surplus_check = float("inf")  # nobody looks any more

    def _give_back(self, withdrawn: list[ClaimedJob]) -> None:
        """Release what came back from the pool, and what never came into it."""
        withdrawn, self._misplaced = withdrawn + self._misplaced, []
        if withdrawn:
            if locked := self._locked(withdrawn):
                self._stray_checks.expect(time.monotonic())
            self._forget([job for job in withdrawn if job.id in locked])
            self._release([job for job in withdrawn if job.id not in locked])

    def settle_last(self) -> None:
        """Write what has finished, when there is no other time."""
        self._outbox.look_now()
        failures, deadline = 0, time.monotonic() + LAST_OUTCOMES
        while failures < 2 and self.has_outcomes(now := time.monotonic()) and now < deadline:
            self.exchange(0)
            failures += self._control.is_broken  # a connection that broke is opened again
        self._tell_lost()

    def give_back_running(self) -> bool:
        """When the time is over: settle what is finished, release the rest; whether anything still runs.

        The locked ones come first, and are waited for: their own transactions may be about to end. The others may begin
        elsewhere as soon as they are released, and this process must be gone then.
        """
        self.settle_last()
        running = list(self.jobs.values())
        locked = self._locked(running)
        given_back = 0
        finished = self._outbox.leases()  # not waited for: nobody knows until when
        for jobs in (
            [job for job in running if job.id in locked and (job.id, job.lease) not in finished],
            [job for job in running if job.id not in locked],
        ):
            self._release(jobs)
            given_back += 0 if self._control.is_broken else len(jobs)
        if given_back:
            logs.given_back(self._name, given_back)
        return bool(running)

    def _locked(self, jobs: list[ClaimedJob]) -> set[int]:
        """Of which of them somebody has the rows locked: released with the others, they would fail those as well."""
        locked: set[int] = set()
        if jobs:
            with self.asking():
                locked = self._jobs.locked((job.id, job.lease) for job in jobs)
        return locked

    def _release(self, jobs: list[ClaimedJob]) -> None:
        """Give jobs back. Those that cannot be given back now are strays then."""
        if jobs:
            with self.asking():
                self._jobs.release((job.id, job.lease) for job in jobs)
        self._forget(jobs)

    def _forget(self, jobs: list[ClaimedJob]) -> None:
        for job in jobs:
            self.jobs.pop((job.id, job.lease), None)

    # The connection

    @contextmanager
    def asking(self, *, refused: Callable[[Error], object] | None = None) -> Iterator[None]:
        """Ask the database something. An error is not raised: the next exchange begins with a new connection.

        With `refused`, one that leaves the connection as good as it was is passed to that instead.
        """
        with self._control.attempt(refused=refused):
            yield
        if self._control.is_broken:
            self.take_up()  # what is held already need not wait for the database
            self.expect_strays(time.monotonic())

    def hear(self) -> None:
        """Read the notifications that have come, and look for jobs at once where they concern us."""
        with self.asking():
            self.claiming.heard(self._control.notified())

    def expect_strays(self, now: float) -> None:
        """A claim may have been committed and never heard of."""
        self.claiming.start_over()
        self._stray_checks.expect(now)

    def _release_strays(self, now: float) -> bool:
        """Look for them, if it is time. False: the connection has broken. That it is refused keeps nothing else."""
        if self._stray_checks.next_at > now:
            return True
        self.take_up()
        with self.asking(refused=lambda _: self._stray_checks.refused(time.monotonic())):
            strays = self._jobs.release_strays(self._id, known=[job.id for job in self.jobs.values()])
            self._stray_checks.done(time.monotonic())
            if strays:
                logs.strays_released(self._name, len(strays))
        return not self._control.is_broken

    @property
    def _jobs(self) -> "JobQuerySet":
        return Job.objects.using(self._options.database)

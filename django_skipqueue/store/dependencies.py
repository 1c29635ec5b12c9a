"""The methods that have jobs wait for other jobs, and admit them when those are finished.

Invariant: a job that waits is admitted, or discarded, once: under the lock of its row, by a statement that has begun
after it. A predecessor that is retried by hand lets nobody through until it has completed, but for the jobs that go on
after a failure (`run`): once it has failed, they need it no more, and wait for their other predecessors alone.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db import transaction

from ..events.batch_events import DependantsDiscarded
from ..events.events import JobsAdmitted
from ..exceptions import InvalidOption
from ..values.records import Dependant, JobReference
from . import policy_sql as sql
from .notify import LIMITS_PAYLOAD, notify_supervisors, wake, wake_supervisors
from .parameters import as_array
from .statements import BATCH, Statements

MOST_ROUNDS = 20
"""Batches of jobs that one call admits. The supervisors admit the others."""


class Need(NamedTuple):
    needs_job_id: int
    task: str | None
    """The name of its task; `None`: the row is not there any more."""
    status: str | None
    """`None`: it was deleted."""
    result: str | None
    """JSON, not yet decoded."""
    is_gone: bool
    """Whether the row is not there any more."""


class UnmetNeed(NamedTuple):
    needs_job_id: int
    status: str | None
    """`None`: it was deleted."""
    is_gone: bool
    """Whether the row is not there any more."""
    is_stuck: bool
    """Whether it has not completed, and keeps the other one waiting until it has."""
    number: int
    """How many jobs the other one waits for."""


@dataclass
class Dependants:
    admitted: Counter[str] = field(default_factory=Counter)
    """How many are queued now, by queue."""
    batch_ids: set[int] = field(default_factory=set)
    """The batches of those that are not finished."""
    found_any: bool = False
    """Whether there was any job that waited, whatever it waits for still."""
    discarded_any: bool = False


class Dependencies(Statements):
    """Used by enqueues, by the gate of dependencies, and by workers after a settle."""

    def hold(self, ids: Collection[int], *, needs: Collection[JobReference], after_failure: str) -> dict[int, str]:
        """Have new jobs wait for others. Returns the status of those that need not wait, by id.

        Called in the transaction of the INSERT. Raises `InvalidOption` if one of the others does not exist, or is in
        another database.
        """
        self._require_here(needs)
        needed = dict.fromkeys(need.id for need in needs)
        values = {"ids": as_array(ids), "needs": as_array(needed), "after_failure": after_failure}
        if missing := [id for (id,) in self.rows(sql.INSERT_DEPENDENCIES, values)]:
            raise InvalidOption(f"after names job {missing[0]}, which does not exist: it was deleted, or pruned.")
        passed = self._pass(ids)
        if discarded := [job for job in passed if job.needs_job_id is not None]:
            event = DependantsDiscarded(self.alias, discarded)
            transaction.on_commit(lambda: self.send(event), using=self.alias, robust=True)
        wake_supervisors(self, [0.0])
        return {job.id: job.status for job in passed}

    def _require_here(self, needs: Collection[JobReference]) -> None:
        for id, database in needs:
            if database not in (None, self.alias):
                raise InvalidOption(
                    f"after names job {id} of the database {database!r}, and the new job is in {self.alias!r}: a job "
                    "can wait only for jobs of its own database. Defer both in the same one, or have the task of the "
                    "first job defer the second."
                )

    def admit_dependants(self, ids: Iterable[int]) -> Dependants:
        """Admit the jobs that wait for these alone, or discard them, and notify the workers.

        What a discarded job keeps waiting is discarded, or admitted, as well.
        """
        found = self.look_after(ids)
        wake(self, found.admitted)
        if found.admitted:
            self.send(JobsAdmitted(self.alias, dict(found.admitted)))
        return found

    def look_after(self, ids: Iterable[int], *, limit: int = BATCH) -> Dependants:
        """Admit the jobs that wait for these alone, or discard them. Notifies nobody: `admit` does, for all gates."""
        found = Dependants()
        left = set(ids)
        for _ in range(MOST_ROUNDS):
            if not left:
                break
            with transaction.atomic(using=self.alias):
                locked = [id for (id,) in self.rows(sql.LOCK_DEPENDANTS, {"ids": as_array(left), "limit": limit})]
                passed = self._pass(locked) if locked else []
            found.found_any = found.found_any or bool(locked)
            discarded = self._note(passed, found)
            left = discarded | left if len(locked) == limit else discarded
        return found

    def _pass(self, ids: Collection[int]) -> list[Dependant]:
        """Admit those of these jobs that wait for no other job any more, or discard them."""
        return [Dependant._make(row) for row in self.rows(sql.ADMIT_DEPENDANTS, {"ids": as_array(ids)})]

    def _note(self, passed: Collection[Dependant], found: Dependants) -> set[int]:
        """Count these jobs, and send the event of those that were discarded. Returns the ids of the discarded ones."""
        found.admitted.update(job.queue_name for job in passed if job.status == "queued")
        found.batch_ids |= {job.batch_id for job in passed if job.status != "discarded" and job.batch_id is not None}
        if any(job.status == "blocked" for job in passed):  # they wait at the gate of limits now
            notify_supervisors(self, LIMITS_PAYLOAD)
        if discarded := [job for job in passed if job.needs_job_id is not None]:
            found.discarded_any = True
            self.send(DependantsDiscarded(self.alias, discarded))
        return {job.id for job in passed if job.status == "discarded"}

    def predecessors(self, *, after: int = 0, limit: int = BATCH) -> dict[int, bool]:
        """The next jobs that others wait for, after an id; for each, whether it lets one of them through."""
        return dict(self.rows(sql.PREDECESSORS, {"after": after, "limit": limit}))

    def forget_dependants(self, ids: Collection[int], *, limit: int = BATCH) -> bool:
        """Clear dependencies on these that nobody waits for, some at each call. Returns whether there were any."""
        values = {"ids": as_array(ids), "limit": limit}
        for rounds in range(MOST_ROUNDS):
            [(number,)] = self.rows(sql.FORGET_DEPENDANTS, values)
            if number < limit:
                return bool(rounds or number)
        return True

    def needs(self, id: int) -> list[Need]:
        return [Need._make(row) for row in self.rows(sql.NEEDS, {"id": id})]

    def unmet_needs(self, id: int, *, limit: int) -> list[UnmetNeed]:
        """Some of the jobs that this one waits for still, first those that have not completed."""
        return [UnmetNeed._make(row) for row in self.rows(sql.UNMET_NEEDS, {"id": id, "limit": limit})]

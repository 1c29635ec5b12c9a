"""The methods about unique keys: which job holds one, and the enqueue of calls whose keys may be taken.

Invariant: the unique index decides whether a job is inserted. What is read before or after only says which job holds
the key; where that has changed in between, the enqueue starts again. After a method returns, the caller's transaction
has no running job locked, so the settle of its outcome never waits for the caller's commit.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

import psycopg
from django.db import OperationalError, transaction

from ..exceptions import UniqueKeyDeadlock, UniqueKeyTaken
from ..job_names import job_name
from ..values.deferred import CallOutcome, DeferredJobs, OnConflict
from ..values.handles import handle_of
from ..values.records import EncodedCall, JobSpec
from . import policy_sql as sql
from .notify import wake
from .parameters import as_text_array, calls_as_values
from .statements import Statements

Row = TypeVar("Row", bound=tuple[Any, ...])


class Replaced(NamedTuple):
    unique_key: str
    id: int
    status: str
    run_after: datetime
    enqueued_at: datetime
    delay: float


class Holder(NamedTuple):
    unique_key: str
    id: int
    is_finished: bool
    waits: bool
    is_unclaimed: bool


class UniqueKeys(Statements):
    """Used by the enqueues, and by the manual retry."""

    def unique_key_holders(self, keys: Sequence[str], *, seconds: float | None = None) -> dict[str, int]:
        """The ids of the jobs that hold these unique keys, by key. Frees the keys whose time is over.

        seconds: `unique_seconds` of the caller's spec. With 0, the holders that wait are locked until the caller's
        commit, so that they do not start before it.
        """
        found = self.lock_waiting_holders(keys) if seconds == 0 else {}
        others = [key for key in keys if key not in found]
        if not others:
            return found
        rows = self._holders(others)
        if finished := [each.unique_key for each in rows if each.is_finished]:
            self.free_unique_keys(finished)
            rows = self._holders(others)
        return found | {each.unique_key: each.id for each in rows}

    def _holders(self, keys: Sequence[str]) -> list[Holder]:
        return list(starmap(Holder, self.rows(sql.UNIQUE_KEY_HOLDERS, {"unique_keys": list(keys)})))

    def lock_waiting_holders(self, keys: Sequence[str]) -> dict[str, int]:
        """Lock the jobs that hold these unique keys and have not been claimed, until the caller's transaction ends.

        Returns their ids, by key. Claims pass over the locked rows, so the workers are notified again at the commit.
        """

        def lock(keys: Sequence[str], waits: bool) -> list[tuple[Any, ...]]:
            statement = sql.LOCK_WAITING_HOLDERS if waits else sql.LOCK_UNLOCKED_HOLDERS
            return self.rows(statement, {"unique_keys": list(keys)})

        if len(keys) > 1:
            keys = [each.unique_key for each in self._holders(keys) if each.is_unclaimed]
        rows = self._lock_by_key(sorted(keys), lock)
        if not self.connection.get_autocommit() and (
            queued := Counter(queue for _, _, queue, status in rows if status == "queued")
        ):
            wake(self, queued)
        return {key: id for key, id, _, _ in rows}

    def replace_waiting(self, values: Mapping[str, Any], calls: Sequence[EncodedCall]) -> list[Replaced]:
        """Give the waiting holders of these calls' keys the arguments, the due time and the limit of the call.

        A holder that runs stays as it is. One that somebody writes is waited for.
        """
        by_key = {call.unique_key: call for call in calls if call.unique_key is not None}

        def replace(keys: Sequence[str], waits: bool) -> list[Replaced]:
            statement = sql.REPLACE_WAITING if waits else sql.REPLACE_UNLOCKED
            chosen = [by_key[key] for key in keys]
            rows = self.rows(statement, {**values, **calls_as_values(chosen), "unique_keys": list(keys)})
            return list(starmap(Replaced, rows))

        keys = list(by_key)
        if len(keys) > 1:
            keys = [each.unique_key for each in self._holders(keys) if each.waits]
        return self._lock_by_key(sorted(keys), replace)

    def _lock_by_key(self, keys: Sequence[str], lock: Callable[[Sequence[str], bool], list[Row]]) -> list[Row]:
        """Call `lock` with these sorted keys: a statement that locks the jobs that wait, and returns rows by key.

        PostgreSQL locks the newest version of a row, and looks at the condition afterwards: a job that was claimed in
        between is locked, and not returned. So a statement that returns fewer jobs than it was asked for is rolled
        back, and its keys are tried by halves. Several are locked without waiting, one alone is waited for: what is
        waited for comes after all that is kept in the order of the keys, and none of that runs.
        """
        if not keys:
            return []
        waits, in_transaction = len(keys) == 1, not self.connection.get_autocommit()
        with transaction.atomic(using=self.alias) if in_transaction else nullcontext():
            rows = lock(keys, waits)
            if len(rows) == len(keys):
                return rows
            if in_transaction:
                transaction.set_rollback(True, using=self.alias)
        if waits:
            return []
        kept = [] if in_transaction else rows
        done = {row[0] for row in kept}
        rest = [key for key in keys if key not in done]
        half = (len(rest) + 1) // 2
        return kept + self._lock_by_key(rest[:half], lock) + self._lock_by_key(rest[half:], lock)

    def free_unique_keys(self, keys: Sequence[str]) -> list[str]:
        """Free those of these unique keys whose jobs are finished and whose time is over. Returns them."""
        return [key for (key,) in self.rows(sql.FREE_UNIQUE_KEYS, {"unique_keys": list(keys)})]

    def unique_keys_of(self, ids: Sequence[int]) -> list[str]:
        return [key for (key,) in self.rows(sql.UNIQUE_KEYS_OF, {"ids": list(ids)})]

    def _enqueue_unique(
        self, spec: JobSpec, values: Mapping[str, Any], calls: Sequence[EncodedCall], on_conflict: OnConflict
    ) -> DeferredJobs:
        """Insert jobs of which some have unique keys. Repeats until each key belongs to a job."""
        if on_conflict == "raise":
            _check_distinct(calls)
        chosen = missing = in_key_order(calls, last=on_conflict in ("replace", "rerun"))
        plain: list[int] = []
        keyed: dict[str, tuple[int, CallOutcome]] = {}
        with transaction.atomic(using=self.alias) if on_conflict == "raise" else nullcontext():
            while missing:
                inserted, replaced = self._write_unique(spec, values, missing, on_conflict)
                plain += [id for id, key in inserted if key is None]
                keyed.update({key: (id, "created") for id, key in inserted if key is not None})
                keyed.update({each.unique_key: (each.id, "replaced") for each in replaced})
                missing = [call for call in missing if call.unique_key is not None and call.unique_key not in keyed]
                if missing:
                    taken = [call.unique_key for call in missing if call.unique_key is not None]
                    holders = self.unique_key_holders(taken, seconds=spec.unique_seconds)
                    if holders and on_conflict == "raise":
                        raise taken_by(self.alias, list(holders.values()))
                    keyed |= {key: (id, "existing") for key, id in holders.items()}
                    missing = [call for call in missing if call.unique_key not in keyed]
        return _report(calls, chosen, sorted(plain), keyed)

    def _write_unique(
        self, spec: JobSpec, values: Mapping[str, Any], calls: Sequence[EncodedCall], on_conflict: OnConflict
    ) -> tuple[list[tuple[int, str | None]], list[Replaced]]:
        """Insert these calls, sorted by key, or replace. Returns the inserted jobs, with their keys, and the others."""
        keys: list[str | None] = [call.unique_key for call in calls]
        parameters = {**calls_as_values(calls), "unique_keys": as_text_array(keys), "number": len(calls)}
        [(ids, inserted_keys, queued, delay)] = self.rows(sql.ENQUEUE_MANY_UNIQUE, {**values, **parameters})
        inserted = list(zip(ids or (), inserted_keys or keys, strict=False))
        replaced: list[Replaced] = []
        if on_conflict in ("replace", "rerun") and len(inserted) < len(calls):
            written = {key for _, key in inserted}
            replaced = self.replace_waiting(values, [call for call in calls if call.unique_key not in written])
        if inserted or replaced:
            queued += sum(each.status == "queued" for each in replaced)
            delays = [each.delay for each in replaced] + [delay] * bool(inserted)
            self._enqueued(spec, [id for id, _ in inserted], calls, queued=queued, delay=min(delays))
        return inserted, replaced

    def _enqueued(
        self, spec: JobSpec, ids: list[int], calls: Sequence[EncodedCall], *, queued: int, delay: float
    ) -> dict[int, str]:
        raise NotImplementedError


def taken_by(alias: str, job_ids: Sequence[int]) -> UniqueKeyTaken:
    listed = ", ".join(job_name(alias, id) for id in job_ids[:10])
    message = f"Held by job {listed}: a unique key of this call. Nothing was written."
    return UniqueKeyTaken(message, job_id=job_ids[0], handle=handle_of(alias, job_ids[0]))


@contextmanager
def explained_deadlock(has_key: bool) -> Iterator[None]:
    """Raise `UniqueKeyDeadlock` in place of PostgreSQL's error, if calls with unique keys were its victim."""
    try:
        yield
    except OperationalError as error:
        if has_key and isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise UniqueKeyDeadlock from error
        raise


def _check_distinct(calls: Sequence[EncodedCall]) -> None:
    first: dict[str, int] = {}
    for position, call in enumerate(calls):
        if call.unique_key is not None and first.setdefault(call.unique_key, position) != position:
            raise UniqueKeyTaken(f"call {position}: call {first[call.unique_key]} has the same unique key.")


def in_key_order(calls: Sequence[EncodedCall], *, last: bool) -> list[EncodedCall]:
    """The calls without a key; then one of each key, sorted, so that two batches with the same keys never deadlock.

    Of calls that share a key it is the first, or the `last`, whose arguments are the newest.
    """
    keyed = {call.unique_key: call for call in (calls if last else reversed(calls)) if call.unique_key is not None}
    return [call for call in calls if call.unique_key is None] + [keyed[key] for key in sorted(keyed)]


def _report(
    calls: Sequence[EncodedCall],
    chosen: Sequence[EncodedCall],
    plain: Sequence[int],
    keyed: Mapping[str, tuple[int, CallOutcome]],
) -> DeferredJobs:
    """What became of each call. Of those that share a key, only the chosen one has written anything."""
    in_order, writers = iter(plain), {id(call) for call in chosen}
    ids: list[int] = []
    outcomes: list[CallOutcome] = []
    for call in calls:
        if call.unique_key is None:
            ids.append(next(in_order))
            outcomes.append("created")
        else:
            job_id, outcome = keyed[call.unique_key]
            ids.append(job_id)
            outcomes.append(outcome if id(call) in writers else "existing")
    return DeferredJobs(ids, outcomes)

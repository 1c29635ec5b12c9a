"""Enqueue calls with unique keys, and find the jobs that hold these keys.

A job holds its key if the predicate of the unique index is true, which every statement here repeats. `unique_seconds`
says how long the job holds the key. NULL means until the job is finished. 0 means until a worker first claims the job;
because `lease` never becomes 0 again, no retry, release or recovery takes the key back. Any other number means this
many seconds from the enqueue, and at least until the job is finished. When this time is over, the next enqueue or retry
that needs the key frees it by setting `unique_seconds` to NULL.

Only the unique index decides whether a job is inserted. The reads before and after the INSERT only find the job that
holds the key. If another job has taken the key in the meantime, the enqueue starts again. When a function returns, the
caller's transaction has no running job locked, so the settle of a running job never waits for the caller's commit.

Enqueues and manual retries use this module.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, Q
from django.db.models.functions import Now

from ...events.log_format import job_name
from ...exceptions import UniqueKeyTaken
from ...models import Job
from ...queue.fragments import CALL_EXPRESSIONS, CALLS, INSERT_CALLS, KEY_EXPRESSIONS, PIECES, entering, joined
from ...queue.notify import wake
from ...queue.parameters import calls_as_values
from ...queue.store import Store
from ...queue.unique_keys import ReplacedJob, explained_deadlock
from ...values.records import CallOutcome, DeferredJobs, EncodedCall, JobSpec, handle_of
from .columns import HOLDS_KEY
from .models import KEY_IS_HELD

# Sent by enqueue_many, calls with unique keys. Inserts the calls, except calls whose key a job, or an earlier call of
# the batch, already holds. `unique_keys` has one element per call, which is NULL for a call without a key. The calls
# are sorted by key, so that two batches with the same keys wait for each other instead of a deadlock. Returns one row:
# the ids of the inserted jobs, ascending; their unique keys in the order of the ids, or NULL if every call was
# inserted, because the ids are then in the order of the calls; the number of queued jobs; and the seconds until the
# first job is due. Index: unique.
ENQUEUE_MANY_UNIQUE = joined(
    """
WITH inserted AS (
{insert}
{unless_held}
RETURNING id, unique_key, status, run_after
)
SELECT
    array_agg(id ORDER BY id),
    CASE WHEN count(*) < %(number)s THEN array_agg(unique_key ORDER BY id) END,
    count(*) FILTER (WHERE status = 'queued'),
    extract(epoch FROM min(run_after) - statement_timestamp())::float8
FROM inserted
""",
    insert=INSERT_CALLS,
    unless_held=PIECES["unless_held"],
)

# Sent by enqueue and enqueue_many with on_conflict="replace", after a conflict. Gives the waiting jobs that hold the
# keys the arguments of the call, and returns them: unique_key, id, status, gate, run_after, enqueued_at, and the
# seconds until the job is due. Each key occurs once. ON CONFLICT DO UPDATE would not do: it locks a row before it
# checks the condition, and so would keep a running job locked until the caller's commit. Index: unique, the primary
# key.
_REPLACE_WAITING = """
WITH waiting AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        unique_key = ANY (%(unique_keys)s::text[])
        AND {holds_key}
        AND finished_at IS NULL
        AND status <> 'running'
    ORDER BY unique_key
    FOR NO KEY UPDATE{skip}
)
UPDATE skipqueue_job AS job
SET (args, kwargs, run_after) = (call.args::jsonb, call.kwargs::jsonb, due.run_after),
    status = {status},
    gate = {gate},
    {columns}
FROM
    {calls},
    (
        SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
        AS run_after
    ) AS due
WHERE job.id = ANY (ARRAY (SELECT id FROM waiting)) AND job.unique_key = call.unique_key
RETURNING
    job.unique_key, job.id, job.status, job.gate, job.run_after, job.enqueued_at,
    extract(epoch FROM job.run_after - statement_timestamp())::float8
"""

_SET_COLUMNS = ",\n    ".join(f"{name} = {value}" for name, value in CALL_EXPRESSIONS.items() if name != "unique_key")

_REPLACING = {
    "holds_key": HOLDS_KEY,
    "columns": _SET_COLUMNS,
    "calls": CALLS,
    **entering(column="job.{}", run_after="due.run_after", **KEY_EXPRESSIONS),
}

REPLACE_WAITING = joined(_REPLACE_WAITING, **_REPLACING, skip="")

# Sent by enqueue_many that replaces several jobs. Returns what REPLACE_WAITING returns, without jobs that another
# transaction has locked. Index: unique, the primary key.
REPLACE_UNLOCKED = joined(_REPLACE_WAITING, **_REPLACING, skip=" SKIP LOCKED")

# Sent by enqueue_many, after a conflict. Returns each of the given keys that a job holds, with the id of the job, and
# whether the job is finished, waits, or has never been claimed. Index: unique.
UNIQUE_KEY_HOLDERS = joined(
    """
SELECT
    unique_key, id, finished_at IS NOT NULL AS is_finished,
    finished_at IS NULL AND status <> 'running' AS waits,
    finished_at IS NULL AND lease = 0 AS is_unclaimed
FROM skipqueue_job
WHERE
    unique_key = ANY (%(unique_keys)s::text[])
    AND {holds_key}
""",
    holds_key=HOLDS_KEY,
)

# Sent by enqueue and enqueue_many with until="started", after a conflict. Returns the keys that unclaimed jobs hold,
# with the job's id, queue and status. Locks these jobs until the caller's commit, in the order of the keys. So no
# worker claims such a job before the commit, and when the job runs, it sees what the caller has written. Several
# callers can share the lock. Index: unique.
_LOCK_WAITING_HOLDERS = """
SELECT unique_key, id, queue_name, status
FROM skipqueue_job
WHERE
    unique_key = ANY (%(unique_keys)s::text[])
    AND {holds_key}
    AND finished_at IS NULL
    AND lease = 0
ORDER BY unique_key
FOR SHARE{skip}
"""

LOCK_WAITING_HOLDERS = joined(_LOCK_WAITING_HOLDERS, holds_key=HOLDS_KEY, skip="")

# Sent by enqueue_many with until="started" and several keys. Returns what LOCK_WAITING_HOLDERS returns, without jobs
# that another transaction is updating. Index: unique.
LOCK_UNLOCKED_HOLDERS = joined(_LOCK_WAITING_HOLDERS, holds_key=HOLDS_KEY, skip=" SKIP LOCKED")

# Sent by enqueue, enqueue_many, retry, after a conflict with a finished job. Frees each key whose job is finished and
# whose time is over. Returns the freed keys. Locks the jobs in the order of the keys. Index: unique.
FREE_UNIQUE_KEYS = joined(
    """
WITH expired AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        unique_key = ANY (%(unique_keys)s::text[])
        AND {holds_key}
        AND finished_at IS NOT NULL
        AND enqueued_at + make_interval(secs => unique_seconds) <= statement_timestamp()
    ORDER BY unique_key
    FOR NO KEY UPDATE
)
UPDATE skipqueue_job AS job
SET unique_seconds = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM expired))
RETURNING job.unique_key
""",
    holds_key=HOLDS_KEY,
)

# Sent by retry, after a conflict. Returns the unique keys of these jobs. Index: the primary key.
UNIQUE_KEYS_OF = """
SELECT DISTINCT unique_key
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('failed', 'discarded') AND unique_key IS NOT NULL
"""


Row = TypeVar("Row", bound=tuple[Any, ...])


class KeyHolder(NamedTuple):
    unique_key: str
    id: int
    is_finished: bool
    waits: bool
    is_unclaimed: bool


def unique_key_holders(store: Store, keys: Sequence[str], *, seconds: float | None = None) -> dict[str, int]:
    """Return the ids of the jobs that hold these unique keys, by key. Frees the keys whose time is over.

    seconds: the caller's `unique_seconds`. If it is 0, waiting jobs that hold a key are locked until the caller's
    commit, so that they do not start before it.
    """
    ids = lock_waiting_holders(store, keys) if seconds == 0 else {}
    other_keys = [key for key in keys if key not in ids]
    if not other_keys:
        return ids
    holders = _holders(store, other_keys)
    if finished := [holder.unique_key for holder in holders if holder.is_finished]:
        free_unique_keys(store, finished)
        holders = _holders(store, other_keys)
    return ids | {holder.unique_key: holder.id for holder in holders}


def holder(store: Store, spec: JobSpec, key: str) -> Job | None:
    """Return the job that holds this unique key; `None` if the key has become free."""
    if spec.columns.get("unique_seconds") == 0:
        with explained_deadlock():
            lock_waiting_holders(store, [key])
    # Not `first()`, because its ORDER BY with LIMIT may make PostgreSQL read all finished jobs with this key.
    holders = Job._base_manager.using(store.alias).filter(KEY_IS_HELD, unique_key=key)
    job = next(iter(holders), None)
    if job is None or job.finished_at is None:
        return job
    free_unique_keys(store, [key])
    return next(iter(holders.all()), None)


def held(alias: str, keys: Collection[str]) -> dict[str, int]:
    """Return the keys that jobs in this database hold, each with the id of its job. Index: unique."""
    holding_time = ExpressionWrapper(F("unique_seconds") * timedelta(seconds=1), DurationField())
    holders = Job._base_manager.using(alias).filter(KEY_IS_HELD, unique_key__in=keys)
    current_holders = holders.filter(Q(finished_at=None) | Q(enqueued_at__gt=Now() - holding_time))
    return {key: id for key, id in current_holders.values_list("unique_key", "pk") if key is not None}


def _holders(store: Store, keys: Sequence[str]) -> list[KeyHolder]:
    return list(starmap(KeyHolder, store.rows(UNIQUE_KEY_HOLDERS, {"unique_keys": list(keys)})))


def lock_waiting_holders(store: Store, keys: Sequence[str]) -> dict[str, int]:
    """Lock the unclaimed jobs that hold these unique keys, until the caller's transaction ends.

    Returns the ids of these jobs, by key. Because claims skip locked rows, the commit notifies the workers again.
    """

    def lock(keys: Sequence[str], may_wait: bool) -> list[tuple[Any, ...]]:
        statement = LOCK_WAITING_HOLDERS if may_wait else LOCK_UNLOCKED_HOLDERS
        return store.rows(statement, {"unique_keys": list(keys)})

    if len(keys) > 1:
        keys = [holder.unique_key for holder in _holders(store, keys) if holder.is_unclaimed]
    holders = _lock_by_key(store, sorted(keys), lock)
    # In autocommit, the locks end with the statement, so the workers need no notification.
    if not store.connection.get_autocommit() and (
        queued := Counter(queue_name for _key, _id, queue_name, status in holders if status == "queued")
    ):
        wake(store, queued)
    return {key: id for key, id, _queue_name, _status in holders}


def replace_waiting(store: Store, values: Mapping[str, Any], calls: Sequence[EncodedCall]) -> list[ReplacedJob]:
    """Give each waiting job that holds one of these keys the arguments, due time and limit of the new call.

    Running jobs are not changed. Waits while another transaction has locked one of the jobs.
    """
    by_key = {call.unique_key: call for call in calls if call.unique_key is not None}

    def replace(keys: Sequence[str], may_wait: bool) -> list[ReplacedJob]:
        statement = REPLACE_WAITING if may_wait else REPLACE_UNLOCKED
        chosen_calls = [by_key[key] for key in keys]
        rows = store.rows(statement, {**values, **calls_as_values(chosen_calls)})
        return list(starmap(ReplacedJob, rows))

    keys = list(by_key)
    if len(keys) > 1:
        keys = [holder.unique_key for holder in _holders(store, keys) if holder.waits]
    return _lock_by_key(store, sorted(keys), replace)


def _lock_by_key(store: Store, keys: Sequence[str], lock: Callable[[Sequence[str], bool], list[Row]]) -> list[Row]:
    """Call `lock`, which locks waiting jobs that hold keys, so that no claimed job stays locked. Returns its rows.

    PostgreSQL locks the newest version of a row, and only then checks the condition. So a job that a worker has just
    claimed is locked but not returned. Therefore, if `lock` returns fewer rows than keys, its statement is rolled back,
    and each half of the sorted keys is tried on its own. With several keys, `lock` does not wait for locks. With a
    single key it waits, which cannot deadlock: this key comes after the keys of all jobs that stay locked, and none of
    these jobs is running.
    """
    if not keys:
        return []
    may_wait, in_transaction = len(keys) == 1, not store.connection.get_autocommit()
    with transaction.atomic(using=store.alias) if in_transaction else nullcontext():
        rows = lock(keys, may_wait)
        if len(rows) == len(keys):
            return rows
        if in_transaction:
            transaction.set_rollback(True, using=store.alias)
    if may_wait:
        return []
    kept_rows = [] if in_transaction else rows
    kept_keys = {key for key, *_ in kept_rows}
    rest = [key for key in keys if key not in kept_keys]
    middle = (len(rest) + 1) // 2
    return kept_rows + _lock_by_key(store, rest[:middle], lock) + _lock_by_key(store, rest[middle:], lock)


def free_unique_keys(store: Store, keys: Sequence[str]) -> list[str]:
    """Free the keys whose jobs are finished and whose time is over. Returns the freed keys."""
    return [key for (key,) in store.rows(FREE_UNIQUE_KEYS, {"unique_keys": list(keys)})]


def unique_keys_of(store: Store, ids: Sequence[int]) -> list[str]:
    return [key for (key,) in store.rows(UNIQUE_KEYS_OF, {"ids": list(ids)})]


def enqueue_unique(
    store: Store,
    spec: JobSpec,
    values: Mapping[str, Any],
    calls: Sequence[EncodedCall],
    *,
    announce: Callable[..., object],
) -> DeferredJobs:
    """Insert jobs, some of which have unique keys. Repeats until each key belongs to a job.

    announce: called with each batch of new jobs, to notify workers and supervisors and to send the event.
    """
    if spec.on_conflict == "raise":
        _require_distinct_keys(calls)
    calls_to_write = missing = in_key_order(calls, last=spec.replaces)
    ids_without_key: list[int] = []
    keyed: dict[str, tuple[int, CallOutcome]] = {}
    with transaction.atomic(using=store.alias) if spec.on_conflict == "raise" else nullcontext():
        while missing:
            inserted, replaced = _write_unique(store, spec, values, missing, announce=announce)
            ids_without_key += [id for id, key in inserted if key is None]
            keyed.update({key: (id, "created") for id, key in inserted if key is not None})
            keyed.update({job.unique_key: (job.id, "replaced") for job in replaced})
            missing = [call for call in missing if call.unique_key is not None and call.unique_key not in keyed]
            if missing:
                taken = [call.unique_key for call in missing if call.unique_key is not None]
                holders = unique_key_holders(store, taken, seconds=spec.columns.get("unique_seconds"))
                if holders and spec.on_conflict == "raise":
                    raise taken_by(store.alias, list(holders.values()))
                keyed |= {key: (id, "existing") for key, id in holders.items()}
                missing = [call for call in missing if call.unique_key not in keyed]
    return _report(calls, calls_to_write, sorted(ids_without_key), keyed)


def _write_unique(
    store: Store,
    spec: JobSpec,
    values: Mapping[str, Any],
    calls: Sequence[EncodedCall],
    *,
    announce: Callable[..., object],
) -> tuple[list[tuple[int, str | None]], list[ReplacedJob]]:
    """Insert these calls, sorted by key, or replace jobs. Returns inserted jobs with their keys, and replaced jobs."""
    keys: list[str | None] = [call.unique_key for call in calls]
    parameters = {**calls_as_values(calls), "number": len(calls)}
    [(ids, inserted_keys, queued, delay)] = store.rows(ENQUEUE_MANY_UNIQUE, {**values, **parameters})
    inserted = list(zip(ids or (), inserted_keys or keys, strict=False))  # no `inserted_keys`: all were inserted
    replaced: list[ReplacedJob] = []
    if spec.replaces and len(inserted) < len(calls):
        keys_written = {key for _id, key in inserted}
        replaced = replace_waiting(store, values, [call for call in calls if call.unique_key not in keys_written])
    if inserted or replaced:
        queued += sum(job.status == "queued" for job in replaced)
        delays = [job.delay for job in replaced] + ([delay] if inserted else [])
        announce(store, spec, [id for id, _key in inserted], calls, queued=queued, delay=min(delays))
    return inserted, replaced


def taken_by(alias: str, job_ids: Sequence[int]) -> UniqueKeyTaken:
    names = ", ".join(job_name(alias, id) for id in job_ids[:10])
    message = f"Nothing was written, because a unique key of this call is held by job {names}."
    return UniqueKeyTaken(message, job_id=job_ids[0], handle=handle_of(alias, job_ids[0]))


def _require_distinct_keys(calls: Sequence[EncodedCall]) -> None:
    """Raise `UniqueKeyTaken` if two of the calls have the same unique key."""
    positions: dict[str, int] = {}
    for position, call in enumerate(calls):
        if call.unique_key is not None and positions.setdefault(call.unique_key, position) != position:
            raise UniqueKeyTaken(f"call {position}: call {positions[call.unique_key]} has the same unique key.")


def in_key_order(calls: Sequence[EncodedCall], *, last: bool) -> list[EncodedCall]:
    """Return calls without a key, then one call per key, sorted so that two batches with equal keys never deadlock.

    If several calls share a key, returns only the first of these calls, or with `last` the last one.
    """
    keyed = {call.unique_key: call for call in (calls if last else reversed(calls)) if call.unique_key is not None}
    return [call for call in calls if call.unique_key is None] + [keyed[key] for key in sorted(keyed)]


def _report(
    calls: Sequence[EncodedCall],
    written: Sequence[EncodedCall],
    ids_without_key: Sequence[int],
    keyed: Mapping[str, tuple[int, CallOutcome]],
) -> DeferredJobs:
    """Return the id and outcome of each call. Of several calls with one key, only the call in `written` was written."""
    next_ids, written_object_ids = iter(ids_without_key), {id(call) for call in written}
    ids: list[int] = []
    outcomes: list[CallOutcome] = []
    for call in calls:
        if call.unique_key is None:
            ids.append(next(next_ids))
            outcomes.append("created")
        else:
            job_id, outcome = keyed[call.unique_key]
            ids.append(job_id)
            outcomes.append(outcome if id(call) in written_object_ids else "existing")
    return DeferredJobs(ids, outcomes)

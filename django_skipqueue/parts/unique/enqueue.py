"""Unique keys: which job holds a key, and the enqueue of calls whose keys may be taken.

The predicate of the unique index, which every statement here repeats, says whether a job holds its key.
`unique_seconds` says for how long. NULL: until the job is finished. 0: until a worker claims the job for the first
time. A lease never becomes 0 again, so no retry, release or recovery takes the key back. Any other number: for this
time from the enqueue, and until the job is finished. The next enqueue or retry that needs the key then frees it by
writing NULL.

Invariant: the unique index decides whether a job is inserted. The reads before and after only say which job holds the
key. If another job holds the key by then, the enqueue starts again. After a function returns, the caller's transaction
has locked no running job, so the settle of a running job never waits for the caller's commit.

Used by the enqueues, and by the manual retry.
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

# enqueue_many, calls with unique keys → one row: the ids of the inserted jobs, ascending; their unique keys in the
# order of the ids, or NULL if every call was inserted, since ids ascend in the order of the calls; the number of queued
# jobs, and the seconds until the first job is due. Index: unique. `unique_keys` has an element for each call; NULL: a
# call without a key. The calls are sorted by key, so that two batches with the same keys wait for each other and never
# deadlock. A call is not inserted if a job, or an earlier call of the batch, has its key.
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

# enqueue and enqueue_many that replace, after a conflict → the holders that wait, which now have the arguments of the
# call: unique_key, id, status, run_after, enqueued_at, and the seconds until the job is due. Each key is there once.
# ON CONFLICT DO UPDATE would lock a row before it checks the condition, and so would keep a running job locked until
# the caller's commit. Index: unique, the primary key.
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

# enqueue_many that replaces several jobs → as REPLACE_WAITING, without holders that somebody has locked. Index: unique,
# the primary key.
REPLACE_UNLOCKED = joined(_REPLACE_WAITING, **_REPLACING, skip=" SKIP LOCKED")

# enqueue_many, after a conflict → the keys that jobs hold, each with the id of its job, and whether the job is
# finished, waits, or waits for its first attempt. Index: unique.
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

# enqueue and enqueue_many that ask for a key until the start, after a conflict → the keys of the holders that have not
# been claimed, with id, queue and status. Locks their rows until the caller's commit, in the order of the keys: no
# worker claims such a job before the commit, so its run sees what the caller has written. Several callers share the
# lock. Index: unique.
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

# enqueue_many that asks for several keys until the start → as LOCK_WAITING_HOLDERS, without holders that somebody
# writes. Index: unique.
LOCK_UNLOCKED_HOLDERS = joined(_LOCK_WAITING_HOLDERS, holds_key=HOLDS_KEY, skip=" SKIP LOCKED")

# enqueue, enqueue_many, retry, after a conflict with a finished job → the freed keys: their jobs are finished, and the
# time of the keys is over. Locks in the order of the keys. Index: unique.
FREE_UNIQUE_KEYS = joined(
    """
WITH over AS MATERIALIZED (
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
WHERE job.id = ANY (ARRAY (SELECT id FROM over))
RETURNING job.unique_key
""",
    holds_key=HOLDS_KEY,
)

# retry, after a conflict → the unique keys of these jobs. Index: the primary key.
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
    """The ids of the jobs that hold these unique keys, by key. Frees the keys whose time is over.

    seconds: `unique_seconds` of the caller's spec. With 0, the waiting holders are locked until the caller's commit, so
    that they do not start before it.
    """
    found = lock_waiting_holders(store, keys) if seconds == 0 else {}
    others = [key for key in keys if key not in found]
    if not others:
        return found
    rows = _holders(store, others)
    if finished := [each.unique_key for each in rows if each.is_finished]:
        free_unique_keys(store, finished)
        rows = _holders(store, others)
    return found | {each.unique_key: each.id for each in rows}


def holder(store: Store, spec: JobSpec, key: str) -> Job | None:
    """The job that holds this unique key; `None`: the key is free by now."""
    if spec.columns.get("unique_seconds") == 0:
        with explained_deadlock():
            lock_waiting_holders(store, [key])
    # Not `first()`: its ORDER BY with LIMIT may make PostgreSQL read all finished jobs with this key.
    holders = Job._base_manager.using(store.alias).filter(KEY_IS_HELD, unique_key=key)
    found = next(iter(holders), None)
    if found is None or found.finished_at is None:
        return found
    free_unique_keys(store, [key])
    return next(iter(holders.all()), None)


def held(alias: str, keys: Collection[str]) -> dict[str, int]:
    """The keys among these that jobs in this database hold, each with the id of its job. Index: unique."""
    window = ExpressionWrapper(F("unique_seconds") * timedelta(seconds=1), DurationField())
    holders = Job._base_manager.using(alias).filter(KEY_IS_HELD, unique_key__in=keys)
    in_time = holders.filter(Q(finished_at=None) | Q(enqueued_at__gt=Now() - window))
    return {key: id for key, id in in_time.values_list("unique_key", "pk") if key is not None}


def _holders(store: Store, keys: Sequence[str]) -> list[KeyHolder]:
    return list(starmap(KeyHolder, store.rows(UNIQUE_KEY_HOLDERS, {"unique_keys": list(keys)})))


def lock_waiting_holders(store: Store, keys: Sequence[str]) -> dict[str, int]:
    """Lock the jobs that hold these unique keys and have not been claimed, until the caller's transaction ends.

    Returns their ids, by key. Claims pass over the locked rows, so the workers are notified again at the commit.
    """

    def lock(keys: Sequence[str], waits: bool) -> list[tuple[Any, ...]]:
        statement = LOCK_WAITING_HOLDERS if waits else LOCK_UNLOCKED_HOLDERS
        return store.rows(statement, {"unique_keys": list(keys)})

    if len(keys) > 1:
        keys = [each.unique_key for each in _holders(store, keys) if each.is_unclaimed]
    rows = _lock_by_key(store, sorted(keys), lock)
    # In autocommit, the locks end with the statement, so the workers need no notification.
    if not store.connection.get_autocommit() and (
        queued := Counter(queue for _, _, queue, status in rows if status == "queued")
    ):
        wake(store, queued)
    return {key: id for key, id, _, _ in rows}


def replace_waiting(store: Store, values: Mapping[str, Any], calls: Sequence[EncodedCall]) -> list[ReplacedJob]:
    """Update each waiting job that holds one of these keys with the arguments, due time and limit of the new call.

    A running job stays as it is. Blocks while another transaction has locked one of the jobs.
    """
    by_key = {call.unique_key: call for call in calls if call.unique_key is not None}

    def replace(keys: Sequence[str], waits: bool) -> list[ReplacedJob]:
        statement = REPLACE_WAITING if waits else REPLACE_UNLOCKED
        chosen = [by_key[key] for key in keys]
        rows = store.rows(statement, {**values, **calls_as_values(chosen)})
        return list(starmap(ReplacedJob, rows))

    keys = list(by_key)
    if len(keys) > 1:
        keys = [each.unique_key for each in _holders(store, keys) if each.waits]
    return _lock_by_key(store, sorted(keys), replace)


def _lock_by_key(store: Store, keys: Sequence[str], lock: Callable[[Sequence[str], bool], list[Row]]) -> list[Row]:
    """Call `lock` with these sorted keys. It sends a statement that locks the waiting holders, and returns rows by key.

    PostgreSQL locks the newest version of a row, and checks the condition afterwards: a job that was claimed in
    between is locked, and not returned. So a statement that returns fewer jobs than keys is rolled back, and each half
    of the keys is tried on its own. Several jobs are locked without waiting. A lone job is waited for: in the order of
    the keys it comes after all jobs that stay locked, and no job that stays locked runs.
    """
    if not keys:
        return []
    waits, in_transaction = len(keys) == 1, not store.connection.get_autocommit()
    with transaction.atomic(using=store.alias) if in_transaction else nullcontext():
        rows = lock(keys, waits)
        if len(rows) == len(keys):
            return rows
        if in_transaction:
            transaction.set_rollback(True, using=store.alias)
    if waits:
        return []
    kept = [] if in_transaction else rows
    done = {row[0] for row in kept}
    rest = [key for key in keys if key not in done]
    half = (len(rest) + 1) // 2
    return kept + _lock_by_key(store, rest[:half], lock) + _lock_by_key(store, rest[half:], lock)


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
    """Insert jobs of which some have unique keys. Repeats until each key belongs to a job.

    announce: called with each batch of new jobs: notifies the workers and supervisors, and sends the event.
    """
    if spec.on_conflict == "raise":
        _check_distinct(calls)
    chosen = missing = in_key_order(calls, last=spec.replaces)
    plain: list[int] = []
    keyed: dict[str, tuple[int, CallOutcome]] = {}
    with transaction.atomic(using=store.alias) if spec.on_conflict == "raise" else nullcontext():
        while missing:
            inserted, replaced = _write_unique(store, spec, values, missing, announce=announce)
            plain += [id for id, key in inserted if key is None]
            keyed.update({key: (id, "created") for id, key in inserted if key is not None})
            keyed.update({each.unique_key: (each.id, "replaced") for each in replaced})
            missing = [call for call in missing if call.unique_key is not None and call.unique_key not in keyed]
            if missing:
                taken = [call.unique_key for call in missing if call.unique_key is not None]
                holders = unique_key_holders(store, taken, seconds=spec.columns.get("unique_seconds"))
                if holders and spec.on_conflict == "raise":
                    raise taken_by(store.alias, list(holders.values()))
                keyed |= {key: (id, "existing") for key, id in holders.items()}
                missing = [call for call in missing if call.unique_key not in keyed]
    return _report(calls, chosen, sorted(plain), keyed)


def _write_unique(
    store: Store,
    spec: JobSpec,
    values: Mapping[str, Any],
    calls: Sequence[EncodedCall],
    *,
    announce: Callable[..., object],
) -> tuple[list[tuple[int, str | None]], list[ReplacedJob]]:
    """Insert these calls, sorted by key, or replace. Returns the inserted jobs with their keys, and replaced jobs."""
    keys: list[str | None] = [call.unique_key for call in calls]
    parameters = {**calls_as_values(calls), "number": len(calls)}
    [(ids, inserted_keys, queued, delay)] = store.rows(ENQUEUE_MANY_UNIQUE, {**values, **parameters})
    inserted = list(zip(ids or (), inserted_keys or keys, strict=False))
    replaced: list[ReplacedJob] = []
    if spec.replaces and len(inserted) < len(calls):
        written = {key for _, key in inserted}
        replaced = replace_waiting(store, values, [call for call in calls if call.unique_key not in written])
    if inserted or replaced:
        queued += sum(each.status == "queued" for each in replaced)
        delays = [each.delay for each in replaced] + [delay] * bool(inserted)
        announce(store, spec, [id for id, _ in inserted], calls, queued=queued, delay=min(delays))
    return inserted, replaced


def taken_by(alias: str, job_ids: Sequence[int]) -> UniqueKeyTaken:
    listed = ", ".join(job_name(alias, id) for id in job_ids[:10])
    message = f"Held by job {listed}: a unique key of this call. Nothing was written."
    return UniqueKeyTaken(message, job_id=job_ids[0], handle=handle_of(alias, job_ids[0]))


def _check_distinct(calls: Sequence[EncodedCall]) -> None:
    first: dict[str, int] = {}
    for position, call in enumerate(calls):
        if call.unique_key is not None and first.setdefault(call.unique_key, position) != position:
            raise UniqueKeyTaken(f"call {position}: call {first[call.unique_key]} has the same unique key.")


def in_key_order(calls: Sequence[EncodedCall], *, last: bool) -> list[EncodedCall]:
    """The calls without a key; then one call of each key, sorted, so that two batches with equal keys never deadlock.

    Of the calls that share a key, the result has the first call; with `last`, the last call.
    """
    keyed = {call.unique_key: call for call in (calls if last else reversed(calls)) if call.unique_key is not None}
    return [call for call in calls if call.unique_key is None] + [keyed[key] for key in sorted(keyed)]


def _report(
    calls: Sequence[EncodedCall],
    chosen: Sequence[EncodedCall],
    plain: Sequence[int],
    keyed: Mapping[str, tuple[int, CallOutcome]],
) -> DeferredJobs:
    """The id and the outcome for each call. Of calls that share a key, only the chosen call has written anything."""
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

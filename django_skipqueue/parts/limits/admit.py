"""Admit jobs by the limits of their keys.

The jobs of a key that hold a permit are in the index `limit_held`: the queued and the running jobs, and the jobs that
have a permit and wait for their rate. In a sequence, a job that waits for its next attempt holds the permit as well; if
the sequence halts, so does a job that failed. All other unfinished jobs of the key wait at the gate `limit`, in the
index `limit_waiting`.

A job has begun if it has `started_at`, which a release removes, or attempts, which a manual retry sets to 0. No verb
removes both. A new lease does not show that a job has begun: a job also gets a lease if it is discarded, or released,
before it has begun.

A column of the jobs says how many permits their key has. If somebody has changed the limit of a queue, the row of the
queue says how many permits the key of the queue (`queue:mail`) has. In that row 0, and in a job NULL, is any number.

A key of the kind `fair` does not limit the running jobs. Few of its jobs are queued at a time: one for each running
job, and two for each job that has just ended. So a key without competitors soon has all workers. A job is due at the
moment in which it is admitted. Otherwise workers would claim all jobs of a key that were enqueued long ago before the
jobs of other keys.

Rule: only `ADMIT_BY_KEY`, `CHOOSE_BY_KEY` with the claim that follows it, and `ADMIT_LONE` raise the number of held
permits. `ADMIT_BY_KEY` and `CHOOSE_BY_KEY` run after `LOCK_KEYS` in its transaction, and `ADMIT_LONE` runs after
`LOCK_KEY` in its transaction: only for the keys that are locked there. Each statement has a snapshot of its own, so it
sees what the previous holder of the lock has done. No statement waits for a lock, so none can be part of a deadlock.

Used after a key has changed: by enqueues, the time gate and the sweep. A worker admits with its exchange.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from psycopg.pq import TransactionStatus

from ...queue.fragments import INSERT_JOB, joined
from ...queue.gates import with_later
from ...queue.notify import notify_of_keys, wake
from ...queue.parameters import Admitted, Rows, Statement, as_array, fetched, pipelined
from ...queue.store import Store
from ...values.records import GateResult
from ..keyed.gate import KEYS_AT_ONCE, SWEEP_INTERVAL, KeyedGate, Sweep, admit_in_batches
from ..keyed.sql import PAUSED, indented, walking
from .columns import HOLDS, RANK
from .sql import DUE_WITH_PERMIT, LATER_GATE, LATER_KEY, LIMITED, LOCK_KEYS, PERMIT_GIVEN, WAITS_FOR_PERMIT

# How many jobs of the key hold a permit, and how many of these run. Nothing is counted if there is no limit, nor beyond
# the limit. The LIMIT also has the planner walk limit_held instead of making a bitmap of it: only a walk marks the
# entries of finished jobs as dead, so that the next walk passes them. A bitmap reads the rows of all of them each time.
_HELD = """LATERAL (
    SELECT count(*) AS number, count(*) FILTER (WHERE status = 'running') AS running
    FROM (
        SELECT status
        FROM skipqueue_job
        WHERE
            limit_key = {key}
            AND limited.permits IS NOT NULL{unless_free}
            AND {holds}
        LIMIT CASE WHEN {head}.limit_kind <> 'fair' THEN limited.permits END
    ) AS holder
) AS held"""

# The beginning of two statements. Of each locked key as many jobs are chosen as permits are free: the highest priority
# first, then the first enqueued. In a sequence the next job is a job that has begun before, else the first enqueued
# job. The next job of a sequence is not passed over, even if its row is locked. At most a thousand jobs of a key are
# chosen: more permits may be free after a limit was removed.
# The jobs of paused queues are passed over, so that a permit goes to a job that a worker may start. But a sequence
# keeps its order.
# Index: limit_held and limit_waiting, once for each key; for the key of a queue the primary key of queues. The table of
# queues is read whole: it has a row for each queue that was paused or limited.
_CHOSEN = joined(
    """WITH {paused},
chosen AS MATERIALIZED (
    SELECT job.place, job.queue_name, job.later_key
    FROM
        paused,
        unnest(
            (SELECT NULLIF(current_setting('skipqueue.locked_keys', true), '')::text[]),
            (SELECT NULLIF(current_setting('skipqueue.ended_jobs', true), '')::integer[]),
            (SELECT NULLIF(current_setting('skipqueue.free_keys', true), '')::boolean[])
        ) AS key (name, ended, is_free),
        LATERAL (
            SELECT
                {rank} AS rank,
                id, capacity, limit_kind
            FROM skipqueue_job
            WHERE
                {waits}
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
            ORDER BY 1, id
            LIMIT 1
        ) AS head,
        {limited},
        {held},
        LATERAL (
            SELECT ctid AS place, id, queue_name, {later} AS later_key
            FROM skipqueue_job
            WHERE
                {waits}
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
                AND (
                    {rank_within},
                    id
                ) >= (head.rank, head.id)
            ORDER BY
                {rank}, id
            LIMIT LEAST(1000, GREATEST(0, CASE
                WHEN head.limit_kind = 'fair'
                THEN GREATEST(head.capacity, held.running + 2 * key.ended) - (held.number - held.running)
                ELSE COALESCE(limited.permits - held.number, 1000)
            END))
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE head.limit_kind IN ('concurrency', 'fair') OR job.id = head.id
)""",
    paused=PAUSED,
    waits=indented(WAITS_FOR_PERMIT, 16),
    later=LATER_KEY,
    rank=indented(RANK, 16),
    rank_within=indented(RANK, 20),
    limited=indented(joined(LIMITED, key="key.name", head="head"), 8),
    held=indented(
        joined(
            _HELD,
            key="key.name",
            head="head",
            unless_free="\n            AND key.is_free IS NOT TRUE",
            holds=indented(HOLDS, 12),
        ),
        8,
    ),
)

# enqueue, worker, supervisor, after LOCK_KEYS → by queue: the number of admitted jobs, and the keys of the rates that
# jobs with a permit wait for now. Index: that of `_CHOSEN`.
ADMIT_BY_KEY = joined(
    """
{chosen},
admitted AS (
    UPDATE skipqueue_job AS job
    SET {given}
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING job.queue_name, job.status, {later} AS later_key
)
SELECT
    queue_name, count(*) FILTER (WHERE status = 'queued'), array_agg(later_key) FILTER (WHERE status = 'blocked')
FROM admitted
GROUP BY queue_name
""",
    chosen=_CHOSEN,
    later=LATER_KEY,
    given=indented(PERMIT_GIVEN, 4),
)

# worker that claims as well, after LOCK_KEYS → by queue: the number of chosen jobs without a rate, and the keys of the
# rates that jobs with a permit wait for now. The statement locks all chosen jobs, but writes only the jobs with a rate.
# CLAIM_OR_ADMIT, in the same transaction, writes the chosen jobs without a rate. Index: that of `_CHOSEN`.
CHOOSE_BY_KEY = joined(
    """
{chosen},
later AS (
    UPDATE skipqueue_job AS job
    SET gate = {gate},
        run_after = {due}
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen WHERE later_key IS NOT NULL))
)
SELECT
    queue_name,
    count(*) FILTER (WHERE later_key IS NULL),
    array_agg(later_key) FILTER (WHERE later_key IS NOT NULL),
    set_config(
        'skipqueue.chosen_jobs',
        COALESCE((SELECT array_agg(place) FROM chosen WHERE later_key IS NULL), '{}')::text,
        true
    )
FROM chosen
GROUP BY queue_name
""",
    chosen=_CHOSEN,
    gate=LATER_GATE,
    due=indented(DUE_WITH_PERMIT, 8),
)

# supervisor, worker before a drain ends → at most `limit` keys with blocked jobs, alphabetically after `after`, and
# whether a permit of each is free. Keys whose waiting jobs are all in paused queues are left out. Locks nothing.
# Index: limit_waiting and limit_held, once for each key; for the key of a queue the primary key of queues.
BLOCKED_KEYS = joined(
    """
WITH RECURSIVE {found},
{paused}
SELECT
    found.key,
    limited.permits IS NULL OR limited.permits > (
        SELECT CASE
            WHEN head.limit_kind = 'fair' THEN
                count(*) FILTER (WHERE status = 'queued')
                - GREATEST(count(*) FILTER (WHERE status = 'running') - head.capacity, 0)
            ELSE count(*)
        END
        FROM skipqueue_job
        WHERE
            limit_key = found.key
            AND limited.permits IS NOT NULL
            AND {holds}
    ) AS is_free
FROM
    found,
    paused,
    LATERAL (
        SELECT capacity, limit_kind
        FROM skipqueue_job
        WHERE
            {waits}
            AND limit_key = found.key
            AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
        ORDER BY
            {rank}, id
        LIMIT 1
    ) AS head,
    {limited}
ORDER BY found.key
""",
    found=walking(key="limit_key", waits=WAITS_FOR_PERMIT),
    paused=PAUSED,
    holds=indented(HOLDS, 12),
    waits=indented(WAITS_FOR_PERMIT, 12),
    rank=indented(RANK, 12),
    limited=indented(joined(LIMITED, key="found.key", head="head"), 4),
)


# enqueue after the commit, supervisor; outside of a transaction, before LOCK_KEYS → nothing. The commit of the
# admission does not wait for the disk: if a crash of the server loses it, the job is blocked as before. Reads no table.
ADMIT_WITHOUT_WAITING = "SELECT set_config('synchronous_commit', 'off', true)"

# enqueue of one job, after the commit → nothing. Locks its key for ADMIT_LONE, with the lock of LOCK_KEYS, unless
# another transaction has locked it. Reads no table.
_LOCK_KEY = """
SELECT set_config(
    'skipqueue.locked_key',
    CASE
        WHEN current_setting('transaction_isolation') <> 'read committed' THEN ''
        WHEN pg_try_advisory_xact_lock(1397442896, hashtext({key}::text) & 1023) THEN {key}::text
        ELSE ''
    END,
    true
)
"""


LOCK_KEY = joined(_LOCK_KEY, key="%(key)s")

# enqueue of one job, after LOCK_KEY → its queue, and the key of the rate that it waits for now, if it is admitted: a
# permit is free, and no other job of its key waits. PostgreSQL plans this statement in half the time of ADMIT_BY_KEY,
# which admits all other jobs. `IS TRUE` keeps PostgreSQL from looking for the row among all jobs of its key. Index: the
# primary key, limit_held and limit_waiting; for the key of a queue the primary key of queues.
_ADMIT_LONE = """
WITH chosen AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_job AS job
    WHERE
        id = {id}
        AND gate = 'limit'
        AND (limit_key = current_setting('skipqueue.locked_key', true)) IS TRUE
        AND (
            SELECT other.id
            FROM skipqueue_job AS other
            WHERE
                gate = 'limit'
                AND limit_key = {key}::text
                AND other.id <> {id}
            LIMIT 1
        ) IS NULL
        AND (
            SELECT CASE
                WHEN limited.permits IS NULL THEN true
                WHEN job.limit_kind = 'fair' THEN held.number - held.running < GREATEST(job.capacity, held.running)
                ELSE held.number < limited.permits
            END
            FROM
                {limited},
                {held}
        )
    LIMIT 1
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET {given}
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING job.queue_name, {later}{more}
"""


def admitting_lone(*, id: str, key: str, more: str = "") -> str:
    """Return ADMIT_LONE with these expressions for the job and its key. `more`: other columns that it returns."""
    held = joined(_HELD, key=f"{key}::text", head="job", unless_free="", holds=indented(HOLDS, 12))
    return joined(
        _ADMIT_LONE,
        id=id,
        key=key,
        limited=indented(joined(LIMITED, key=key, head="job"), 16),
        held=indented(held, 16),
        later=LATER_KEY,
        more=more,
        given=PERMIT_GIVEN,
    )


ADMIT_LONE = admitting_lone(id="%(id)s", key="%(key)s")

# enqueue of a job with a limit and without a unique key or a rate, outside of a transaction → as ENQUEUE_AND_NOTIFY, in
# one message: the INSERT and its commit; then, in another transaction, the admission with a NOTIFY. The last result has
# a row if the job is admitted.
ENQUEUE_AND_ADMIT = joined(
    """
BEGIN;
{insert}
RETURNING id, enqueued_at, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
{without_waiting};
{lock};
{admit}""",
    insert=INSERT_JOB,
    without_waiting=ADMIT_WITHOUT_WAITING,
    lock=joined(_LOCK_KEY, key="%(limit_key)s"),
    admit=admitting_lone(
        id="split_part(current_setting('skipqueue.inserted'), '|', 2)::bigint",
        key="%(limit_key)s",
        more=", pg_notify('skipqueue', queue_name)",
    ),
)


MISSED_INTERVAL = 0.02
"""Seconds until a supervisor checks a key again that another transaction had locked. They double each time."""

NOTIFIED_SHARE = 1 / 2
"""The share of the time that sweeps may take while notifications without keys ask for sweeps."""


def admission(ids: Iterable[int], keys: Iterable[str], *, claims: bool = False) -> list[Statement | None]:
    """The two statements that admit jobs of the keys of these jobs, and of these keys.

    claims: CLAIM_OR_ADMIT follows, and admits the chosen jobs that it does not claim.
    """
    admit = CHOOSE_BY_KEY if claims else ADMIT_BY_KEY
    return [(LOCK_KEYS, {"ids": as_array(ids), "keys": sorted(set(keys))}), (admit, {})]


def admit_keys(store: Store, keys: Collection[str]) -> Admitted:
    """Admit jobs of these keys, as far as permits are free. Notifies nobody.

    In a transaction of the caller the keys stay locked until the end of the transaction.
    """
    *_, locked, admitted = _admitted(store, admission((), keys))
    return Admitted.decode(locked, admitted)


def admit_lone(store: Store, id: int, key: str) -> Admitted | None:
    """Admit this job, if no other job of its key waits and a permit is free. Notifies nobody.

    Returns `None` if the job was not admitted: then `admit_keys` is to be called. Locks the key as `admit_keys` does.
    """
    statements: list[Statement | None] = [(LOCK_KEY, {"key": key}), (ADMIT_LONE, {"id": id, "key": key})]
    for queue_name, later_key in _admitted(store, statements)[-1]:
        return Admitted({queue_name: 1} if later_key is None else {}, [], frozenset({later_key} - {None}))
    return None


def _admitted(store: Store, statements: Sequence[Statement | None]) -> list[Rows]:
    """Run statements that admit jobs. Outside of a transaction, their commit does not wait for the disk."""
    connection = store.connection
    connection.ensure_connection()
    raw = connection.connection
    is_alone = raw.autocommit and raw.info.transaction_status == TransactionStatus.IDLE
    first: list[Statement | None] = [(ADMIT_WITHOUT_WAITING, {})] if is_alone else []
    with connection.wrap_database_errors:
        return [fetched(rows) for rows in pipelined(raw, [*first, *statements], None)]


def blocked_keys(store: Store, *, after: str = "", limit: int = KEYS_AT_ONCE) -> dict[str, bool]:
    """At most `limit` keys with blocked jobs, alphabetically after `after`: whether a permit of each is free."""
    return dict(store.rows(BLOCKED_KEYS, {"after": after, "limit": limit}))


def admit_on(store: Store, keys: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Admit jobs of these keys, and then, by the next gate, the jobs that wait there now.

    Returns the number of admitted jobs, by queue, and the keys that another transaction has locked.
    """
    found = admit_in_batches(store, keys, admit_keys)
    return with_later(store, "limit", found), found.missed


class LimitGate(KeyedGate):
    """Holds a job until a permit of its key is free.

    Most jobs are admitted right after their enqueue, or by the worker that settles a job of their key. A sweep over the
    keys with blocked jobs finds all other jobs that can be admitted. The gate looks by name at keys that were locked.
    """

    name = "limit"
    enqueue_alone = ENQUEUE_AND_ADMIT

    def __init__(self) -> None:
        super().__init__(partial(Sweep, blocked_keys, notified_share=NOTIFIED_SHARE))
        self._named_at: defaultdict[str, float] = defaultdict(float)
        """When to check the named keys, by database."""
        self._rests: dict[str, float] = {}
        """The seconds between the last check and the next one, by database, while a key stays locked."""

    def admit_keys(self, store: Store, keys: Collection[str]) -> Admitted:
        """Try each key that another transaction has locked once more: most transactions hold a lock for a millisecond.

        The supervisors are notified of the keys that are still locked then.
        """
        first = admit_in_batches(store, sorted(keys), admit_keys)
        if not first.missed:
            return first
        second = admit_in_batches(store, first.missed, admit_keys)
        notify_of_keys(store, self.name, second.missed)
        return Admitted(Counter(first.counts) + Counter(second.counts), second.missed, first.later | second.later)

    def admit_new(self, store: Store, keys: Mapping[str, int | None], *, is_urgent: bool) -> Admitted:
        lone = [(id, key) for key, id in keys.items() if id is not None and len(keys) == 1]
        admitted = next((admit_lone(store, id, key) for id, key in lone), None) or self.admit_keys(store, keys)
        if is_urgent and not (lone and admitted.counts):
            notify_of_keys(store, self.name, keys)
        return admitted

    def sweep(self, store: Store, *, limit: int) -> bool:
        """Admit jobs of the first keys with free permits. Called when a drain may be over."""
        sweep = self._new_sweep()
        while True:
            admitted, _ = sweep.run(store, admit_on, limit=limit)
            if admitted or not sweep.after:
                wake(store, admitted)
                return bool(admitted)

    def admit(self, store: Store, *, limit: int) -> GateResult:
        """Admit jobs of the named keys. If a sweep is due, also of keys with free permits among the next `limit`."""
        sweep = self._sweeps[store.alias]
        admitted = Counter(self._admit_named(store))
        if sweep.due_at <= time.monotonic():
            counts, missed = sweep.run(store, admit_on, limit=limit)
            admitted.update(counts)
            self.want(store.alias, missed)
        return GateResult(dict(admitted))

    def next_due(self, store: Store) -> float | None:
        """The seconds until the next check of named keys, or the next sweep; `None` if no job waits at this gate."""
        until_sweep = self._sweeps[store.alias].next_due(store)
        if not self._wanted[store.alias]:
            return until_sweep
        until_named = self._named_at[store.alias] - time.monotonic()
        return until_named if until_sweep is None else min(until_named, until_sweep)

    def want(self, alias: str, keys: Collection[str]) -> None:
        if not self._wanted[alias].issuperset(keys):
            self._named_at[alias] = 0.0
        super().want(alias, keys)

    def _admit_named(self, store: Store) -> Mapping[str, int]:
        """Admit jobs of the named keys. A key stays named while another transaction has locked it."""
        alias, wanted = store.alias, self._wanted[store.alias]
        if not wanted or self._named_at[alias] > time.monotonic():
            return {}
        counts, missed = admit_on(store, sorted(wanted))
        self._wanted[alias] = set(missed)
        rest = self._rests.get(alias, MISSED_INTERVAL)
        self._rests[alias] = min(2 * rest, SWEEP_INTERVAL) if missed else MISSED_INTERVAL
        self._named_at[alias] = time.monotonic() + self._rests[alias]
        return counts

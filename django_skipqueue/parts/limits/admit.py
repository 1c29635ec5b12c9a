"""Admit the jobs that wait for a permit of their key: a concurrency limit, a sequence or a fair share.

The index `limit_held` contains the jobs that hold a permit: queued and running jobs, and jobs that have their permit
but still wait for a rate limit. In a sequence, a job that has begun and waits for its next attempt, or is held, also
holds the permit, and so does the failed job at which a sequence has halted. All other unfinished jobs with a limit wait
at the gate `limit`, in the index `limit_waiting`.

A job has begun if `started_at` is set or `attempts` is above 0. A release clears `started_at`, and a manual retry sets
`attempts` to 0, but no verb does both. The lease does not show whether a job has begun: a job that is discarded or
released before its first attempt also gets a new lease.

The job's column `capacity` says how many permits its key has; NULL means unlimited. If somebody has changed the limit
of a queue, the number in the queue's row counts instead for the queue's key (`queue:mail`). In the queue's row, 0 means
unlimited.

A key of the kind `fair` does not limit how many of its jobs run. It limits how many of them are queued: one for each
running job, and two for each job that has just ended. So a key without competitors soon uses all workers. The
`run_after` of a fair job is set to the time of its admission. Otherwise, if a key's jobs were enqueued long ago,
workers would claim them all before the jobs of other keys.

Rule: only three statements raise the number of held permits: `ADMIT_BY_KEY`, `ADMIT_LONE`, and `CHOOSE_BY_KEY` together
with the claim that follows it. In the same transaction, `LOCK_KEYS` runs before `ADMIT_BY_KEY` and `CHOOSE_BY_KEY`, and
`LOCK_KEY` runs before `ADMIT_LONE`. They give permits only for the keys that are locked. Each statement has its own
snapshot, so it sees what the lock's previous holder has written. No statement waits for a lock, so none can be part of
a deadlock.

Enqueues, the time gate and the sweep call this module after a key's jobs have changed. A worker admits jobs in its
exchange, the round trip that settles and claims.
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
from ..keyed.sql import PAUSED, distinct_keys_scan, indented
from .columns import HOLDS, RANK
from .sql import DUE_WITH_PERMIT, LATER_GATE, LATER_KEY, LIMITED, LOCK_KEYS, PERMIT_GIVEN, WAITS_FOR_PERMIT

# Counts the key's jobs that hold a permit, and how many of them run. Stops counting at the limit, and counts nothing if
# there is no limit. The LIMIT also makes the planner walk the index limit_held instead of building a bitmap. Only a
# walk marks the entries of finished jobs as dead, so that the next walk skips them; a bitmap would read all their rows
# each time.
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

# The beginning of ADMIT_BY_KEY and CHOOSE_BY_KEY. For each free permit of a locked key, chooses one waiting job: the
# job with the highest priority, and among equal priorities the oldest. The statement skips jobs of paused queues, so
# that each permit goes to a job that a worker may start. In a sequence, the next job is the job that has begun before;
# if no job has begun, it is the oldest. A sequence waits for its next job, even if the job's row is locked or its queue
# is paused. At most 1,000 jobs of a key are chosen at once, because a limit that is removed frees any number of
# permits. `head`: the key's next job. `limited`: how many permits the key has. `held`: how many jobs hold one. Index:
# limit_held and limit_waiting, once per key; for a queue's key, the primary key of queues. The table of queues is read
# whole: it has one row for each queue that was ever paused or limited.
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
        ) AS key (name, ended_count, next_may_start),
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
                THEN GREATEST(head.capacity, held.running + 2 * key.ended_count) - (held.number - held.running)
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
            unless_free="\n            AND key.next_may_start IS NOT TRUE",
            holds=indented(HOLDS, 12),
        ),
        8,
    ),
)

# Sent by enqueue, the worker, the supervisor, after LOCK_KEYS. For each queue, returns the number of admitted jobs, and
# the rate keys of the jobs that now have a permit and wait for their rate limit. Index: as in `_CHOSEN`.
ADMIT_BY_KEY = joined(
    """
{chosen},
admitted AS (
    UPDATE skipqueue_job AS job
    SET {permit_given}
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
    permit_given=indented(PERMIT_GIVEN, 4),
)

# Sent by the worker that is about to claim, after LOCK_KEYS. For each queue, returns the number of chosen jobs without
# a rate limit, and the rate keys of the chosen jobs that now wait for their rate limit. The statement locks all chosen
# jobs, but updates only the jobs with a rate limit. CLAIM_OR_ADMIT then updates the rest in the same transaction.
# Index: as in `_CHOSEN`.
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

# Sent by the supervisor, and the worker before a drain ends. Returns the next `limit` keys with blocked jobs, in
# alphabetical order after the key `after`, and for each key whether one of its permits is free. Leaves out keys whose
# waiting jobs are all in paused queues. Locks nothing. Index: limit_waiting and limit_held, once per key; for a queue's
# key, the primary key of queues.
BLOCKED_KEYS = joined(
    """
WITH RECURSIVE {waiting_key},
{paused}
SELECT
    waiting_key.key,
    limited.permits IS NULL OR limited.permits > (
        SELECT CASE
            WHEN head.limit_kind = 'fair' THEN
                count(*) FILTER (WHERE status = 'queued')
                - GREATEST(count(*) FILTER (WHERE status = 'running') - head.capacity, 0)
            ELSE count(*)
        END
        FROM skipqueue_job
        WHERE
            limit_key = waiting_key.key
            AND limited.permits IS NOT NULL
            AND {holds}
    ) AS is_free
FROM
    waiting_key,
    paused,
    LATERAL (
        SELECT capacity, limit_kind
        FROM skipqueue_job
        WHERE
            {waits}
            AND limit_key = waiting_key.key
            AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
        ORDER BY
            {rank}, id
        LIMIT 1
    ) AS head,
    {limited}
ORDER BY waiting_key.key
""",
    waiting_key=distinct_keys_scan(key="limit_key", waits=WAITS_FOR_PERMIT),
    paused=PAUSED,
    holds=indented(HOLDS, 12),
    waits=indented(WAITS_FOR_PERMIT, 12),
    rank=indented(RANK, 12),
    limited=indented(joined(LIMITED, key="waiting_key.key", head="head"), 4),
)


# Sent by enqueue after the commit, and by the supervisor; before LOCK_KEYS, if there is no transaction yet. The commit
# of the admission then does not wait for the disk. If the server crashes and loses the admission, the job is still
# blocked. Reads no table.
ADMIT_WITHOUT_WAITING = "SELECT set_config('synchronous_commit', 'off', true)"

# Sent by enqueue of one job, after the commit. Takes the same lock as LOCK_KEYS, for the job's one key, unless another
# transaction holds it. ADMIT_LONE follows. Reads no table.
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

# Sent by enqueue of one job, after LOCK_KEY. If the job is admitted, returns its queue, and its rate key if it now
# waits for a rate limit; otherwise no row. The job is admitted if a permit is free and no other job of its key waits;
# ADMIT_BY_KEY admits all other jobs, but takes PostgreSQL twice as long to plan. `IS TRUE` keeps PostgreSQL from
# searching for the job's row among all jobs of its key. Index: the primary key, limit_held and limit_waiting; for a
# queue's key, the primary key of queues.
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
SET {permit_given}
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING job.queue_name, {later}{more}
"""


def admitting_lone(*, id: str, key: str, more: str = "") -> str:
    """Return the SQL of ADMIT_LONE. `id`, `key`: SQL expressions of the job's id and key; `more`: columns to return."""
    held = joined(_HELD, key=f"{key}::text", head="job", unless_free="", holds=indented(HOLDS, 12))
    return joined(
        _ADMIT_LONE,
        id=id,
        key=key,
        limited=indented(joined(LIMITED, key=key, head="job"), 16),
        held=indented(held, 16),
        later=LATER_KEY,
        more=more,
        permit_given=PERMIT_GIVEN,
    )


ADMIT_LONE = admitting_lone(id="%(id)s", key="%(key)s")

# Sent by enqueue of a job that has a limit, but no unique key and no rate limit; outside of a transaction. Returns the
# results of ENQUEUE_AND_NOTIFY. One message inserts the job and commits, then admits the job in a second transaction
# and sends the NOTIFY. The last result has a row if the job was admitted.
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
"""Seconds until a supervisor retries a key that another transaction had locked. The delay doubles each time."""

NOTIFIED_SHARE = 1 / 2
"""The share of a supervisor's time that sweeps may take while notifications that name no key ask for sweeps."""


def admission(ids: Iterable[int], keys: Iterable[str], *, claims: bool = False) -> list[Statement | None]:
    """Return the two statements that admit waiting jobs of these keys, and of the keys of the jobs `ids`.

    claims: whether CLAIM_OR_ADMIT follows, which claims some of the chosen jobs and admits the rest.
    """
    lock = (LOCK_KEYS, {"ids": as_array(ids), "keys": sorted(set(keys))})
    return [lock, (CHOOSE_BY_KEY if claims else ADMIT_BY_KEY, {})]


def admit_keys(store: Store, keys: Collection[str]) -> Admitted:
    """Admit waiting jobs of these keys while permits are free. Notifies no worker.

    Inside a transaction, the keys stay locked until the transaction ends.
    """
    *_, locked, admitted = _admitted(store, admission((), keys))
    return Admitted.decode(locked, admitted)


def admit_lone(store: Store, id: int, key: str) -> Admitted | None:
    """Admit this job if a permit is free and no other job of its key waits. Notifies no worker.

    Returns `None` if the job was not admitted; the caller then calls `admit_keys`. Locks the key as `admit_keys` does.
    """
    statements: list[Statement | None] = [(LOCK_KEY, {"key": key}), (ADMIT_LONE, {"id": id, "key": key})]
    for queue_name, later_key in _admitted(store, statements)[-1]:
        return Admitted({queue_name: 1} if later_key is None else {}, [], frozenset({later_key} - {None}))
    return None


def _admitted(store: Store, statements: Sequence[Statement | None]) -> list[Rows]:
    """Run these admitting statements. Outside of a transaction, their commit does not wait for the disk."""
    connection = store.connection
    connection.ensure_connection()
    psycopg_connection = connection.connection
    is_outside_transaction = (
        psycopg_connection.autocommit and psycopg_connection.info.transaction_status == TransactionStatus.IDLE
    )
    commit_setting: list[Statement | None] = [(ADMIT_WITHOUT_WAITING, {})] if is_outside_transaction else []
    with connection.wrap_database_errors:
        return [fetched(rows) for rows in pipelined(psycopg_connection, [*commit_setting, *statements], None)]


def blocked_keys(store: Store, *, after: str = "", limit: int = KEYS_AT_ONCE) -> dict[str, bool]:
    """Return the next `limit` keys with blocked jobs after the key `after`, each with whether a permit is free."""
    return dict(store.rows(BLOCKED_KEYS, {"after": after, "limit": limit}))


def admit_through_gates(store: Store, keys: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Admit jobs of these keys. If the jobs now wait at the next gate, let that gate admit them too.

    Returns the number of admitted jobs, by queue, and the keys that another transaction has locked.
    """
    admitted = admit_in_batches(store, keys, admit_keys)
    return with_later(store, "limit", admitted), admitted.missed


class LimitGate(KeyedGate):
    """Holds a job until a permit of its key is free.

    Most jobs are admitted right after their enqueue, or by the worker that settles a job of their key. A sweep over the
    keys with blocked jobs finds all other jobs that can be admitted. The gate also retries each key that another
    transaction had locked.
    """

    name = "limit"
    enqueue_alone = ENQUEUE_AND_ADMIT

    def __init__(self) -> None:
        super().__init__(partial(Sweep, blocked_keys, notified_share=NOTIFIED_SHARE))
        self._retry_at: defaultdict[str, float] = defaultdict(float)
        """For each database alias: the monotonic time of the next attempt at the wanted keys."""
        self._retry_delays: dict[str, float] = {}
        """For each database alias: the seconds between two attempts, while a key stays locked."""

    def admit_keys(self, store: Store, keys: Collection[str]) -> Admitted:
        """Admit jobs of these keys. Retry once each key that another transaction has locked, usually for a millisecond.

        Notify the supervisors of the keys that are still locked then.
        """
        first = admit_in_batches(store, sorted(keys), admit_keys)
        if not first.missed:
            return first
        second = admit_in_batches(store, first.missed, admit_keys)
        notify_of_keys(store, self.name, second.missed)
        return Admitted(Counter(first.counts) + Counter(second.counts), second.missed, first.later | second.later)

    def admit_new(self, store: Store, keys: Mapping[str, int | None], *, is_urgent: bool) -> Admitted:
        lone_jobs = [(id, key) for key, id in keys.items() if id is not None and len(keys) == 1]
        lone_admitted = next((admit_lone(store, id, key) for id, key in lone_jobs), None)
        admitted = lone_admitted or self.admit_keys(store, keys)
        if is_urgent and not (lone_jobs and admitted.counts):
            notify_of_keys(store, self.name, keys)
        return admitted

    def sweep(self, store: Store, *, limit: int) -> bool:
        """Admit jobs of the first keys that have free permits. A worker calls this when its queues seem empty."""
        sweep = self._new_sweep()
        while True:
            admitted, _missed_keys = sweep.run(store, admit_through_gates, limit=limit)
            if admitted or not sweep.after:
                wake(store, admitted)
                return bool(admitted)

    def admit(self, store: Store, *, limit: int) -> GateResult:
        """Admit jobs of the wanted keys. If a sweep is due, also check the next `limit` keys for free permits."""
        sweep = self._sweeps[store.alias]
        admitted = Counter(self._admit_wanted(store))
        if sweep.due_at <= time.monotonic():
            counts, missed = sweep.run(store, admit_through_gates, limit=limit)
            admitted.update(counts)
            self.want(store.alias, missed)
        return GateResult(dict(admitted))

    def next_due(self, store: Store) -> float | None:
        """Return the seconds until the next attempt at wanted keys, or the next sweep; `None` if no job waits."""
        until_sweep = self._sweeps[store.alias].next_due(store)
        if not self._wanted[store.alias]:
            return until_sweep
        until_retry = self._retry_at[store.alias] - time.monotonic()
        return until_retry if until_sweep is None else min(until_retry, until_sweep)

    def want(self, alias: str, keys: Collection[str]) -> None:
        if not self._wanted[alias].issuperset(keys):
            self._retry_at[alias] = 0.0
        super().want(alias, keys)

    def _admit_wanted(self, store: Store) -> Mapping[str, int]:
        """Admit jobs of the wanted keys. A key stays wanted while another transaction has locked it."""
        alias, wanted = store.alias, self._wanted[store.alias]
        if not wanted or self._retry_at[alias] > time.monotonic():
            return {}
        counts, missed = admit_through_gates(store, sorted(wanted))
        self._wanted[alias] = set(missed)
        delay = self._retry_delays.get(alias, MISSED_INTERVAL)
        self._retry_delays[alias] = min(2 * delay, SWEEP_INTERVAL) if missed else MISSED_INTERVAL
        self._retry_at[alias] = time.monotonic() + self._retry_delays[alias]
        return counts

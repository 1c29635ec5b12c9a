"""Admit the jobs that wait for a token of their rate limit.

Each key has a bucket of tokens; a job needs one token to start. A row of `skipqueue_rate` stores a bucket that is not
full. Its `full_at` is the time, by the database's clock, at which the bucket will be full again. How many tokens are
left follows from this time (the generic cell rate algorithm). Its `due_at` is the time at which the next blocked job
may be admitted; NULL means that no job is known to wait.

A job that waits for a token is `blocked`, and is in the index `rate_waiting`. The rate gate is the last gate: a job
that also has a concurrency limit first waits for its permit, and holds the permit while it waits for a token.

A key's rate is in the columns of its next job; NULL means unlimited. If somebody has changed the rate of a queue, the
queue's row contains the rate of the queue's key (`queue:mail`); there, 0 means unlimited. Without a rate, a thousand
jobs are admitted at a time.

Rule: only `ADMIT_BY_RATE` takes tokens. It takes tokens and admits jobs in one statement, so it never does one without
the other. `LOCK_RATES` runs before it in the same transaction, and it handles only the keys that are locked. It has its
own snapshot. `LOCK_RATES` waits for no lock, so it cannot be part of a deadlock.

This module runs when a job arrives at the rate gate, and in supervisors when a key is due.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from functools import partial

from ...queue.fragments import joined
from ...queue.notify import notify_of_keys, wake, wake_supervisors
from ...queue.parameters import Admitted, Statement, fetched, pipelined
from ...queue.store import Store
from ...values.records import GateResult
from ..keyed.gate import KEYS_AT_ONCE, KeyedGate, Sweep, admit_in_batches
from ..keyed.sql import PAUSED, distinct_keys_scan, indented, locking

# The condition of a job that waits for a token of its key.
WAITS_FOR_RATE = "gate = 'rate'"

# Sent by the supervisor; enqueue, after the commit. Returns the keys that another transaction has locked. It also keeps
# the keys that are locked now for ADMIT_BY_RATE. The locks are 1,024 advisory locks, like those of LOCK_KEYS, but of
# another namespace. Reads no table.
LOCK_RATES = locking(
    lock_namespace="1397442897",  # the number of LOCK_KEYS, plus 1
    locked_keys_setting="skipqueue.locked_rates",
    select_keys="SELECT unnest((SELECT %(keys)s::text[])) AS key",
)

# The rate of a key: `seconds` per token (NULL means unlimited) and `burst`. And how many of its jobs are queued,
# counted up to the burst. If somebody has changed the rate of a queue, `queue_rate` contains the interval and the
# burst.
RATED = """CROSS JOIN LATERAL (
    SELECT
        CASE WHEN queue_rate IS NULL THEN head.rate_interval ELSE NULLIF(queue_rate[1], 0) END AS seconds,
        CASE
            WHEN queue_rate IS NULL AND head.rate_interval IS NOT NULL THEN head.rate_burst
            WHEN queue_rate[1] > 0 THEN queue_rate[2]::integer
        END AS burst
    FROM (
        SELECT CASE
            WHEN starts_with(key.name, 'queue:')
            THEN (
                SELECT ARRAY[queue.rate_interval, queue.rate_burst]
                FROM skipqueue_queue AS queue
                WHERE name = substr(key.name, 7) AND queue.rate_interval IS NOT NULL
            )
        END AS queue_rate
    ) AS changed
) AS rated
CROSS JOIN LATERAL (
    SELECT count(*) AS number
    FROM (
        SELECT
        FROM skipqueue_job
        WHERE status = 'queued' AND rate_key = key.name
        LIMIT COALESCE(rated.burst, 0)
    ) AS queued_job
) AS queued"""

# Part of ADMIT_BY_RATE: when the key is due again; NULL if no more jobs wait. A key without a rate (`seconds_per_token`
# is NULL) is due at once, because one statement admits at most 1,000 of its jobs. Any other key is due when the next
# token arrives, but not before a pause of 0.05 seconds has passed, so that one statement admits many jobs of a fast
# key. If a full burst is queued, the pause is 0.5 seconds, because no job can be admitted until workers claim. The
# pause is never longer than a quarter of the time in which a burst of tokens arrives, so that a small bucket does not
# become full and lose tokens.
_NEXT_DUE_AT = """CASE
    WHEN has_more AND seconds_per_token IS NULL THEN statement_timestamp()
    WHEN has_more
    THEN statement_timestamp() + make_interval(
        secs => GREATEST(
            (missing_tokens - (burst - 1)) * seconds_per_token,
            LEAST(
                burst * seconds_per_token / 4,
                CASE WHEN queued + taken_now >= burst THEN 0.5 ELSE 0.05 END
            )
        )
    )
END"""

# Sent by the supervisor; enqueue, after the commit; after LOCK_RATES. Returns the number of admitted jobs for each
# queue. Step 1: for each locked key, compute `taken`, the number of tokens missing from the bucket. It is at most the
# burst, even if the clock was set back. It is at least the number of queued jobs, so that at most one burst is queued
# while no worker claims jobs. If jobs wait for tokens, the tokens of a tenth of a second are subtracted from that
# number: they came while a supervisor was late, and would not fit into a small burst. Step 2: compute `free`, how many
# jobs may be admitted so that at most one burst is queued afterwards. Step 3: admit `free` jobs in the order in which
# workers claim: the highest priority first, then the earliest `run_after`. Jobs of paused queues are skipped. A job
# that another transaction has just written may be locked, but is then not admitted and takes no token. Step 4: store
# when the key is due again, see `_NEXT_DUE_AT`. Index: rate_waiting, rate_queued and the primary key of the buckets,
# once per key; for a queue's key, the primary key of queues. The table of queues is read whole: it has one row for each
# queue that was ever paused or limited.
ADMIT_BY_RATE = joined(
    """
WITH {paused},
bucket AS MATERIALIZED (
    SELECT
        key.name,
        rated.seconds AS seconds_per_token,
        rated.burst,
        queued.number AS queued,
        tokens.taken,
        COALESCE(
            LEAST(floor(rated.burst - tokens.taken + 0.000001)::integer, rated.burst - queued.number::integer), 1000
        ) AS free
    FROM
        paused
        CROSS JOIN unnest((SELECT NULLIF(current_setting('skipqueue.locked_rates', true), '')::text[])) AS key (name)
        LEFT JOIN skipqueue_rate AS rate ON rate.key = key.name
        CROSS JOIN LATERAL (
            SELECT rate_interval, rate_burst
            FROM skipqueue_job
            WHERE
                {waits}
                AND rate_key = key.name
                AND queue_name <> ALL (paused.names)
            ORDER BY (-priority), run_after, id
            LIMIT 1
        ) AS head
        {rated}
        CROSS JOIN LATERAL (
            SELECT LEAST(
                GREATEST(
                    COALESCE(extract(epoch FROM rate.full_at - statement_timestamp())::float8 / rated.seconds, 0),
                    queued.number - CASE WHEN rate.due_at IS NULL THEN 0 ELSE 0.1 END / rated.seconds
                ),
                rated.burst
            ) AS taken
        ) AS tokens
),
chosen AS MATERIALIZED (
    SELECT job.place
    FROM
        paused,
        bucket,
        LATERAL (
            SELECT ctid AS place
            FROM skipqueue_job
            WHERE
                {waits}
                AND rate_key = bucket.name
                AND queue_name <> ALL (paused.names)
            ORDER BY (-priority), run_after, id
            LIMIT bucket.free
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = 'queued', gate = NULL
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING job.queue_name, job.rate_key
),
changed AS MATERIALIZED (
    SELECT
        bucket.*,
        admission.taken_now,
        bucket.taken + admission.taken_now AS missing_tokens,
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM skipqueue_job
                WHERE
                    {waits_within}
                    AND rate_key = bucket.name
                    AND queue_name <> ALL (paused.names)
                LIMIT admission.taken_now + 1
            ) AS waiting
        ) > admission.taken_now AS has_more
    FROM
        paused
        CROSS JOIN bucket
        LEFT JOIN (SELECT rate_key, count(*) AS number FROM admitted GROUP BY rate_key) AS counted
        ON counted.rate_key = bucket.name
        CROSS JOIN LATERAL (SELECT COALESCE(counted.number, 0) AS taken_now) AS admission
),
stored AS (
    INSERT INTO skipqueue_rate AS rate (key, full_at, due_at)
    SELECT
        name,
        statement_timestamp() + make_interval(secs => COALESCE(missing_tokens * seconds_per_token, 0)),
        {next_due_at}
    FROM changed
    ORDER BY name
    ON CONFLICT (key) DO UPDATE SET full_at = excluded.full_at, due_at = excluded.due_at
),
idle AS (
    UPDATE skipqueue_rate
    SET due_at = NULL
    WHERE
        key = ANY ((SELECT NULLIF(current_setting('skipqueue.locked_rates', true), '')::text[])::text[])
        AND due_at IS NOT NULL
        AND key <> ALL (ARRAY (SELECT name FROM bucket))
)
SELECT queue_name, count(*) FROM admitted GROUP BY queue_name
""",
    paused=PAUSED,
    waits=indented(WAITS_FOR_RATE, 16),
    waits_within=indented(WAITS_FOR_RATE, 20),
    rated=indented(RATED, 8),
    next_due_at=indented(_NEXT_DUE_AT, 8),
)

# Sent by the supervisor. Returns the seconds until the next key is due (negative if it is overdue); no row if no job
# waits. Index: rate_due.
NEXT_RATE = """
SELECT extract(epoch FROM due_at - statement_timestamp())::float8
FROM skipqueue_rate
WHERE due_at IS NOT NULL
ORDER BY due_at, full_at
LIMIT 1
"""

# Sent by the supervisor. Returns at most `limit` keys whose `due_at` has come, the earliest first. Index: rate_due.
DUE_RATES = """
SELECT key
FROM skipqueue_rate
WHERE due_at <= statement_timestamp()
ORDER BY due_at, full_at
LIMIT %(limit)s
"""

# Sent by the supervisor. Returns the next `limit` keys with blocked jobs, in alphabetical order after the key `after`.
# For each key, says whether it needs a check, because its `due_at` is unknown, or is too late after the clock was set
# back. Locks nothing. Index: rate_waiting and the primary key of the buckets, once for each key; for the key of a queue
# the primary key of queues.
BLOCKED_RATES = joined(
    """
WITH RECURSIVE {waiting_key}
SELECT
    waiting_key.key,
    (
        SELECT rate.due_at <= statement_timestamp() + make_interval(
            secs => GREATEST(
                COALESCE(
                    CASE
                        WHEN starts_with(waiting_key.key, 'queue:')
                        THEN (
                            SELECT queue.rate_interval
                            FROM skipqueue_queue AS queue
                            WHERE name = substr(waiting_key.key, 7)
                        )
                    END,
                    (
                        SELECT rate_interval
                        FROM skipqueue_job
                        WHERE
                            {waits}
                            AND rate_key = waiting_key.key
                        ORDER BY (-priority), run_after, id
                        LIMIT 1
                    )
                ),
                1
            )
        )
        FROM skipqueue_rate AS rate
        WHERE rate.key = waiting_key.key
    ) IS NOT TRUE AS needs_check
FROM waiting_key
""",
    waiting_key=distinct_keys_scan(key="rate_key", waits=indented(WAITS_FOR_RATE, 12), white_space="\n            "),
    waits=indented(WAITS_FOR_RATE, 28),
)

# Sent by the supervisor. Returns the number of deleted buckets. Deletes buckets that have been full for a minute and
# for which no job waits. A key without a row has a full bucket, so the row is not needed. Index: rate_due.
PRUNE_RATES = """
WITH full_again AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_rate
    WHERE due_at IS NULL AND full_at < statement_timestamp() - interval '1 minute'
    ORDER BY due_at, full_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM skipqueue_rate AS bucket
    WHERE bucket.ctid = ANY (ARRAY (SELECT place FROM full_again))
    RETURNING bucket.key
)
SELECT count(*) FROM deleted
"""


LEAST_INTERVAL = 0.02
"""The shortest time in seconds between two admissions by one process. A shorter time would admit no more jobs."""

VAIN_INTERVAL = 0.1
"""Seconds until the next admission after an admission of no job, because another supervisor was faster."""


def admit_rate_keys(store: Store, keys: Collection[str]) -> Admitted:
    """Admit waiting jobs of these keys while there are tokens. Notifies no worker.

    Inside a transaction, the keys stay locked until the transaction ends.
    """
    connection = store.connection
    connection.ensure_connection()
    statements: list[Statement | None] = [(LOCK_RATES, {"keys": sorted(set(keys))}), (ADMIT_BY_RATE, {})]
    with connection.wrap_database_errors:
        locked, admitted = pipelined(connection.connection, statements, None)
        missed_keys = [key for missed, _locked in fetched(locked) for key in missed or ()]
        return Admitted(dict(fetched(admitted)), missed_keys)


def due_rates(store: Store, *, limit: int = KEYS_AT_ONCE) -> list[str]:
    return [key for (key,) in store.rows(DUE_RATES, {"limit": limit})]


def next_rate(store: Store) -> float | None:
    """Return the seconds until the next key is due, negative if it is overdue; `None` if no job is known to wait."""
    return next((seconds for (seconds,) in store.rows(NEXT_RATE)), None)


def blocked_rates(store: Store, *, after: str = "", limit: int = KEYS_AT_ONCE) -> dict[str, bool]:
    """Return the next `limit` keys with blocked jobs after the key `after`, each with whether it needs a check."""
    return dict(store.rows(BLOCKED_RATES, {"after": after, "limit": limit}))


def prune_rates(store: Store, *, limit: int = KEYS_AT_ONCE) -> int:
    """Delete buckets that are full. Returns the number of deleted buckets."""
    [(number_deleted,)] = store.rows(PRUNE_RATES, {"limit": limit})
    return int(number_deleted)


def _same_keys(_store: Store, keys: list[str]) -> list[str]:
    """Return the keys that a sweep has found. The caller admits their jobs."""
    return keys


RATES_AFTER_COMMIT = 100
"""How many keys the enqueuing process handles itself after its commit. Supervisors handle the rest."""


class RateGate(KeyedGate):
    """Holds a job until its key has a token.

    Most jobs are admitted right after their enqueue, or at the time `due_at` of their key's row. A sweep over the keys
    with blocked jobs finds all other jobs that can be admitted.
    """

    name = "rate"

    def __init__(self) -> None:
        super().__init__(partial(Sweep, blocked_rates))
        self._next_admission_at: defaultdict[str, float] = defaultdict(float)
        """For each database alias: the earliest monotonic time of the next admission."""

    def admit_keys(self, store: Store, keys: Collection[str]) -> Admitted:
        admitted = admit_in_batches(store, sorted(keys), admit_rate_keys)
        notify_of_keys(store, self.name, admitted.missed)
        return admitted

    def admit_new(self, store: Store, keys: Mapping[str, int | None], *, is_urgent: bool) -> Admitted:
        sorted_keys = sorted(keys)
        notify_of_keys(store, self.name, sorted_keys[RATES_AFTER_COMMIT:])
        admitted = self.admit_keys(store, sorted_keys[:RATES_AFTER_COMMIT])
        wake_supervisors(store, [next_rate(store) or 0.0])  # an idle supervisor would check after `SOON` seconds
        if is_urgent:
            notify_of_keys(store, self.name, sorted_keys)
        return admitted

    def sweep(self, store: Store, *, limit: int) -> bool:
        """Admit jobs of all keys that have tokens. A worker calls this when its queues seem empty."""
        sweep = self._new_sweep()
        admitted: Counter[str] = Counter()
        while True:
            keys = {*due_rates(store), *sweep.run(store, _same_keys, limit=KEYS_AT_ONCE)}
            admitted.update(admit_rate_keys(store, keys).counts)
            if not sweep.after:
                wake(store, admitted)
                return bool(admitted)

    def admit(self, store: Store, *, limit: int) -> GateResult:
        if self._next_admission_at[store.alias] > time.monotonic():
            return GateResult({})
        most, sweep, wanted = min(limit, KEYS_AT_ONCE), self._sweeps[store.alias], self._wanted[store.alias]
        keys = {*sorted(wanted)[:most], *due_rates(store, limit=most)}
        if sweep.due_at <= time.monotonic():
            keys.update(sweep.run(store, _same_keys, limit=most))
        if not keys:
            return GateResult({})
        admitted = admit_rate_keys(store, keys)
        wanted -= keys
        wanted.update(admitted.missed)
        interval = LEAST_INTERVAL if admitted.counts else VAIN_INTERVAL
        self._next_admission_at[store.alias] = time.monotonic() + interval
        return GateResult(dict(admitted.counts))

    def next_due(self, store: Store) -> float | None:
        """Return the seconds until the gate has to check a key; `None` if no job waits at this gate."""
        waits = [wait for wait in (self._sweeps[store.alias].next_due(store), next_rate(store)) if wait is not None]
        if self._wanted[store.alias]:
            waits.append(0.0)
        until_admission = self._next_admission_at[store.alias] - time.monotonic()
        return max(min(waits), until_admission) if waits else None

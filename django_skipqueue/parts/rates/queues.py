"""The rates of whole queues: which queues have one, the columns that it sets in jobs, and what changes it.

Invariant: a job that has a key of its own keeps it. A queue's rate is for the jobs that name no rate.

Invariant: no statement here admits a job. Jobs that were admitted beyond a lowered rate wait again.
`parts.rates.admit` says which jobs of a key have a token.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...conf import settings
from ...queue.gates import admit_after_commit
from ...queue.notify import LIMITS_PAYLOAD, QUEUES_PAYLOAD, RATE_PREFIX, notify_of_keys, notify_supervisors
from ...queue.parameters import BATCH, noted
from ...values.columns import check_columns
from ...values.records import EncodedCall
from ...values.settings import burst_of, interval_of
from ..keyed.sql import key_of
from .events import QueueRated

if TYPE_CHECKING:
    from ...queue.store import Store

from ...queue.store import in_each
from ..keyed.sql import require_changed


class RateColumns(NamedTuple):
    """The columns of a job whose queue limits how many start in a time; all `None` if any number may."""

    rate_key: str | None = None
    rate_interval: float | None = None
    """`None` with a key: any number, until somebody sets a rate."""
    rate_burst: int | None = None


def rated_queues() -> Collection[str]:
    """The queues whose jobs have the key of their queue as that of a rate, by `SKIPQUEUE["QUEUES"]`."""
    return [name for name, limits in settings.queues.items() if "rate" in limits]


def rate_columns_of(queue_name: str) -> RateColumns:
    limits = settings.queues.get(queue_name)
    if limits is None or "rate" not in limits:
        return RateColumns()
    if limits["rate"] is None:
        return RateColumns(key_of(queue_name))
    interval = interval_of(limits["rate"])
    return RateColumns(key_of(queue_name), interval, burst_of(None, interval))


def of_queue(queue_name: str, calls: Sequence[EncodedCall]) -> dict[str, Any]:
    """The columns that the queue gives to jobs: none, if a call has a rate of its own. Either all have, or none."""
    if any("rate_key" in call.columns for call in calls):
        return {}
    return {name: value for name, value in rate_columns_of(queue_name)._asdict().items() if value is not None}


# supervisor, after the rate of a queue was changed → the keys of the jobs that wait for a token again. A rate that was
# lowered, or is new, counts at once for the jobs that were admitted before and have not been claimed: of those no more
# are left than the burst. They keep the permit of their limit. At most `limit` jobs are looked at beside those that may
# stay. Index: rate_queued; the table of queues is read whole: it has a row for each queue that was paused or limited.
# The rows of these jobs are found by the primary key. With a plain `status = 'queued'` a planner that expects few such
# rows may walk the whole claim index instead, on PostgreSQL 15 once for each job.
BLOCK_UNRATED = """
WITH surplus AS MATERIALIZED (
    SELECT job.id
    FROM
        skipqueue_queue AS queue,
        LATERAL (
            SELECT CASE
                WHEN queue.rate_interval IS NOT NULL THEN queue.rate_burst::integer
                ELSE (
                    SELECT rate_burst
                    FROM skipqueue_job
                    WHERE rate_key = 'queue:' || queue.name AND status = 'queued'
                    LIMIT 1
                )
            END AS burst
        ) AS rated,
        LATERAL (
            SELECT id, row_number() OVER (ORDER BY priority DESC, run_after, id) AS place
            FROM (
                SELECT id, priority, run_after
                FROM skipqueue_job
                WHERE rate_key = 'queue:' || queue.name AND status = 'queued' AND rated.burst IS NOT NULL
                LIMIT COALESCE(rated.burst, 0) + %(limit)s
            ) AS found
        ) AS queued
        JOIN skipqueue_job AS job USING (id)
    WHERE queued.place > rated.burst AND job.status || '' = 'queued'
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', gate = 'rate'
    WHERE job.id = ANY (ARRAY (SELECT id FROM surplus)) AND job.status <> 'running'
    RETURNING job.rate_key
)
SELECT rate_key, count(*) FROM blocked GROUP BY rate_key
"""

# Queue.rate → the row has the rate, in place of the one before: NULL is that of the settings, 0 is none. Index: the
# primary key.
RATE_QUEUE = """
INSERT INTO skipqueue_queue AS queue (name, rate_interval, rate_burst)
VALUES (%(name)s, %(interval)s::float8, %(burst)s::smallint)
ON CONFLICT (name) DO UPDATE SET rate_interval = excluded.rate_interval, rate_burst = excluded.rate_burst
"""


def rate_queue(store: "Store", name: str, rate: str | None, *, by: str = "") -> None:
    """Set how many jobs of this queue may start in a time, such as "50/s"; `None`: any number.

    Raises `InvalidOption` for a value that cannot be used.
    """
    interval = 0.0 if rate is None else interval_of(rate)
    _set_rate(store, name, interval, burst_of(None, interval) if interval else 0, by)


def rate_queue_by_settings(store: "Store", name: str, *, by: str = "") -> None:
    _set_rate(store, name, None, None, by)


def _set_rate(store: "Store", name: str, interval: float | None, burst: int | None, by: str) -> None:
    check_columns({"queue_name": name})
    stored_by = noted(by, "")["by"]
    store.execute(RATE_QUEUE, {"name": name, "interval": interval, "burst": burst})
    admit_after_commit(store, {"rate": {key_of(name): None}})
    notify_supervisors(store, QUEUES_PAYLOAD)  # for `block_unrated`
    notify_supervisors(store, LIMITS_PAYLOAD)  # for a key that the caller could not lock
    store.send(QueueRated(store.alias, name, interval, stored_by))


def block_unrated(store: "Store", *, limit: int = BATCH) -> int:
    """Have up to `limit` queued jobs beyond the bursts of their queues wait again. Returns the number."""
    blocked = dict(store.rows(BLOCK_UNRATED, {"limit": limit}))
    notify_of_keys(store, RATE_PREFIX, blocked)
    return sum(blocked.values())


class RateVerbs:
    """Methods of `models.Queue`."""

    @staticmethod
    def rate(name: str, rate: str | None, *, by: str = "", database: str | None = None) -> None:
        """Set how many jobs of a queue may start in a time, such as "50/s"; `None`: any number.

        It holds for the jobs that were enqueued while `SKIPQUEUE["QUEUES"]` had a `rate` for this queue, `None`
        included. Jobs that are queued and have not been claimed wait again. Raises `InvalidOption` for a value that
        cannot be used, and for a queue without a `rate` in the settings, unless it was changed before. `database`: as
        of `pause`; the rate counts in each of them.
        """
        if rate_columns_of(name).rate_key is None:
            require_changed(name, "rate", "rate_interval")
        in_each(database, lambda store: rate_queue(store, name, rate, by=by))

    @staticmethod
    def rate_by_settings(name: str, *, by: str = "", database: str | None = None) -> None:
        """Let the rate of the settings hold again for this queue. `database`: as of `pause`."""
        in_each(database, lambda store: rate_queue_by_settings(store, name, by=by))

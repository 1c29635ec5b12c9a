"""The rates of whole queues: which queues have one, the columns that it sets in jobs, and what changes it.

Invariant: a job that has a key of its own keeps it. A queue's rate is for the jobs that name no rate.

Invariant: no statement here admits a job. Jobs that were admitted beyond a lowered rate wait again.
`parts.rates.admit` says which jobs of a key have a token.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...conf import settings
from ...events import logs
from ...events.events import Event
from ...queue.gates import admit_after_commit
from ...queue.notify import LIMITS_PAYLOAD, QUEUES_PAYLOAD, RATE_PREFIX, notify_of_keys, notify_supervisors
from ...queue.parameters import BATCH_ROWS, noted
from ...queue.store import in_each
from ...values.bounds import check_columns
from ...values.records import EncodedCall
from ...values.settings import burst_of, interval_of, rate_text
from ..keyed.sql import key_of, require_changed

if TYPE_CHECKING:
    from ...queue.store import Store


def rate_columns_of(queue_name: str) -> dict[str, Any]:
    """The columns of a job whose queue limits how many start in a time, by `SKIPQUEUE["QUEUES"]`; none if it does not.

    The key alone: any number may start, until somebody sets a rate.
    """
    limits = settings.queues.get(queue_name, {})
    if "rate" not in limits:
        return {}
    if limits["rate"] is None:
        return {"rate_key": key_of(queue_name)}
    interval = interval_of(limits["rate"])
    return {"rate_key": key_of(queue_name), "rate_interval": interval, "rate_burst": burst_of(None, interval)}


def of_queue(queue_name: str, calls: Sequence[EncodedCall]) -> dict[str, Any]:
    """The columns that the queue gives to jobs: none, if a call has a rate of its own. Either all have, or none."""
    if any("rate_key" in call.columns for call in calls):
        return {}
    return rate_columns_of(queue_name)


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


@dataclass(frozen=True)
class QueueRated(Event):
    """Somebody has changed the rate of a queue."""

    level = logging.WARNING

    database: str
    queue_name: str
    interval: float | None
    """Seconds for each job; 0: any number; `None`: as the settings say."""
    by: str

    def write_lines(self) -> None:
        rate = "settings" if self.interval is None else rate_text(self.interval) if self.interval else "none"
        logs.write_about_queue("queue_rated", self.queue_name, rate=rate, by=self.by)


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


def _set_rate(store: "Store", name: str, interval: float | None, burst: int | None, by: str) -> None:
    check_columns({"queue_name": name})
    stored_by = noted(by, "")["by"]
    store.execute(RATE_QUEUE, {"name": name, "interval": interval, "burst": burst})
    admit_after_commit(store, {"rate": {key_of(name): None}})
    notify_supervisors(store, QUEUES_PAYLOAD)  # for `block_unrated`
    notify_supervisors(store, LIMITS_PAYLOAD)  # for a key that the caller could not lock
    store.send(QueueRated(store.alias, name, interval, stored_by))


def block_unrated(store: "Store", *, limit: int = BATCH_ROWS) -> int:
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
        if not rate_columns_of(name):
            require_changed(name, "rate", "rate_interval")
        in_each(database, lambda store: rate_queue(store, name, rate, by=by))

    @staticmethod
    def rate_by_settings(name: str, *, by: str = "", database: str | None = None) -> None:
        """Let the rate of the settings hold again for this queue. `database`: as of `pause`."""
        in_each(database, lambda store: _set_rate(store, name, None, None, by))

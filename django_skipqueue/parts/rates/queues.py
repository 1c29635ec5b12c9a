"""Rate limits of whole queues: read them from the settings, change them, and apply a lowered rate to queued jobs.

A queue's rate applies only to jobs whose task has no rate.

No statement here admits a job. If a rate is lowered, the queued jobs beyond its burst are blocked again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...conf import settings
from ...events import logs
from ...events.events import Event
from ...queue.gates import admit_after_commit
from ...queue.notify import GATES_PAYLOAD, QUEUES_PAYLOAD, notify_of_keys, notify_supervisors
from ...queue.parameters import BATCH_ROWS, noted
from ...queue.store import Store, in_each
from ...values.bounds import check_columns
from ...values.records import EncodedCall
from ...values.settings import burst_of, interval_of, rate_text
from ..keyed.sql import key_of, require_changed


def rate_columns_of(queue_name: str) -> dict[str, Any]:
    """Return the rate columns for jobs in this queue; none if `SKIPQUEUE["QUEUES"]` gives the queue no rate.

    For the rate `None`, return only the key: jobs start without a limit until somebody sets a rate.
    """
    limits = settings.queues.get(queue_name, {})
    if "rate" not in limits:
        return {}
    if limits["rate"] is None:
        return {"rate_key": key_of(queue_name)}
    interval = interval_of(limits["rate"])
    return {"rate_key": key_of(queue_name), "rate_interval": interval, "rate_burst": burst_of(None, interval)}


def of_queue(queue_name: str, calls: Sequence[EncodedCall]) -> dict[str, Any]:
    """Return the job columns of the queue's rate; none if the calls' task has a rate. The calls are of one task."""
    return {} if any("rate_key" in call.columns for call in calls) else rate_columns_of(queue_name)


# Sent by the supervisor, after a queue's rate was changed. For each key, returns the number of jobs that are blocked
# again. A new or lowered rate applies at once to admitted jobs that no worker has claimed: at most one burst of them
# stays queued. A job that is blocked again keeps the permit of its concurrency limit. The statement reads one burst of
# queued jobs per queue, and at most `limit` more. Index: rate_queued, and the primary key for the jobs beyond the
# burst. The table of queues is read whole: it has one row for each queue that was ever paused or limited. `status ||
# ''` hides the condition from the planner. If the planner expects few queued rows, it may otherwise walk the whole
# claim index, on PostgreSQL 15 once per job.
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
    """The new rate: seconds from one start to the next; 0 means unlimited; `None` means the rate of the settings."""
    by: str

    def write_lines(self) -> None:
        own_rate = rate_text(self.interval) if self.interval else "none"
        rate = "settings" if self.interval is None else own_rate
        logs.write_about_queue("queue_rated", self.queue_name, rate=rate, by=self.by)


# Sent by Queue.rate. Sets the rate in the queue's row: NULL means the rate of the settings, 0 means unlimited. Index:
# the primary key.
RATE_QUEUE = """
INSERT INTO skipqueue_queue AS queue (name, rate_interval, rate_burst)
VALUES (%(name)s, %(interval)s::float8, %(burst)s::smallint)
ON CONFLICT (name) DO UPDATE SET rate_interval = excluded.rate_interval, rate_burst = excluded.rate_burst
"""


def _set_rate(store: Store, name: str, interval: float | None, burst: int | None, by: str) -> None:
    check_columns({"queue_name": name})
    stored_by = noted(by, "")["by"]
    store.execute(RATE_QUEUE, {"name": name, "interval": interval, "burst": burst})
    admit_after_commit(store, {"rate": {key_of(name): None}})
    notify_supervisors(store, QUEUES_PAYLOAD)  # for `block_unrated`
    notify_supervisors(store, GATES_PAYLOAD)  # for a key that the caller could not lock
    store.send(QueueRated(store.alias, name, interval, stored_by))


def block_unrated(store: Store, *, limit: int = BATCH_ROWS) -> int:
    """Block up to `limit` queued jobs that exceed their queue's burst. Returns the number of blocked jobs."""
    blocked = dict(store.rows(BLOCK_UNRATED, {"limit": limit}))
    notify_of_keys(store, "rate", blocked)
    return sum(blocked.values())


class RateVerbs:
    """The methods that this part adds to `models.Queue`."""

    @staticmethod
    def rate(name: str, rate: str | None, *, by: str = "", database: str | None = None) -> None:
        """Set how often jobs of a queue may start, such as "50/s"; `None` means unlimited.

        The rate applies to jobs that were enqueued while `SKIPQUEUE["QUEUES"]` had a `rate` for this queue, even
        `None`. Queued jobs that no worker has claimed wait again. Raises `InvalidOption` for an invalid rate, and for a
        queue without a `rate` in the settings, unless the queue's rate was changed before. `database`: as in `pause`;
        each database has this rate.
        """
        if not rate_columns_of(name):
            require_changed(name, "rate", "rate_interval")
        interval = 0.0 if rate is None else interval_of(rate)
        burst = burst_of(None, interval) if interval else 0
        in_each(database, lambda store: _set_rate(store, name, interval, burst, by))

    @staticmethod
    def rate_by_settings(name: str, *, by: str = "", database: str | None = None) -> None:
        """Go back to the rate that the settings give this queue. `database`: as in `pause`."""
        in_each(database, lambda store: _set_rate(store, name, None, None, by))

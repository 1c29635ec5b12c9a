"""Limits of whole queues: read them from the settings, change them, and apply a lowered limit to queued jobs.

A queue's limit applies only to jobs whose task has no limit.

No statement here admits a job. If a limit is lowered, the queued jobs beyond it are blocked again. `parts.limits.admit`
explains which of a key's jobs hold a permit.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...conf import settings
from ...events import logs
from ...events.events import Event
from ...exceptions import InvalidOption
from ...queue.fragments import joined
from ...queue.gates import admit_after_commit
from ...queue.notify import GATES_PAYLOAD, QUEUES_PAYLOAD, notify_supervisors
from ...queue.parameters import BATCH_ROWS, noted
from ...queue.store import Store, in_each
from ...values.bounds import check_columns
from ...values.records import EncodedCall
from ...values.settings import CONCURRENCY, is_concurrency
from ..keyed.sql import indented, key_of, require_changed
from .columns import HOLDS


def limit_columns_of(queue_name: str) -> dict[str, Any]:
    """Return the limit columns for jobs in this queue; none if `SKIPQUEUE["QUEUES"]` gives the queue no limit."""
    limits = settings.queues.get(queue_name, {})
    if "concurrency" not in limits:
        return {}
    return {"limit_key": key_of(queue_name), "limit_kind": "concurrency", "capacity": limits["concurrency"]}


def of_queue(queue_name: str, calls: Sequence[EncodedCall]) -> dict[str, Any]:
    """Return the job columns of the queue's limit; none if the calls' task has a limit. The calls are of one task."""
    if any("limit_key" in call.columns for call in calls):
        return {}
    return {name: value for name, value in limit_columns_of(queue_name).items() if value is not None}


# Sent by the supervisor, after the limit of a queue was changed. Returns the number of jobs that wait for a permit
# again. A new or lowered limit applies at once to admitted jobs that no worker has claimed: the jobs beyond the limit
# are blocked again, first the jobs that wait for a token of their rate, because they would start last. The statement
# reads as many jobs with a permit as the queue's limit allows, and at most `limit` more. Index: limit_held. The table
# of queues is read whole: it has one row for each queue that was ever paused or limited.
BLOCK_SURPLUS = joined(
    """
WITH surplus AS MATERIALIZED (
    SELECT job.id
    FROM
        skipqueue_queue AS queue,
        LATERAL (
            SELECT id, row_number() OVER (ORDER BY status DESC, priority DESC, id) AS place
            FROM (
                SELECT id, status, priority
                FROM skipqueue_job
                WHERE
                    limit_key = 'queue:' || queue.name
                    AND {holds}
                LIMIT queue.concurrency + %(limit)s
            ) AS holder
        ) AS held
        JOIN skipqueue_job AS job USING (id)
    WHERE
        queue.concurrency > 0
        AND held.place > queue.concurrency
        AND (job.status = 'queued' OR job.gate = 'rate')
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', gate = 'limit'
    WHERE job.id = ANY (ARRAY (SELECT id FROM surplus)) AND job.status <> 'running'
    RETURNING job.id
)
SELECT count(*) FROM blocked
""",
    holds=indented(HOLDS, 20),
)


@dataclass(frozen=True)
class QueueLimited(Event):
    """Somebody has changed the limit of a queue."""

    level = logging.WARNING

    database: str
    queue_name: str
    concurrency: int | None
    """The new limit; 0 means unlimited; `None` means the limit of the settings."""
    by: str

    def write_lines(self) -> None:
        limit = "settings" if self.concurrency is None else self.concurrency or "none"
        logs.write_about_queue("queue_limited", self.queue_name, concurrency=limit, by=self.by)


# Sent by Queue.limit. Sets the limit in the queue's row: NULL means the limit of the settings, 0 means unlimited.
# Index: the primary key.
LIMIT_QUEUE = """
INSERT INTO skipqueue_queue AS queue (name, concurrency)
VALUES (%(name)s, %(concurrency)s::smallint)
ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency
"""


def _set_limit(store: Store, name: str, concurrency: int | None, by: str) -> None:
    check_columns({"queue_name": name})
    stored_by = noted(by, "")["by"]
    store.execute(LIMIT_QUEUE, {"name": name, "concurrency": concurrency})
    admit_after_commit(store, {"limit": {key_of(name): None}})
    notify_supervisors(store, QUEUES_PAYLOAD)  # for `block_surplus`
    notify_supervisors(store, GATES_PAYLOAD)  # to admit the jobs beyond the maximum of one admission
    store.send(QueueLimited(store.alias, name, concurrency, stored_by))


def block_surplus(store: Store, *, limit: int = BATCH_ROWS) -> int:
    """Block up to `limit` queued jobs that exceed their queue's limit. Returns the number of blocked jobs."""
    ((number_blocked,),) = store.rows(BLOCK_SURPLUS, {"limit": limit})
    return int(number_blocked)


class LimitVerbs:
    """The methods that this part adds to `models.Queue`."""

    @staticmethod
    def limit(name: str, concurrency: int | None, *, by: str = "", database: str | None = None) -> None:
        """Let at most `concurrency` jobs of a queue run at once, in place of the setting; `None` means unlimited.

        The limit applies to jobs that were enqueued while `SKIPQUEUE["QUEUES"]` had a `concurrency` for this queue,
        even `None`. Running jobs are not stopped, but no further job is admitted until fewer jobs run than the limit
        allows. Raises `InvalidOption` for an invalid number, and for a queue without a `concurrency` in the settings,
        unless the queue's limit was changed before. `database`: as in `pause`; each database has this limit.
        """
        if not limit_columns_of(name):
            require_changed(name, "concurrency", "concurrency")
        if not is_concurrency(concurrency):
            raise InvalidOption(f"concurrency must be {CONCURRENCY}, or None for any number, not {concurrency!r}.")
        in_each(database, lambda store: _set_limit(store, name, concurrency or 0, by))  # 0: unlimited

    @staticmethod
    def limit_by_settings(name: str, *, by: str = "", database: str | None = None) -> None:
        """Go back to the limit that the settings give this queue. `database`: as in `pause`."""
        in_each(database, lambda store: _set_limit(store, name, None, by))

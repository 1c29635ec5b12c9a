"""Read the keys of limits and sequences as they are now, by a few probes of an index.

Used by pages, commands, metrics, the doctor and the alerts.

Invariant: the cost does not grow with the number of jobs. `parts.limits.admit` says which jobs of a key hold a permit,
and which wait for one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...console.counts import MOST_HALTING
from ...queue.fragments import joined
from ..keyed.sql import indented
from ..keyed.states import KeyNow, read_keys
from .sql import RANK

if TYPE_CHECKING:
    from ...queue.store import Store

# pages, commands, metrics, doctor, alerts → the sequences that have halted and keep jobs waiting, the longest first:
# the key, the failed job, and the seconds since it failed. Of all failed jobs that halt a sequence, `limit` are looked
# at, those first that failed first. Index: halted, and limit_waiting once for each.
HALTED_KEYS = """
SELECT failed.limit_key, failed.id, date_part('epoch', statement_timestamp() - failed.finished_at)
FROM (
    SELECT limit_key, id, finished_at
    FROM skipqueue_job
    WHERE status = 'failed' AND limit_kind = 'halting'
    ORDER BY finished_at, id
    LIMIT %(limit)s
) AS failed
WHERE EXISTS (
    SELECT
    FROM skipqueue_job
    WHERE gate = 'limit' AND limit_key = failed.limit_key
)
ORDER BY failed.finished_at, failed.id
"""

# pages, commands, metrics → at most `limit` keys with waiting jobs, alphabetically after `after`; with `is_from` also
# that key itself. Index: limit_waiting, once for each key.
WAITING_KEYS = """
WITH RECURSIVE waiting AS (
    SELECT
        CASE
            WHEN %(is_from)s THEN (
                SELECT limit_key
                FROM skipqueue_job
                WHERE
                    gate = 'limit'
                    AND limit_key >= %(after)s::text
                ORDER BY limit_key
                LIMIT 1
            )
            ELSE (
                SELECT limit_key
                FROM skipqueue_job
                WHERE
                    gate = 'limit'
                    AND limit_key > %(after)s::text
                ORDER BY limit_key
                LIMIT 1
            )
        END AS key
    UNION ALL
    SELECT (
        SELECT limit_key
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key > waiting.key
        ORDER BY limit_key
        LIMIT 1
    )
    FROM waiting
    WHERE waiting.key IS NOT NULL
)
SELECT key FROM waiting WHERE key IS NOT NULL LIMIT %(limit)s
"""

# dashboard → at most `most` keys of the jobs that were blocked first. Of all blocked jobs, `limit` are looked at.
# Index: blocked.
FIRST_BLOCKED_KEYS = """
SELECT limit_key
FROM (
    SELECT id, limit_key, gate
    FROM skipqueue_job
    WHERE status = 'blocked'
    ORDER BY id
    LIMIT %(limit)s
) AS job
WHERE gate = 'limit'
GROUP BY limit_key
ORDER BY min(id)
LIMIT %(most)s
"""

# pages, commands → for each of these keys that has waiting jobs: the key; the id, the task and the arguments of the
# next job; the kind of the limit and its capacity, NULL for any number; the number of jobs that hold a permit, and that
# of those that wait, both counted up to `limit`; the seconds since the first of these was due. Index: limit_waiting and
# limit_held, once for each key; for the key of a queue the primary key of queues.
KEYS_NOW = joined(
    """
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text, head.limit_kind,
    NULLIF(COALESCE(
        CASE
            WHEN starts_with(key.name, 'queue:')
            THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(key.name, 7))
        END,
        head.capacity
    ), 0),
    held.number, waiting.number, date_part('epoch', statement_timestamp() - waiting.since)
FROM
    unnest((SELECT %(keys)s::text[])) WITH ORDINALITY AS key (name, place),
    LATERAL (
        SELECT id, task, args, kwargs, limit_kind, capacity
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key = key.name
        ORDER BY
            {rank}, id
        LIMIT 1
    ) AS head,
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE
                limit_key = key.name
                AND (
                    (status IN ('queued', 'running') AND gate IS DISTINCT FROM 'ahead')
                    OR (
                        (started_at IS NOT NULL OR attempts > 0)
                        AND limit_kind IN ('sequence', 'halting')
                        AND status = 'scheduled'
                    )
                    OR (limit_kind = 'halting' AND status = 'failed')
                    OR gate = 'rate'
                )
            LIMIT %(limit)s
        ) AS job
    ) AS held,
    LATERAL (
        SELECT count(*) AS number, min(run_after) AS since
        FROM (
            SELECT run_after
            FROM skipqueue_job
            WHERE gate = 'limit' AND limit_key = key.name
            ORDER BY
                {rank_within}, id
            LIMIT %(limit)s
        ) AS job
    ) AS waiting
ORDER BY key.place
""",
    rank=indented(RANK, 12),
    rank_within=indented(RANK, 16),
)


MOST_FIRST_BLOCKED = 2_000
"""Blocked jobs, those first that were enqueued first, whose keys are looked at."""


class HaltedKey(NamedTuple):
    key: str
    job_id: int
    """The job that failed."""
    seconds: float
    """Since then."""


@dataclass(frozen=True)
class LimitNow(KeyNow):
    kind: str
    capacity: int | None
    """`None`: any number, if the limit of a queue was removed."""
    held: int
    """Jobs that hold a permit; above `OF_KEY`: more than that."""


def halted_keys(store: "Store", *, limit: int = MOST_HALTING) -> list[HaltedKey]:
    """The sequences that have halted and keep jobs waiting, the longest first.

    limit: failed jobs that are looked at, those first that failed first.
    """
    return [HaltedKey(*row) for row in store.rows(HALTED_KEYS, {"limit": limit})]


def waiting_keys(store: "Store", *, after: str = "", is_from: bool = False, limit: int) -> list[str]:
    """Keys with waiting jobs, alphabetically after `after`; with `is_from`, from that key on."""
    values = {"after": after, "is_from": is_from, "limit": limit}
    return [key for (key,) in store.rows(WAITING_KEYS, values)]


def first_blocked_keys(store: "Store", *, most: int) -> list[str]:
    values = {"limit": MOST_FIRST_BLOCKED, "most": most}
    return [key for (key,) in store.rows(FIRST_BLOCKED_KEYS, values)]


def keys_now(store: "Store", keys: Sequence[str]) -> list[LimitNow]:
    return read_keys(store, KEYS_NOW, keys, LimitNow, "kind", "capacity", "held", "waiting", "oldest")

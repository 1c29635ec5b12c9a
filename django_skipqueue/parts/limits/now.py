"""Read the keys of limits and sequences as they are now, by a few probes of an index.

Used by pages, commands, metrics, the doctor and the alerts.

Invariant: the cost does not grow with the number of jobs. `parts.limits.admit` says which jobs of a key hold a permit,
and which jobs wait for a permit.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ...console.counts import MOST_HALTING
from ...queue.fragments import joined
from ...queue.store import Store
from ..keyed.sql import indented, walking
from ..keyed.states import KeyNow
from .sql import HOLDS, LIMITED, RANK, WAITS_FOR_PERMIT

# pages, commands, metrics, doctor, alerts → the sequences that have halted and keep jobs waiting, the longest halted
# first: the key, the failed job, and the seconds since it failed. Reads the first `limit` failed jobs that halt a
# sequence, in the order in which they failed. Index: halted, and limit_waiting once for each of these jobs.
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

# pages, commands, metrics → at most `limit` keys with waiting jobs, alphabetically after `after`. Index: limit_waiting,
# once for each key.
WAITING_KEYS = joined(
    """
WITH RECURSIVE {found}
SELECT key FROM found
""",
    found=walking(key="limit_key", waits=WAITS_FOR_PERMIT),
)

# dashboard → at most `most` keys of the first `limit` blocked jobs, in the order of the first job of each key. Index:
# blocked.
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
# next job; the kind of the limit and its capacity, NULL for any number; the number of jobs that hold a permit, and the
# number of waiting jobs, both counted up to `limit`; the seconds since the first waiting job was due. Index:
# limit_waiting and limit_held, once for each key; for the key of a queue the primary key of queues.
KEYS_NOW = joined(
    """
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text, head.limit_kind, limited.permits,
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
    {limited},
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE
                limit_key = key.name
                AND gate IS DISTINCT FROM 'ahead'
                AND {holds}
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
    limited=indented(joined(LIMITED, key="key.name", head="head"), 4),
    holds=indented(HOLDS, 16),
    rank=indented(RANK, 12),
    rank_within=indented(RANK, 16),
)


MOST_FIRST_BLOCKED = 2_000
"""How many blocked jobs are read, in the order of their enqueue, to find the first keys."""


class HaltedKey(NamedTuple):
    key: str
    job_id: int
    """The job that failed."""
    seconds: float
    """Seconds since the job failed."""


@dataclass(frozen=True)
class LimitNow(KeyNow):
    kind: str
    capacity: int | None
    """`None`: any number, if the limit of a queue was removed."""
    held: int
    """The number of jobs that hold a permit. It is counted up to `OF_KEY` + 1."""


def halted_keys(store: Store, *, limit: int = MOST_HALTING) -> list[HaltedKey]:
    """The sequences that have halted and keep jobs waiting, the longest halted first.

    limit: how many failed jobs are read, in the order in which they failed.
    """
    return [HaltedKey(*row) for row in store.rows(HALTED_KEYS, {"limit": limit})]


def waiting_keys(store: Store, *, after: str = "", limit: int) -> list[str]:
    """Keys with waiting jobs, alphabetically after `after`."""
    return [key for (key,) in store.rows(WAITING_KEYS, {"after": after, "limit": limit})]


def first_blocked_keys(store: Store, *, most: int) -> list[str]:
    values = {"limit": MOST_FIRST_BLOCKED, "most": most}
    return [key for (key,) in store.rows(FIRST_BLOCKED_KEYS, values)]

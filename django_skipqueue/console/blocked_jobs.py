"""How many jobs of each queue are blocked, whatever each waits for. Each count ends at a cap."""

from typing import NamedTuple

from ..queue.observe import raised
from ..queue.store import Store

# pages, commands, metrics → the number of blocked jobs by queue. Of all blocked jobs, `limit` are looked at, those
# first that were enqueued first. Index: blocked.
BLOCKED_BY_QUEUE = """
SELECT queue_name, count(*)
FROM (
    SELECT queue_name FROM skipqueue_job WHERE status = 'blocked' ORDER BY id LIMIT %(limit)s
) AS job
GROUP BY queue_name
"""

# metrics, where more jobs are blocked than `BLOCKED_BY_QUEUE` looks at → how many the planner expects. Reads no row.
EXPECTED_BLOCKED = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'blocked'
"""

MOST_BLOCKED = 10_000
"""Blocked jobs that are counted by queue."""


class BlockedNow(NamedTuple):
    queues: dict[str, int]
    is_least: bool
    """Whether there are more blocked jobs than were counted."""


def blocked_now(store: Store) -> BlockedNow:
    queues = dict(store.rows(BLOCKED_BY_QUEUE, {"limit": MOST_BLOCKED + 1}))
    return BlockedNow(queues, sum(queues.values()) > MOST_BLOCKED)


def estimated_blocked(store: Store, *, most: int) -> dict[str, int]:
    """The number of blocked jobs of each queue that has any. If there are more than `most`, it is estimated."""
    counts = dict(store.rows(BLOCKED_BY_QUEUE, {"limit": most}))
    if sum(counts.values()) < most:
        return counts
    return raised(counts, store.expected_rows(EXPECTED_BLOCKED))

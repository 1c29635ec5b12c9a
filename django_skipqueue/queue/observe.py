"""Read what is in the queues now, by a few probes of an index: for pages, commands and metrics.

Invariant: the cost does not grow with the number of jobs.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .fragments import joined

if TYPE_CHECKING:
    from .store import Store

# The pairs of a queue and a priority with queued jobs, each with the due time of its first job. Index: claim, one probe
# for each pair.
QUEUED_HEADS = """head AS (
    (
        SELECT queue_name, (-priority) AS rank, run_after
        FROM skipqueue_job
        WHERE status = 'queued'
        ORDER BY queue_name, (-priority), run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue_name, next.rank, next.run_after
    FROM
        head,
        LATERAL (
            SELECT queue_name, (-priority) AS rank, run_after
            FROM skipqueue_job
            WHERE status = 'queued' AND (queue_name, (-priority)) > (head.queue_name, head.rank)
            ORDER BY queue_name, (-priority), run_after, id
            LIMIT 1
        ) AS next
)"""

# pages, commands, metrics → each queue with queued jobs, alphabetically: its name, the number of its queued jobs,
# whether there are more than were counted, and the seconds since its longest waiting job was due. `limit`: the number
# of (queue, priority) pairs that are read. At most `most` jobs of a queue are counted, and `together` of all
# queues, but `least` of each queue in any case. Index: claim, one probe for each pair, and one range for each queue.
# A range with an order is read from the index alone. With an order by (-priority) PostgreSQL would fetch every job from
# the table as well: it does not see that the index has this value. Without any, it may read the whole table instead.
QUEUED_NOW = joined(
    """
WITH RECURSIVE {heads},
queue AS MATERIALIZED (
    SELECT queue_name AS name, min(run_after) AS oldest
    FROM (SELECT queue_name, run_after FROM head LIMIT %(limit)s) AS head
    GROUP BY queue_name
),
budget AS MATERIALIZED (
    SELECT LEAST(%(most)s, GREATEST(%(least)s, %(together)s / GREATEST(count(*), 1))) AS most FROM queue
)
SELECT
    queue.name, counted.number, counted.number > budget.most,
    GREATEST(date_part('epoch', statement_timestamp() - queue.oldest), 0)
FROM
    queue, budget,
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name >= queue.name AND queue_name <= queue.name
            ORDER BY queue_name
            LIMIT (SELECT most + 1 FROM budget)
        ) AS job
    ) AS counted
ORDER BY queue.name
""",
    heads=QUEUED_HEADS,
)

# pages, commands, metrics → for each queue with running jobs: its name, their number, and the seconds since the first
# of them was claimed. Reads `limit` running jobs, in the order in which they were claimed. Index: recover.
RUNNING_NOW = """
SELECT queue_name, count(*), GREATEST(date_part('epoch', statement_timestamp() - min(locked_at)), 0)
FROM (
    SELECT queue_name, locked_at FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT %(limit)s
) AS job
GROUP BY queue_name
"""

# pages → for each worker with running jobs: its id, the number of its jobs by task, and the `shown` first claimed ones,
# both as JSON. Reads `limit` running jobs that workers hold, in the order in which they were claimed: once, however
# many workers there are. Index: recover.
HELD_NOW = """
WITH held AS MATERIALIZED (
    SELECT id, task, locked_by, locked_at
    FROM skipqueue_job
    WHERE status = 'running' AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
    ORDER BY locked_at
    LIMIT %(limit)s
),
of_task AS (
    SELECT locked_by, json_object_agg(task, number) AS tasks
    FROM (SELECT locked_by, task, count(*) AS number FROM held GROUP BY locked_by, task) AS counted
    GROUP BY locked_by
),
first AS (
    SELECT locked_by, json_agg(json_build_object('id', id, 'task', task, 'since', locked_at) ORDER BY place) AS jobs
    FROM (SELECT *, row_number() OVER (PARTITION BY locked_by ORDER BY locked_at, id) AS place FROM held) AS numbered
    WHERE place <= %(shown)s
    GROUP BY locked_by
)
SELECT locked_by, tasks::text, jobs::text
FROM of_task JOIN first USING (locked_by)
"""

# pages, commands, metrics, for a queue with more jobs than `QUEUED_NOW` counts → how many the planner expects, from the
# statistics of the last ANALYZE. Reads no row.
EXPECTED_QUEUED = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'queued' AND queue_name = %(queue_name)s
"""

# metrics, where more jobs run than `RUNNING_NOW` reads → how many the planner expects. Reads no row.
EXPECTED_RUNNING = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'running'
"""


MOST_QUEUED_COUNTED = 10_000
"""Queued jobs of one queue that are counted one by one; fewer if many queues have many jobs."""

LEAST_COUNTED = 500
MOST_COUNTED_TOGETHER = 50_000
"""Queued jobs that are counted in each queue in any case, and in all."""

MOST_ESTIMATED = 10
"""Queues with more jobs than are counted for which the planner is asked, with a query each. For all other such queues
the number that was counted is shown."""

MOST_PROBES = 2_000
"""Pairs of a queue and a priority that are read."""

MOST_RUNNING_READ = 20_000
"""Running jobs that are read; if there are more, their number is estimated."""


class QueueNow(NamedTuple):
    """The jobs of one queue. The defaults are for a queue in which no job is queued or running."""

    name: str
    queued: int = 0
    """The number of queued jobs. A job that waits for a retry is not queued."""
    is_estimate: bool = False
    """Whether `queued` is the planner's estimate, because the jobs are too many to be counted."""
    oldest: float | None = None
    """Seconds since the job that waits longest was due; `None` if no job waits."""
    running: int = 0
    longest: float | None = None
    """Seconds since the first of its running jobs was claimed; `None` if no job runs."""


class HeldNow(NamedTuple):
    tasks: dict[str, int]
    """The number of jobs by task."""
    jobs: list[dict[str, Any]]
    """The jobs that were claimed first: each with `id`, `task`, and the time of the claim in `since`."""


def queues_now(
    store: "Store",
    *,
    most: int = MOST_QUEUED_COUNTED,
    least: int = LEAST_COUNTED,
    together: int = MOST_COUNTED_TOGETHER,
    most_running: int = MOST_RUNNING_READ,
) -> list[QueueNow]:
    """The queues that have queued or running jobs, alphabetically. Many jobs are estimated.

    `most`: the queued jobs of a queue that are counted at most; fewer where there are many queues.
    `together`: the queued jobs of all queues that are counted; of each queue `least` in any case.
    `most_running`: the running jobs that are counted.
    """
    limits = {"limit": MOST_PROBES, "most": most, "least": least, "together": together}
    queued = {name: found for name, *found in store.rows(QUEUED_NOW, limits)}
    running = _running_now(store, most_running)
    found = []
    too_many = sorted((name for name in queued if queued[name][1]), key=lambda name: -queued[name][2])
    for name in sorted(queued.keys() | running.keys()):
        number, is_estimate, oldest = queued.get(name, (0, False, None))
        if name in too_many[:MOST_ESTIMATED]:
            number = max(number, store.expected_rows(EXPECTED_QUEUED, {"queue_name": name}))
        found.append(QueueNow(name, number, is_estimate, oldest, *running.get(name, (0, None))))
    return found


def held_now(store: "Store", *, shown: int) -> dict[str, HeldNow]:
    """The jobs that the workers hold, by the id of the worker: how many, and the `shown` first claimed ones."""
    rows = store.rows(HELD_NOW, {"limit": MOST_RUNNING_READ, "shown": shown})
    return {worker: HeldNow(json.loads(tasks), json.loads(jobs)) for worker, tasks, jobs in rows}


def _running_now(store: "Store", most: int) -> dict[str, tuple[int, float]]:
    rows = store.rows(RUNNING_NOW, {"limit": most})
    counts = {name: number for name, number, _ in rows}
    if sum(counts.values()) >= most:
        counts = raised(counts, store.expected_rows(EXPECTED_RUNNING))
    return {name: (counts[name], longest) for name, _, longest in rows}


def raised(counts: Mapping[str, int], total: int) -> dict[str, int]:
    """Raise the counts of a sample in proportion, so that they add up to `total`. No count becomes smaller."""
    factor = max(1.0, total / max(1, sum(counts.values())))
    return {name: round(number * factor) for name, number in counts.items()}

"""Read how many jobs are in the queues at the moment, for admin pages, commands and metrics.

The statements probe indexes a limited number of times, so that their cost does not grow with the number of jobs.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .fragments import joined

if TYPE_CHECKING:
    from .store import Store

# All pairs of a queue and a priority that have queued jobs, each with the due time of its first job. Index: claim, one
# probe for each pair.
QUEUED_HEADS = """head AS (
    (
        SELECT queue_name, (-priority) AS rank, run_after
        FROM skipqueue_job
        WHERE status = 'queued'
        ORDER BY queue_name, (-priority), run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next_head.queue_name, next_head.rank, next_head.run_after
    FROM
        head,
        LATERAL (
            SELECT queue_name, (-priority) AS rank, run_after
            FROM skipqueue_job
            WHERE status = 'queued' AND (queue_name, (-priority)) > (head.queue_name, head.rank)
            ORDER BY queue_name, (-priority), run_after, id
            LIMIT 1
        ) AS next_head
)"""

# Sent by pages, commands and metrics. Returns each queue with queued jobs, alphabetically: its name, the number of its
# queued jobs, whether there are more jobs than were counted, and the seconds since its longest waiting job was due.
# `limit`: how many pairs of a queue and a priority are read. At most `most` jobs of one queue are counted, and about
# `together` jobs of all queues, but at least `least` of each queue.
# Index: claim, one probe for each pair, and one range for each queue. The range has an ORDER BY, so that PostgreSQL
# reads only the index; without it, PostgreSQL might read the whole table. The ORDER BY leaves out (-priority), because
# PostgreSQL does not see that the index has this value, and would fetch every job from the table.
QUEUED_NOW = joined(
    """
WITH RECURSIVE {heads},
queue AS MATERIALIZED (
    SELECT queue_name AS name, min(run_after) AS oldest
    FROM (SELECT queue_name, run_after FROM head LIMIT %(limit)s) AS head
    GROUP BY queue_name
),
budget AS MATERIALIZED (
    SELECT LEAST(%(most)s, GREATEST(%(least)s, %(together)s / GREATEST(count(*), 1))) AS jobs_per_queue
    FROM queue
)
SELECT
    queue.name, counted.number, counted.number > budget.jobs_per_queue AS has_more,
    GREATEST(date_part('epoch', statement_timestamp() - queue.oldest), 0) AS oldest_seconds
FROM
    queue, budget,
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name >= queue.name AND queue_name <= queue.name
            ORDER BY queue_name
            LIMIT (SELECT jobs_per_queue + 1 FROM budget)
        ) AS job
    ) AS counted
ORDER BY queue.name
""",
    heads=QUEUED_HEADS,
)

# Sent by pages, commands and metrics. Returns for each queue with running jobs: its name, the number of running jobs,
# and the seconds since the first of these jobs was claimed. Reads only the `limit` running jobs that were claimed
# first. Index: recover.
RUNNING_NOW = """
SELECT queue_name, count(*), GREATEST(date_part('epoch', statement_timestamp() - min(locked_at)), 0)
FROM (
    SELECT queue_name, locked_at FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT %(limit)s
) AS job
GROUP BY queue_name
"""

# Sent by pages. Returns for each worker with running jobs: its id, the number of its jobs by task as JSON, and the
# `shown` jobs that it claimed first as JSON. Reads the `limit` running jobs that were claimed first, only once for all
# workers. Index: recover.
HELD_NOW = """
WITH held AS MATERIALIZED (
    SELECT id, task, locked_by, locked_at
    FROM skipqueue_job
    WHERE status = 'running' AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
    ORDER BY locked_at
    LIMIT %(limit)s
),
tasks_by_worker AS (
    SELECT locked_by, json_object_agg(task, number) AS tasks
    FROM (SELECT locked_by, task, count(*) AS number FROM held GROUP BY locked_by, task) AS counted
    GROUP BY locked_by
),
first_jobs AS (
    SELECT locked_by, json_agg(json_build_object('id', id, 'task', task, 'since', locked_at) ORDER BY place) AS jobs
    FROM (SELECT *, row_number() OVER (PARTITION BY locked_by ORDER BY locked_at, id) AS place FROM held) AS numbered
    WHERE place <= %(shown)s
    GROUP BY locked_by
)
SELECT locked_by, tasks::text, jobs::text
FROM tasks_by_worker JOIN first_jobs USING (locked_by)
"""

# Sent by pages, commands and metrics for a queue with more jobs than `QUEUED_NOW` counts. Returns how many queued jobs
# the planner expects, from the statistics of the last ANALYZE. Reads no row.
EXPECTED_QUEUED = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'queued' AND queue_name = %(queue_name)s
"""

# Sent by metrics if more jobs run than `RUNNING_NOW` reads. Returns how many running jobs the planner expects. Reads no
# row.
EXPECTED_RUNNING = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'running'
"""


MOST_QUEUED_COUNTED = 10_000
"""The most queued jobs of one queue that are counted one by one. If many queues have many jobs, the number is lower."""

LEAST_COUNTED = 500
MOST_COUNTED_TOGETHER = 50_000
"""How many queued jobs are counted at least in each queue, and at most in all queues together."""

MOST_ESTIMATED = 10
"""For how many queues with too many jobs to count we ask the planner for an estimate, with one query each. For all
other queues, the number of counted jobs is shown."""

MOST_PROBES = 2_000
"""The most pairs of a queue and a priority that are read."""

MOST_RUNNING_READ = 20_000
"""The most running jobs that are read. If there are more, their number is estimated."""


class QueueNow(NamedTuple):
    """The number and the age of the jobs in one queue. The defaults describe a queue without queued or running jobs."""

    name: str
    queued: int = 0
    """The number of queued jobs. A job that waits for a retry is not queued."""
    is_estimate: bool = False
    """Whether `queued` is only an estimate, because there are too many jobs to count."""
    oldest: float | None = None
    """Seconds since the job that waits longest was due; `None` if no job waits."""
    running: int = 0
    longest: float | None = None
    """Seconds since the queue's first running job was claimed; `None` if no job runs."""


class HeldNow(NamedTuple):
    """The jobs that one worker holds."""

    tasks: dict[str, int]
    """The number of jobs by task."""
    jobs: list[dict[str, Any]]
    """The jobs that were claimed first, each a dict with `id`, `task`, and the time of the claim in `since`."""


def queues_now(
    store: "Store",
    *,
    most: int = MOST_QUEUED_COUNTED,
    least: int = LEAST_COUNTED,
    together: int = MOST_COUNTED_TOGETHER,
    most_running: int = MOST_RUNNING_READ,
) -> list[QueueNow]:
    """The queues that have queued or running jobs, alphabetically. A very large number of jobs is estimated.

    most: how many queued jobs of one queue are counted; fewer if there are many queues.
    together: how many queued jobs of all queues are counted.
    least: how many queued jobs of each queue are always counted.
    most_running: how many running jobs are counted.
    """
    limits = {"limit": MOST_PROBES, "most": most, "least": least, "together": together}
    queued = {name: columns for name, *columns in store.rows(QUEUED_NOW, limits)}
    running = _running_now(store, most_running)
    queues = []
    too_long_to_count = [name for name, (_, has_more, _) in queued.items() if has_more]
    oldest_first = sorted(too_long_to_count, key=lambda name: -queued[name][2])  # by `oldest_seconds`
    for name in sorted(queued.keys() | running.keys()):
        job_count, is_estimate, oldest = queued.get(name, (0, False, None))
        if name in oldest_first[:MOST_ESTIMATED]:
            job_count = max(job_count, store.expected_rows(EXPECTED_QUEUED, {"queue_name": name}))
        queues.append(QueueNow(name, job_count, is_estimate, oldest, *running.get(name, (0, None))))
    return queues


def held_now(store: "Store", *, shown: int) -> dict[str, HeldNow]:
    """The jobs that workers hold, by worker id: their number by task, and the `shown` jobs that were claimed first."""
    rows = store.rows(HELD_NOW, {"limit": MOST_RUNNING_READ, "shown": shown})
    return {worker: HeldNow(json.loads(tasks), json.loads(jobs)) for worker, tasks, jobs in rows}


def _running_now(store: "Store", most: int) -> dict[str, tuple[int, float]]:
    rows = store.rows(RUNNING_NOW, {"limit": most})
    counts = {name: job_count for name, job_count, _ in rows}
    if sum(counts.values()) >= most:
        counts = raised(counts, store.expected_rows(EXPECTED_RUNNING))
    return {name: (counts[name], longest) for name, _, longest in rows}


def raised(counts: Mapping[str, int], total: int) -> dict[str, int]:
    """Scale up the counts of a sample, so that they add up to `total`. No count becomes smaller."""
    factor = max(1.0, total / max(1, sum(counts.values())))
    return {name: round(number * factor) for name, number in counts.items()}

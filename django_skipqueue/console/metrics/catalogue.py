"""The metrics of the queue, beside those that are in a part, and the bounds of their labels. Pure.

The labels `queue` and `task` have at most `MOST` values, whatever the names in the rows are, so that the number of
series keeps within bounds. With several databases each metric has the label `database` as well, which
`console.metrics.databases` adds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ...values.exposition import Family, Metric


@dataclass(frozen=True)
class Scraped:
    """Metrics that are read together, in a transaction of their own: if that fails, the others are served."""

    name: str
    collect: Callable[[Any], Iterator[Family]]
    """Called with the `Store`."""
    metrics: tuple[Metric, ...] = ()
    """Metrics of a part: the catalogue has those of the core."""


QUEUE = ("queue",)

QUEUED = Metric("skipqueue_queued_jobs", "gauge", "Jobs that wait for a worker; many are estimated.", QUEUE)
OLDEST = Metric("skipqueue_oldest_queued_seconds", "gauge", "Seconds since the oldest queued job was due.", QUEUE)
RUNNING = Metric("skipqueue_running_jobs", "gauge", "Jobs that run, or are claimed; an estimate above 2,000.", QUEUE)
LONGEST = Metric(
    "skipqueue_longest_running_seconds", "gauge", "Seconds since the first of the running jobs was claimed.", QUEUE
)
PAUSED = Metric("skipqueue_queue_paused", "gauge", "1 for each queue that is paused.", QUEUE)

BLOCKED = Metric(
    "skipqueue_blocked_jobs",
    "gauge",
    "Jobs that wait for other jobs, or a permit; an estimate above 2,000.",
    QUEUE,
)
HALTED = Metric(
    "skipqueue_halted_sequences", "gauge", "Sequences with waiting jobs that wait for an operator after a failure."
)
LONGEST_HALT = Metric(
    "skipqueue_longest_halt_seconds", "gauge", "Seconds since the first of these sequences has halted."
)
WAITING_KEYS = Metric(
    "skipqueue_waiting_keys", "gauge", "Keys of limits and sequences with waiting jobs: at most 500 are counted."
)

WAITING_RATES = Metric(
    "skipqueue_waiting_rate_keys", "gauge", "Keys of rates for which jobs wait: at most 500 are counted."
)
RATE_LATE = Metric(
    "skipqueue_rate_late_seconds",
    "gauge",
    "Seconds since a job should have been admitted by its rate: below 1.",
)

WORKERS = Metric("skipqueue_workers", "gauge", "Workers, by the age of their heartbeats.", ("state",))

SCHEDULE = ("schedule",)
LAST_RUN = Metric(
    "skipqueue_schedule_last_run_timestamp_seconds", "gauge", "When the schedule last enqueued a job.", SCHEDULE
)
NEXT_RUN = Metric("skipqueue_schedule_next_run_timestamp_seconds", "gauge", "When the schedule fires next.", SCHEDULE)
LATE = Metric(
    "skipqueue_schedule_late_seconds", "gauge", "Seconds since the schedule should have fired; 0 if paused.", SCHEDULE
)

OPEN_BATCHES = Metric("skipqueue_open_batches", "gauge", "Batches that are not finished: at most 10,000 are counted.")
OLDEST_BATCH = Metric("skipqueue_oldest_open_batch_seconds", "gauge", "Seconds since the first of these was made.")

TABLE_BYTES = Metric(
    "skipqueue_table_bytes", "gauge", "Size of the table with its TOAST data, without indexes.", ("table",)
)
INDEX_BYTES = Metric("skipqueue_index_bytes", "gauge", "Size of the index.", ("table", "index"))
LIVE_ROWS = Metric("skipqueue_table_live_rows", "gauge", "Live rows, by PostgreSQL's statistics.", ("table",))
DEAD_ROWS = Metric("skipqueue_table_dead_rows", "gauge", "Dead rows, by PostgreSQL's statistics.", ("table",))
VACUUM_AGE = Metric(
    "skipqueue_table_vacuum_age_seconds", "gauge", "Seconds since the last vacuum, automatic or not.", ("table",)
)
PRUNE_LAG = Metric(
    "skipqueue_prune_lag_seconds", "gauge", "Seconds for which the retention of the oldest job to delete has been over."
)
LOCK_WAITS = Metric(
    "skipqueue_lock_waits", "gauge", "Sessions that use the queue's tables and wait for a lock: at most 10 are counted."
)
LONGEST_LOCK_WAIT = Metric(
    "skipqueue_longest_lock_wait_seconds", "gauge", "Seconds for which the first of these sessions has waited."
)

SCOPE = ("scope",)
ROWS_WRITTEN = Metric(
    "skipqueue_rows_written_total",
    "counter",
    "Rows inserted, updated and deleted: in the queue's tables, and in all of the database.",
    SCOPE,
)
PAGES_READ = Metric(
    "skipqueue_pages_read_total", "counter", "Pages that PostgreSQL did not have in memory, likewise.", SCOPE
)
PAGES_HIT = Metric("skipqueue_pages_hit_total", "counter", "Pages that PostgreSQL had in memory, likewise.", SCOPE)
STATEMENT_TIME = Metric(
    "skipqueue_statement_seconds_total",
    "counter",
    "Seconds of the statements that name the queue's tables, and of all of the database; needs pg_stat_statements.",
    SCOPE,
)

DATABASE_UP = Metric(
    "skipqueue_database_up", "gauge", "1 if the database has answered the scrape; with several only.", ("database",)
)
ERROR = Metric("skipqueue_scrape_error", "gauge", "1 if this part of the metrics is missing.", ("part",))
SCRAPE_TIME = Metric("skipqueue_scrape_seconds", "gauge", "Seconds that the queries of this scrape took.")

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of this module. `console.metrics.scrape.metrics` has those of parts as well."""


MOST = 200
"""Queues, and pairs of a queue and a task, that have series of their own."""

OTHER = "(other)"
"""The label of all others together."""

T = TypeVar("T")


def bounded(ordered: Iterable[tuple[tuple[str, ...], T]]) -> Iterator[tuple[tuple[str, ...], T]]:
    """The labels with their values; from the `MOST`th on, all have the label `OTHER`."""
    for number, (labels, value) in enumerate(ordered):
        yield (labels if number < MOST else (OTHER,) * len(labels)), value

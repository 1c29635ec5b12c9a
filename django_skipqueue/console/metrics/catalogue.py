"""The metrics of the core, each with the function that reads its values, and limits for the number of labels.

The labels `queue` and `task` have at most `MOST_SERIES` values, so that a table with many names does not create too
many series. With several databases, each metric also has the label `database`, which `console.metrics.scrape` adds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ...models import Queue
from ...models.expressions import table_names
from ...queue.observe import QueueNow, queues_now
from ...queue.queues import paused_queues
from ...queue.store import Store
from ...values.exposition import Family, Metric, Value
from ...values.fact import Fact
from ..counts import SCRAPED_BLOCKED, SCRAPED_QUEUES, Count
from ..facts import series_of
from ..parts import consoles
from ..queues_and_workers import QUEUE, QueueState, Workforce, estimated_blocked
from ..rules.server import LOCK_WAITS
from ..rules.tables import TABLE_SIZES, Share, statement_seconds, table_load
from ..rules.verdict import Verdict

MOST_SERIES = 200
"""The maximum number of queues, and of pairs of queue and task, that have series of their own."""

OTHER_LABEL = "(other)"
"""The label of the series that adds up all other queues, or all other pairs."""

T = TypeVar("T")

Values: TypeAlias = Mapping[tuple[str, ...], Value]
"""The values of a metric, by label values."""


@dataclass(frozen=True)
class Scraped:
    """Metrics that one function reads in its own transaction, so that other metrics are served even if it fails."""

    name: str
    collect: Callable[[Any], Iterator[Family]]
    """The function that reads the metrics with a `Store`."""
    metrics: tuple[Metric, ...] = ()


def measured(name: str, *metrics: Metric) -> Callable[[Callable[[Store], Iterator[Values]]], Scraped]:
    """Decorate a function that yields the values of these metrics, in their order."""

    def decorate(read: Callable[[Store], Iterator[Values]]) -> Scraped:
        def collect(store: Store) -> Iterator[Family]:
            for metric, values in zip(metrics, read(store), strict=True):
                yield Family(metric, dict(values))

        return Scraped(name, collect, metrics)

    return decorate


def bounded(ordered: Iterable[tuple[tuple[str, ...], T]]) -> Iterator[tuple[tuple[str, ...], T]]:
    """Replace the labels of all values after the first `MOST_SERIES` by `OTHER_LABEL`."""
    for number, (labels, value) in enumerate(ordered):
        yield (labels if number < MOST_SERIES else (OTHER_LABEL,) * len(labels)), value


def gauges(name: str, facts: Iterable[Fact[T]], read: Callable[[Store], Iterable[tuple[str, T]]]) -> Scraped:
    """Make gauges from facts. `read` returns pairs of label value and subject, the most important subjects first."""
    facts_with_metrics = [(fact, fact.metric) for fact in facts if fact.metric]

    def collect(store: Store) -> Iterator[Family]:
        subjects_by_labels: dict[tuple[str, ...], list[T]] = defaultdict(list)
        labelled_subjects = (((label,), subject) for label, subject in read(store))
        for labels, subject in bounded(labelled_subjects):
            subjects_by_labels[labels].append(subject)
        for fact, metric in facts_with_metrics:
            values = {labels: series_of(fact, subjects) for labels, subjects in subjects_by_labels.items()}
            yield Family(metric, {labels: value for labels, value in values.items() if value is not None})

    return Scraped(name, collect, tuple(metric for _, metric in facts_with_metrics))


def _queue_facts(*names: str) -> list[Fact[QueueState]]:
    return [fact for fact in QUEUE if fact.name in names]


def _queue_states(store: Store) -> Iterable[tuple[str, QueueState]]:
    """Return the state of each known queue, the busiest first. A queue without jobs has zeros."""
    busy_queues = queues_now(store, **SCRAPED_QUEUES)
    queues_by_name = {queue.name: queue for queue in busy_queues}
    for part in consoles():
        for name in part.known_queues(store, MOST_SERIES) if part.known_queues else ():
            queues_by_name.setdefault(name, QueueNow(name))
    busiest = sorted(queues_by_name.values(), key=lambda queue: -queue.queued - queue.running)
    return ((queue.name, QueueState(queue)) for queue in busiest)


def _blocked_states(store: Store) -> Iterable[tuple[str, QueueState]]:
    job_counts = estimated_blocked(store, most=SCRAPED_BLOCKED)
    busiest = sorted(job_counts.items(), key=lambda item: (-item[1], item[0]))  # most jobs first, then by name
    return ((name, QueueState(QueueNow(name), blocked=Count(job_count))) for name, job_count in busiest)


def _paused_states(store: Store) -> Iterable[tuple[str, QueueState]]:
    names = paused_queues(store, limit=MOST_SERIES)
    return ((name, QueueState(QueueNow(name), pause=Queue(name=name))) for name in names)


queues = gauges("queues", _queue_facts("queued", "oldest", "running", "longest"), _queue_states)
blocked = gauges("blocked", _queue_facts("blocked"), _blocked_states)
paused = gauges("paused", _queue_facts("is_paused"), _paused_states)


@measured("workers", Metric("skipqueue_workers", "gauge", "Workers, by the age of their heartbeats.", ("state",)))
def workers(store: Store) -> Iterator[Values]:
    yield {(state,): number for state, number in Workforce.now(using=store.alias).by_state.items()}


@measured(
    "prune_lag",
    Metric(
        "skipqueue_prune_lag_seconds",
        "gauge",
        "Seconds since the retention of the oldest expired job has ended.",
    ),
)
def prune_lag(store: Store) -> Iterator[Values]:
    yield {(): store.prune_lag()}


# Sent by metrics. Returns for each table, including its partitions: its name, the numbers of live and dead rows, and
# the seconds since the last vacuum, automatic or manual.
DEAD_ROWS = """
SELECT
    queue_table.name,
    sum(stat.n_live_tup)::bigint,
    sum(stat.n_dead_tup)::bigint,
    date_part('epoch', clock_timestamp() - max(GREATEST(stat.last_vacuum, stat.last_autovacuum)))
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(partition.relid, to_regclass(queue_table.name))
GROUP BY queue_table.name
ORDER BY queue_table.name
LIMIT 200
"""


@measured(
    "vacuums",
    Metric("skipqueue_table_live_rows", "gauge", "Live rows, by PostgreSQL's statistics.", ("table",)),
    Metric("skipqueue_table_dead_rows", "gauge", "Dead rows, by PostgreSQL's statistics.", ("table",)),
    Metric(
        "skipqueue_table_vacuum_age_seconds", "gauge", "Seconds since the last vacuum, automatic or manual.", ("table",)
    ),
)
def vacuums(store: Store) -> Iterator[Values]:
    rows = store.rows(DEAD_ROWS, {"tables": table_names()})
    yield {(name,): live for name, live, _dead, _age in rows}
    yield {(name,): dead for name, _live, dead, _age in rows}
    yield {(name,): age for name, _live, _dead, age in rows if age is not None}


# Sent by metrics. Returns each index with its table and its size in bytes. The size of a partitioned index is the sum
# of its parts.
INDEX_SIZES = """
SELECT queue_table.name, whole_index.relname, sum(pg_relation_size(index.indexrelid))::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS whole_index ON whole_index.oid = COALESCE(pg_partition_root(index.indexrelid), index.indexrelid)
GROUP BY queue_table.name, whole_index.relname
ORDER BY queue_table.name, whole_index.relname
LIMIT 200
"""


@measured(
    "sizes",
    Metric("skipqueue_table_bytes", "gauge", "Size of the table with its TOAST data, without indexes.", ("table",)),
    Metric("skipqueue_index_bytes", "gauge", "Size of the index.", ("table", "index")),
)
def sizes(store: Store) -> Iterator[Values]:
    """Read the sizes of tables and indexes. A table's size includes its partitions."""
    rows = store.rows(TABLE_SIZES, {"tables": table_names()})
    yield {(name,): total - indexes for name, total, indexes in rows}
    rows = store.rows(INDEX_SIZES, {"tables": table_names()})
    yield {(table, index): size for table, index, size in rows}


@measured(
    "locks",
    Metric(
        "skipqueue_lock_waits",
        "gauge",
        "Sessions that use the queue's tables and wait for a lock, counted up to 10.",
    ),
    Metric("skipqueue_longest_lock_wait_seconds", "gauge", "Seconds that the first of these sessions has waited."),
)
def locks(store: Store) -> Iterator[Values]:
    rows = store.rows(LOCK_WAITS, {"tables": table_names(), "seconds": 0.0})
    seconds_by_session = {waiting_pid: seconds for waiting_pid, seconds, *_columns in rows}
    yield {(): len(seconds_by_session)}
    yield {(): max(seconds_by_session.values(), default=0.0)}


@measured(
    "problems",
    Metric("skipqueue_problems", "gauge", "Problems that the console reports, by rule.", ("rule", "severity")),
)
def problems(store: Store) -> Iterator[Values]:
    findings = Verdict.now(store).problems
    yield Counter((problem.code, str(problem.severity)) for problem in findings)


SCOPE_LABEL = ("scope",)


@measured(
    "load",
    Metric(
        "skipqueue_rows_written_total",
        "counter",
        "Rows inserted, updated and deleted, in the queue's tables and in the whole database.",
        SCOPE_LABEL,
    ),
    Metric(
        "skipqueue_pages_read_total",
        "counter",
        "Pages that PostgreSQL read, in the same tables: it did not have them in memory.",
        SCOPE_LABEL,
    ),
    Metric(
        "skipqueue_pages_hit_total", "counter", "Pages that PostgreSQL had in memory, in the same tables.", SCOPE_LABEL
    ),
)
def tables(store: Store) -> Iterator[Values]:
    yield from map(_by_scope, table_load(store))


@measured(
    "statements",
    Metric(
        "skipqueue_statement_seconds_total",
        "counter",
        "Seconds of statements on the queue's tables, and of all statements; needs pg_stat_statements.",
        SCOPE_LABEL,
    ),
)
def statements(store: Store) -> Iterator[Values]:
    """Read the time of statements. Without `pg_stat_statements`, there are no series."""
    seconds = statement_seconds(store)
    yield {} if seconds is None else _by_scope(seconds)


def _by_scope(share: Share) -> Values:
    return {("queue",): share.queue, ("database",): share.database}


SCRAPED = (problems, queues, blocked, paused, workers, prune_lag, vacuums, sizes, locks, tables, statements)
"""The metrics of the core."""

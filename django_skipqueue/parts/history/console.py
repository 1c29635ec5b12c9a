"""What operators see of the history: metrics, the throughput of queues, rules about problems, and parts of the admin.

The metrics are counters and histograms from the history's tables. A counter never restarts, because it is a row, which
outlives every process. A supervisor deletes a row that has not changed for 90 days.
"""

import json
from collections.abc import Iterator

from django.utils.translation import gettext_lazy as _

from ...console.metrics.catalogue import MOST_SERIES, Values, bounded, measured
from ...console.parts import BarEntry, PartCard, PartConsole, PartSection
from ...console.queues_and_workers import QueueRate
from ...queue.store import Store
from ...values import counting
from ...values.exposition import Histogram, Metric, Value
from ...values.part import later
from . import rules
from .claim_costs import claim_costs
from .subcommand import ListFailures

# Sent by pages. Returns the names of the queues in the history. Index: the primary key, or prune, of the roll-ups.
KNOWN_QUEUES = """
SELECT queue_name
FROM skipqueue_rollup
WHERE span = 0 AND task = '' AND queue_name > ''
ORDER BY queue_name
LIMIT %(limit)s
"""

# Sent by metrics `jobs`. Returns the counts of each pair of queue and task since the beginning, the busiest first.
# Index: the primary key, or prune, of the roll-ups.
ROLLED_UP = """
SELECT
    queue_name, task, enqueued, recovered, lost, completed, retried, snoozed, failed, discarded,
    array_to_json(waited)::text, waited_seconds, array_to_json(ran)::text, ran_seconds
FROM skipqueue_rollup
WHERE span = 0 AND task > ''
ORDER BY GREATEST(enqueued, completed + retried + snoozed + failed + discarded) DESC, queue_name, task
LIMIT %(limit)s
"""

# Sent by metrics `claims`. Returns the histogram of the durations of all claims since the beginning, and their sum.
# Index: the primary key or prune of the roll-ups.
CLAIMS = """
SELECT array_to_json(claim_times)::text, claim_seconds
FROM skipqueue_rollup
WHERE span = 0 AND queue_name = '' AND task = '' AND starts_at = to_timestamp(0)
LIMIT 1
"""


MOST_CALLS_READ = 2_000
"""A scrape reads this many pairs of queue and task, the busiest first."""

CALL_LABELS = ("queue", "task")

OUTCOMES = ("completed", "retried", "snoozed", "failed", "discarded")


def known_queues(store: Store, limit: int) -> list[str]:
    return [name for (name,) in store.rows(KNOWN_QUEUES, {"limit": limit})]


@measured(
    "jobs",
    Metric("skipqueue_jobs_enqueued_total", "counter", "Jobs that were inserted.", CALL_LABELS),
    Metric("skipqueue_attempts_total", "counter", "Attempts that ended, by outcome.", (*CALL_LABELS, "outcome")),
    Metric("skipqueue_jobs_recovered_total", "counter", "Jobs that were recovered from dead workers.", CALL_LABELS),
    Metric(
        "skipqueue_leases_lost_total",
        "counter",
        "Attempts that lost their lease before their outcome was written.",
        CALL_LABELS,
    ),
    Metric("skipqueue_wait_seconds", "histogram", "Seconds from the due time to the start of an attempt.", CALL_LABELS),
    Metric("skipqueue_run_seconds", "histogram", "Seconds from the start of an attempt to its end.", CALL_LABELS),
)
def jobs(store: Store) -> Iterator[Values]:
    """Read the counts of each pair of queue and task. All pairs after the busiest `MOST_SERIES` are added up."""
    enqueued, attempts, recovered, lost, waited, ran = metrics = [dict[tuple[str, ...], Value]() for _ in range(6)]
    rows = store.rows(ROLLED_UP, {"limit": MOST_CALLS_READ})
    for labels, numbers in bounded(((queue_name, task), numbers) for queue_name, task, *numbers in rows):
        number_enqueued, number_recovered, number_lost, *by_outcome = numbers[:-4]
        waits, waited_seconds, runs, ran_seconds = numbers[-4:]
        _add(enqueued, labels, number_enqueued)
        _add(recovered, labels, number_recovered)
        _add(lost, labels, number_lost)
        for outcome, number in zip(OUTCOMES, by_outcome, strict=True):
            _add(attempts, (*labels, outcome), number)
        _add(waited, labels, _histogram(waits, waited_seconds))
        _add(ran, labels, _histogram(runs, ran_seconds))
    yield from metrics


@measured(
    "claims",
    Metric("skipqueue_claim_seconds", "histogram", "Seconds that PostgreSQL took for claims that returned jobs."),
)
def claims(store: Store) -> Iterator[Values]:
    times, seconds = next(iter(store.rows(CLAIMS)), (None, 0.0))
    yield {(): _histogram(times, seconds)}


@measured(
    "claim_costs",
    Metric("skipqueue_claim_pages", "gauge", "Pages that the search of a claim of 100 jobs read.", CALL_LABELS[:1]),
    Metric("skipqueue_claim_index_entries", "gauge", "Index entries that this search read.", CALL_LABELS[:1]),
)
def measured_claims(store: Store) -> Iterator[Values]:
    costs = claim_costs(store, limit=MOST_SERIES)
    yield {(cost.queue_name,): cost.pages for cost in costs}
    yield {(cost.queue_name,): cost.rows for cost in costs}


def _histogram(counts: str | None, total: float) -> Histogram:
    """Decode a histogram from JSON, which is ten times as fast as psycopg's decoding of an array."""
    return Histogram(json.loads(counts) if counts else counting.all_buckets(()), total)


def _add(values: dict[tuple[str, ...], Value], labels: tuple[str, ...], value: Value) -> None:
    """Add a value to a series. Several rows add to the series that has the label `OTHER`."""
    before = values.get(labels)
    if before is None:
        values[labels] = value
    elif isinstance(before, Histogram) and isinstance(value, Histogram):
        values[labels] = Histogram(counting.added(before.counts, value.counts), before.total + value.total)
    elif not isinstance(before, Histogram) and not isinstance(value, Histogram):
        values[labels] = before + value


# Sent by pages. Adds up the current minute and the `minutes` before it. Returns one row for each queue, and one row
# with an empty name for all queues together: the name, the number of jobs that ended, the length of this time in
# minutes, the histogram of waiting times, and the longest waiting time. Index: prune of the roll-ups.
RATES_NOW = """
SELECT queue_name, ended, date_part('epoch', statement_timestamp() - first_minute) / 60, waited, waited_longest
FROM (
    SELECT queue_name, task, completed + failed + discarded AS ended, waited, waited_longest, first_minute
    FROM
        skipqueue_rollup,
        (SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => %(minutes)s)) AS age (first_minute)
    WHERE span = 60 AND starts_at >= first_minute
    ORDER BY starts_at DESC
    LIMIT 20000
) AS recent
WHERE task = ''
"""

RATE_MINUTES = 5
"""A rate counts the jobs of this many whole minutes before the current minute."""


def queue_rates(store: Store) -> dict[str, QueueRate]:
    rates: dict[str, QueueRate] = {}
    for name, ended, minutes, waited, longest in store.rows(RATES_NOW, {"minutes": RATE_MINUTES}):
        before = rates.get(name, QueueRate(0.0, []))  # the sum of this queue's minutes so far
        histogram = counting.added(before.waited, waited or [])
        longest_wait = max(filter(None, (before.longest, longest)), default=None)
        rates[name] = QueueRate(before.per_minute + ended / minutes, histogram, longest_wait)
    return rates


DASHBOARD_MODULE, FAILURES_MODULE, TASK_PAGE_MODULE = (
    f"{__package__}.{name}" for name in ("dashboard", "failures", "task_page")
)
"""Modules that import the admin, so commands must not import them."""

CONSOLE = PartConsole(
    subcommands=(ListFailures(),),
    rules=rules.HISTORY_RULES,
    usual_waits=rules.usual_waits,
    usual_runs=rules.usual_runs,
    metrics=(jobs, claims, measured_claims),
    known_queues=known_queues,
    queue_rates=queue_rates,
    pages=later(f"{FAILURES_MODULE}.pages"),
    bar_entries=(
        BarEntry(label=_("Failing now"), page="job_failures", others=("job_cause",), place=30, rules=("failing-task",)),
    ),
    about_job=later(f"{FAILURES_MODULE}.failures_like"),
    task_sections=(
        PartSection(
            name="attempts",
            template="admin/django_skipqueue/history/task.html",
            content=later(f"{TASK_PAGE_MODULE}.about_task"),
            css="django_skipqueue/history/failures.css",
        ),
    ),
    cards=(
        PartCard(make=later(f"{DASHBOARD_MODULE}.rate"), after="running"),
        PartCard(make=later(f"{DASHBOARD_MODULE}.recovered"), after="failed"),
    ),
    sections=(
        PartSection(
            name="charts",
            template="admin/django_skipqueue/history/charts.html",
            content=later(f"{DASHBOARD_MODULE}.charts"),
            is_of_queue=True,
        ),
        PartSection(
            name="failing",
            template="admin/django_skipqueue/history/failing.html",
            content=later(f"{FAILURES_MODULE}.top_causes"),
            css="django_skipqueue/history/failures.css",
        ),
        PartSection(
            name="slowest_tasks",
            template="admin/django_skipqueue/history/slowest_tasks.html",
            content=later(f"{DASHBOARD_MODULE}.slowest_tasks"),
            is_of_queue=True,
            after="longest_jobs",
        ),
    ),
)

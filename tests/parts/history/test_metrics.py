"""The metrics of what has happened to jobs, from roll-ups in a real database."""

import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from prometheus_client import CollectorRegistry, generate_latest

from django_skipqueue.console.metrics import catalogue as labels
from django_skipqueue.integrations.prometheus import SkipqueueCollector
from django_skipqueue.parts.history import console as metrics
from django_skipqueue.parts.history.claim_costs import ClaimCost
from django_skipqueue.parts.history.rollups import AttemptCounts, roll_up, roll_up_depths, rows_of_counts
from django_skipqueue.queue.observe import queues_now
from django_skipqueue.values.counting import BUCKETS, histogram

from ...app.rows import make_job, make_worker
from ...console.metrics.test_scrape import STORE, scraped_values, series_key, values_by_series

pytestmark = pytest.mark.django_db(transaction=True)


def record_attempts(queue_name: str, task: str, **counts: Any) -> None:
    this_minute = int(time.time() // 60)
    roll_up(STORE, list(rows_of_counts({(this_minute, queue_name, task): AttemptCounts(**counts)})), [])


def test_a_queue_that_is_empty_now_has_zeros() -> None:
    record_attempts("mail", "t", completed=1)
    metrics_found = scraped_values()
    assert (
        metrics_found[series_key("queued_jobs", queue="mail")]
        == metrics_found[series_key("oldest_queued_seconds", queue="mail")]
        == 0
    )
    assert series_key("queued_jobs", queue="") not in metrics_found


def test_the_scrape_has_counters_and_histograms_of_each_task() -> None:
    durations = {"waited": histogram([0.2, 3.0]), "ran": histogram([0.01, 0.02])}
    sums = {"waited_seconds": 3.2, "ran_seconds": 0.03}
    record_attempts("mail", "shop.send", completed=5, retried=2, failed=1, recovered=3, lost=4, **durations, **sums)
    record_attempts("mail", "shop.send", completed=1, discarded=1, snoozed=2)
    metrics_found = scraped_values()
    task_labels = {"queue": "mail", "task": "shop.send"}
    outcomes = {
        outcome: metrics_found[series_key("attempts_total", outcome=outcome, **task_labels)]
        for outcome in ("completed", "retried", "snoozed", "failed", "discarded")
    }
    assert outcomes == {"completed": 6, "retried": 2, "snoozed": 2, "failed": 1, "discarded": 1}
    assert metrics_found[series_key("jobs_recovered_total", **task_labels)] == 3
    assert metrics_found[series_key("leases_lost_total", **task_labels)] == 4
    assert metrics_found[series_key("jobs_enqueued_total", **task_labels)] == 0
    assert metrics_found[series_key("wait_seconds_bucket", le="0.25", **task_labels)] == 1
    assert (
        metrics_found[series_key("wait_seconds_count", **task_labels)]
        == metrics_found[series_key("wait_seconds_bucket", le="+Inf", **task_labels)]
        == 2
    )
    assert metrics_found[series_key("wait_seconds_sum", **task_labels)] == 3.2
    assert metrics_found[series_key("run_seconds_sum", **task_labels)] == 0.03
    assert series_key("attempts_total", queue="mail", task="", outcome="completed") not in metrics_found


def test_claims_of_all_queues_have_one_histogram() -> None:
    record_attempts("", "", claims=2, claim_times=histogram([0.004, 0.3]), claim_seconds=0.304)
    metrics_found = scraped_values()
    assert metrics_found[series_key("claim_seconds_count")] == 2
    assert metrics_found[series_key("claim_seconds_bucket", le="0.005")] == 1
    assert metrics_found[series_key("claim_seconds_sum")] == pytest.approx(0.304)


def test_the_scrape_has_the_claim_costs_of_the_deepest_queues() -> None:
    record_attempts("mail", "t", completed=1)
    make_job(queue_name="mail")
    roll_up_depths(STORE, queues_now(STORE), [ClaimCost("mail", 12, 34)])
    metrics_found = scraped_values()
    assert metrics_found[series_key("claim_pages", queue="mail")] == 12
    assert metrics_found[series_key("claim_index_entries", queue="mail")] == 34


def test_the_busiest_queues_have_labels_of_their_own_and_all_others_share_a_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labels, "MOST_SERIES", 2)
    for number in range(1, 5):
        record_attempts(f"q{number}", "t", completed=number, ran=histogram([1.0] * number), ran_seconds=float(number))
        make_job(queue_name=f"q{number}", run_after=timedelta(seconds=-60 * number))
        for _ in range(number):
            make_job(queue_name=f"q{number}")
    metrics_found = scraped_values()
    assert metrics_found[series_key("attempts_total", queue="q4", task="t", outcome="completed")] == 4
    assert metrics_found[series_key("attempts_total", queue="(other)", task="(other)", outcome="completed")] == 1 + 2
    assert metrics_found[series_key("run_seconds_count", queue="(other)", task="(other)")] == 3
    assert metrics_found[series_key("run_seconds_sum", queue="(other)", task="(other)")] == 3.0
    assert metrics_found[series_key("queued_jobs", queue="q4")] == 5
    assert metrics_found[series_key("queued_jobs", queue="(other)")] == 2 + 3
    assert 120 <= metrics_found[series_key("oldest_queued_seconds", queue="(other)")] < 150
    assert {dict(series_labels)["queue"] for _, series_labels in metrics_found if "queue" in dict(series_labels)} == {
        "q3",
        "q4",
        "(other)",
    }


def test_histogram_counts_are_read_as_json() -> None:
    """Python reads a thousand histograms in 10 ms. psycopg takes ten times as long to read arrays."""
    counts = list(range(BUCKETS))
    minute = int(time.time() // 60)
    roll_up(
        STORE,
        list(rows_of_counts({(minute, "mail", "shop.jobs.send"): AttemptCounts(1, waited=counts, ran=counts)})),
        [],
    )
    [(*_, waited, _, ran, _)] = STORE.rows(metrics.ROLLED_UP, {"limit": 10})
    assert json.loads(waited) == json.loads(ran) == counts


@pytest.fixture
def rollups_hidden() -> Iterator[None]:
    """Rename the table of roll-ups, so that no statement finds it."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_rollup RENAME TO rollups_hidden")
        yield
        cursor.execute("ALTER TABLE rollups_hidden RENAME TO skipqueue_rollup")


def test_metrics_of_other_parts_are_served_if_the_history_fails(
    rollups_hidden: None, caplog: pytest.LogCaptureFixture
) -> None:
    make_worker()
    metrics_found = scraped_values()
    failed = {
        dict(series_labels)["part"]
        for (name, series_labels), value in metrics_found.items()
        if name.endswith("scrape_error") and value
    }
    assert failed == {"queues", "jobs", "claims", "claim_costs"}
    assert metrics_found[series_key("scrape_error", part="workers")] == 0
    assert metrics_found[series_key("workers", state="live")] == 1
    assert "scrape failed part=jobs error=" in caplog.text


def test_the_collector_has_the_histograms_of_each_task() -> None:
    record_attempts("mail", "t", completed=2, ran=histogram([0.1, 0.2]), ran_seconds=0.3)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(SkipqueueCollector())
    by_library, by_package = values_by_series(generate_latest(registry).decode()), scraped_values()
    assert by_library.keys() == by_package.keys()
    assert by_library[series_key("run_seconds_bucket", queue="mail", task="t", le="0.1")] == 1


def test_a_statement_is_bounded_and_reads_only() -> None:
    for statement in (metrics.KNOWN_QUEUES, metrics.ROLLED_UP, metrics.CLAIMS):
        assert re.search(r"\bLIMIT (\d+|%\(limit\)s)\s*$", statement)
        assert not re.search(r"\b(INSERT|UPDATE|DELETE|ALTER|FOR SHARE)\b", statement)
        assert "skipqueue_job" not in statement

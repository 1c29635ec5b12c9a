"""All metrics of a real database: their values, their bounds, and what is served if some of them fail."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.db.models.functions import Now
from django.test import override_settings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_skipqueue.console.metrics import catalogue, scrape
from django_skipqueue.console.metrics.catalogue import Scraped
from django_skipqueue.integrations.prometheus import SkipqueueCollector
from django_skipqueue.models import JobBatch, Queue, RateBucket
from django_skipqueue.queue.session import short_transaction
from django_skipqueue.queue.store import Store
from django_skipqueue.values.exposition import exposition

from ...app.limit_rows import make_halted, make_limited, make_rated
from ...app.rows import make_job, make_worker
from ...app.sessions import Session
from ...parts.schedules.rows import make_schedule

pytestmark = pytest.mark.django_db(transaction=True)

STORE = Store("default")
REFERENCE = Path(__file__).parents[3] / "docs/reference/metrics.md"

SeriesKey = tuple[str, frozenset[tuple[str, str]]]


def values_by_series(text: str) -> dict[SeriesKey, float]:
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def scraped_values() -> dict[SeriesKey, float]:
    return values_by_series(exposition(scrape.scrape(STORE)))


def series_key(name: str, **labels: str) -> SeriesKey:
    return f"skipqueue_{name}", frozenset(labels.items())


def test_the_scrape_counts_blocked_jobs_and_halted_sequences() -> None:
    scraped = scraped_values()
    for name in ("halted_sequences", "longest_halt_seconds", "waiting_keys"):
        assert scraped[series_key(name)] == 0, name
    make_limited("a", waiting=3, queue_name="mail")
    make_halted("b", minutes=10, queue_name="mail")
    make_halted("b", minutes=2)
    make_halted("c", minutes=1)
    scraped = scraped_values()
    assert [scraped[series_key("blocked_jobs", queue=name)] for name in ("mail", "default")] == [4, 2]
    assert scraped[series_key("halted_sequences")] == 2
    assert scraped[series_key("longest_halt_seconds")] == pytest.approx(600, abs=30)
    assert scraped[series_key("waiting_keys")] == 3


def test_the_scrape_counts_keys_that_wait_for_their_rate() -> None:
    scraped = scraped_values()
    assert (scraped[series_key("waiting_rate_keys")], scraped[series_key("rate_late_seconds")]) == (0, 0)
    make_rated("a", waiting=2)
    make_rated("b")
    RateBucket.objects.create(key="a", full_at=Now(), due_at=Now() - timedelta(seconds=30))
    RateBucket.objects.create(key="b", full_at=Now(), due_at=Now() + timedelta(seconds=30))
    scraped = scraped_values()
    assert scraped[series_key("waiting_rate_keys")] == 2
    assert scraped[series_key("rate_late_seconds")] == pytest.approx(30, abs=10)


def test_blocked_jobs_of_all_further_queues_share_one_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MOST_SERIES", 1)
    make_limited("a", waiting=3, queue_name="busy")
    for name in ("b", "c"):
        make_limited(name, queue_name=name)
    scraped = scraped_values()
    assert {labels: value for (name, labels), value in scraped.items() if "blocked_jobs" in name} == {
        frozenset({("queue", "busy")}): 3,
        frozenset({("queue", "(other)")}): 2,
    }


def test_the_scrape_has_the_last_and_next_runs_of_schedules() -> None:
    make_schedule("late", due=100, last_run_at=Now() - timedelta(minutes=5))
    make_schedule("paused", due=100, paused_at=Now())
    make_schedule("gone", due=100, source="code", retired_at=Now())
    scraped = scraped_values()
    name = "schedule_last_run_timestamp_seconds"
    assert scraped[series_key(name, schedule="late")] == pytest.approx(time.time() - 300, abs=10)
    assert series_key(name, schedule="paused") not in scraped
    assert scraped[series_key("schedule_next_run_timestamp_seconds", schedule="late")] == pytest.approx(
        time.time() - 100, abs=10
    )
    assert scraped[series_key("schedule_late_seconds", schedule="late")] == pytest.approx(100, abs=10)
    assert scraped[series_key("schedule_late_seconds", schedule="paused")] == 0
    assert not [name for name, labels in scraped if ("schedule", "gone") in labels]


def test_the_scrape_counts_open_batches() -> None:
    scraped = scraped_values()
    assert (scraped[series_key("open_batches")], scraped[series_key("oldest_open_batch_seconds")]) == (0, 0)
    JobBatch.objects.create(created_at=Now() - timedelta(hours=2))
    JobBatch.objects.create(created_at=Now() - timedelta(hours=1))
    JobBatch.objects.create(created_at=Now() - timedelta(hours=9), finished_at=Now())
    scraped = scraped_values()
    assert scraped[series_key("open_batches")] == 2
    assert scraped[series_key("oldest_open_batch_seconds")] == pytest.approx(7200, abs=60)


def test_the_scrape_counts_jobs_of_each_queue() -> None:
    make_job(queue_name="mail", run_after=timedelta(seconds=-90))
    make_job(queue_name="mail")
    make_job("running", queue_name="reports", locked_at=timedelta(seconds=-30))
    Queue.pause("mail")
    scraped = scraped_values()
    assert scraped[series_key("queued_jobs", queue="mail")] == 2
    assert 90 <= scraped[series_key("oldest_queued_seconds", queue="mail")] < 120
    assert scraped[series_key("queued_jobs", queue="reports")] == 0
    assert scraped[series_key("running_jobs", queue="reports")] == 1
    assert 30 <= scraped[series_key("longest_running_seconds", queue="reports")] < 60
    assert [key for key in scraped if key[0] == "skipqueue_queue_paused"] == [series_key("queue_paused", queue="mail")]


def test_the_scrape_counts_workers_by_the_age_of_their_heartbeats() -> None:
    for age in (0, 1, 30, 500):
        make_worker(heartbeat=timedelta(seconds=-age))
    scraped = scraped_values()
    assert [scraped[series_key("workers", state=state)] for state in ("live", "late", "stale")] == [2, 1, 1]


def test_the_scrape_has_the_sizes_of_tables_and_the_prune_lag(connect: Any) -> None:
    make_job("completed", finished_at=timedelta(days=-2))
    other_session = connect()
    other_session.execute("VACUUM skipqueue_worker")
    other_session.execute("SELECT pg_stat_force_next_flush()")
    scraped = scraped_values()
    assert scraped[series_key("table_bytes", table="skipqueue_job")] > 0
    assert scraped[series_key("index_bytes", table="skipqueue_job", index="skipqueue_job_claim")] > 0
    assert series_key("table_dead_rows", table="skipqueue_job") in scraped
    assert series_key("table_live_rows", table="skipqueue_job") in scraped
    assert 0 <= scraped[series_key("table_vacuum_age_seconds", table="skipqueue_worker")] < 60
    assert scraped[series_key("prune_lag_seconds")] == pytest.approx(86_400, abs=60)


def test_partitions_count_as_part_of_their_table(connect: Any) -> None:
    other_session = connect()
    bounds = "FOR VALUES FROM ('1999-1-1') TO ('1999-2-1')"
    other_session.execute(f"CREATE TABLE scrape_part PARTITION OF skipqueue_archivedjob {bounds}")
    try:
        other_session.execute("VACUUM scrape_part")
        other_session.execute("SELECT pg_stat_force_next_flush()")
        scraped = scraped_values()
        labels_of_indexes = [dict(labels) for name, labels in scraped if name.endswith("index_bytes")]
        index_names = {labels["index"] for labels in labels_of_indexes if labels["table"] == "skipqueue_archivedjob"}
        assert index_names
        assert not [name for name in index_names if "part" in name]
        for name in index_names:
            assert scraped[series_key("index_bytes", table="skipqueue_archivedjob", index=name)] >= 8_192
        assert 0 <= scraped[series_key("table_vacuum_age_seconds", table="skipqueue_archivedjob")] < 60
        assert series_key("table_dead_rows", table="scrape_part") not in scraped
    finally:
        other_session.execute("DROP TABLE scrape_part")


def test_the_scrape_has_rows_and_pages_of_the_queue_and_of_the_database() -> None:
    make_job()
    scraped = scraped_values()
    for name in ("rows_written_total", "pages_read_total", "pages_hit_total"):
        assert 0 <= scraped[series_key(name, scope="queue")] <= scraped[series_key(name, scope="database")]
    assert scraped[series_key("scrape_error", part="statements")] == 0


def test_the_scrape_counts_sessions_that_wait_for_a_lock(session: Callable[[], Session]) -> None:
    assert scraped_values()[series_key("lock_waits")] == 0
    holder, waiter = session(), session()
    job = make_job()
    for lock_session in (holder, waiter):
        lock_session.begin()
    holder(lock, job.pk)
    waiting = waiter.start(lock, job.pk)
    waiter.wait_until_blocked()
    scraped = scraped_values()
    assert scraped[series_key("lock_waits")] == 1
    assert scraped[series_key("longest_lock_wait_seconds")] >= 0
    holder.rollback()
    waiting.result(10)
    waiter.rollback()


def lock(job_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [job_id])


# A part that fails


def test_a_part_of_the_scrape_that_takes_too_long_is_left_out(session: Callable[[], Session], monkeypatch: Any) -> None:
    monkeypatch.setattr(scrape, "PART_SECONDS", 2.0)
    other_session = session()
    other_session.begin()
    other_session(lock_table)
    scraped = scraped_values()
    other_session.rollback()
    assert scraped[series_key("scrape_error", part="workers")] == 1
    assert scraped[series_key("scrape_error", part="jobs")] == 0
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",), "the timeout ends with the part"


def test_many_slow_parts_together_do_not_exceed_the_time_of_a_scrape(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def sleep_for_a_minute(store: Store) -> Iterator[Any]:
        store.rows("SELECT pg_sleep(60)")
        yield from ()

    names = [f"slow {number}" for number in range(20)]
    monkeypatch.setattr(scrape, "scraped", lambda: [Scraped(name, sleep_for_a_minute) for name in names])
    monkeypatch.setattr(scrape, "SCRAPE_SECONDS", 3.0)
    started_at = time.monotonic()
    scraped = scraped_values()
    assert time.monotonic() - started_at < 10, "Prometheus would have given up"
    for name in names:
        assert scraped[series_key("scrape_error", part=name)] == 1
        assert f'scrape failed part="{name}"' in caplog.text


def test_statements_of_a_scrape_run_without_jit() -> None:
    """PostgreSQL takes 50 ms to compile a statement. The statements are cheap, whatever its planner expects."""

    def jit_setting() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW jit")
            return str(cursor.fetchone()[0])

    before = jit_setting()
    with short_transaction(STORE, 1.0):
        assert jit_setting() == "off"
    assert jit_setting() == before


def lock_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE skipqueue_worker IN ACCESS EXCLUSIVE MODE")


def test_after_a_lost_connection_no_further_part_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []

    def lose_connection(self: Store, statement: str, values: Any = None) -> Any:
        statements.append(statement)
        connection.close()
        raise DatabaseError("the server closed the connection")

    monkeypatch.setattr(Store, "rows", lose_connection)
    scraped = scraped_values()
    assert len(statements) == 1
    assert [value for (name, _), value in scraped.items() if name.endswith("scrape_error")] == [1.0] * len(
        scrape.scraped()
    )


# The library `prometheus_client`, and the reference page


def test_the_collector_of_the_library_has_the_series_of_the_page() -> None:
    make_job(queue_name="mail")
    registry = CollectorRegistry(auto_describe=True)
    registry.register(SkipqueueCollector())
    values_of_library, our_values = values_by_series(generate_latest(registry).decode()), scraped_values()
    assert values_of_library.keys() == our_values.keys()
    assert values_of_library[series_key("queued_jobs", queue="mail")] == 1


def test_registering_the_collector_sends_no_query(django_assert_num_queries: Any) -> None:
    registry = CollectorRegistry(auto_describe=True)
    with django_assert_num_queries(0), override_settings(SKIPQUEUE={"DATABASE": "none"}):
        registry.register(SkipqueueCollector())
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(SkipqueueCollector())


def test_without_the_library_the_error_names_the_extra() -> None:
    code = (
        "import django, sys; sys.modules['prometheus_client'] = None; django.setup()\n"
        "try: import django_skipqueue.integrations.prometheus\n"
        "except ImportError as error: print(error)\n"
        "import django_skipqueue.console.metrics.page"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": ".:example_project"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REFERENCE.parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'pip install "django-skipqueue[prometheus]"' in process.stdout


def test_the_reference_has_every_metric_with_its_kind_and_labels() -> None:
    table_rows = re.findall(r"^\| `(skipqueue_\w+)` \| (\w+) \|(.*?)\|", REFERENCE.read_text(), re.MULTILINE)
    documented_metrics = {name: (kind, tuple(re.findall(r"`(\w+)`", cell))) for name, kind, cell in table_rows}
    assert documented_metrics == {metric.name: (metric.kind, metric.labels) for metric in scrape.metrics()}


def test_the_catalogue_has_every_metric_that_is_served() -> None:
    make_job(queue_name="mail")
    Queue.pause("mail")
    served = re.findall(r"^# TYPE (\w+)", exposition(scrape.scrape(STORE)), re.MULTILINE)
    only_with_several_databases = scrape.DATABASE_UP.name
    assert sorted([*served, only_with_several_databases]) == sorted(metric.name for metric in scrape.metrics())


def test_names_of_metrics_follow_the_conventions_of_prometheus(subtests: pytest.Subtests) -> None:
    for metric in scrape.metrics():
        with subtests.test(metric.name):
            assert re.fullmatch(r"skipqueue(_[a-z]+)+", metric.name)
            assert metric.name.endswith("_total") == (metric.kind == "counter")
            assert metric.kind != "histogram" or metric.name.endswith("_seconds")


# Statements of metrics


def test_statements_of_metrics_are_bounded_and_read_only(subtests: pytest.Subtests) -> None:
    for name, text in (("INDEX_SIZES", catalogue.INDEX_SIZES), ("DEAD_ROWS", catalogue.DEAD_ROWS)):
        with subtests.test(name):
            assert re.search(r"\bLIMIT (\d+|%\(limit\)s)\s*$", text)
            assert not re.search(r"\b(INSERT|UPDATE|DELETE|ALTER|FOR SHARE)\b", text)
            assert "skipqueue_job" not in text

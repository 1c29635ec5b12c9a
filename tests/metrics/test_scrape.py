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

from django_skipqueue.console.metrics import catalogue as labels
from django_skipqueue.console.metrics import scrape
from django_skipqueue.console.metrics.catalogue import Scraped
from django_skipqueue.integrations.prometheus import SkipqueueCollector
from django_skipqueue.models import JobBatch, Queue, RateBucket
from django_skipqueue.queue.session import short_transaction
from django_skipqueue.queue.store import Store
from django_skipqueue.values.exposition import exposition

from ..app.limit_rows import make_halted, make_limited, make_rated
from ..app.rows import make_job, make_worker
from ..app.sessions import Session
from ..schedules.rows import make_schedule

pytestmark = pytest.mark.django_db(transaction=True)

STORE = Store("default")
REFERENCE = Path(__file__).parents[2] / "docs/reference/metrics.md"

Key = tuple[str, frozenset[tuple[str, str]]]


def series(text: str) -> dict[Key, float]:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def scraped() -> dict[Key, float]:
    return series(exposition(scrape.scrape(STORE)))


def key(name: str, **given: str) -> Key:
    return f"skipqueue_{name}", frozenset(given.items())


def test_limits_and_sequences() -> None:
    found = scraped()
    assert [found[key(name)] for name in ("halted_sequences", "longest_halt_seconds", "waiting_keys")] == [0, 0, 0]
    make_limited("a", waiting=3, queue_name="mail")
    make_halted("b", minutes=10, queue_name="mail")
    make_halted("b", minutes=2)
    make_halted("c", minutes=1)
    found = scraped()
    assert [found[key("blocked_jobs", queue=name)] for name in ("mail", "default")] == [4, 2]
    assert found[key("halted_sequences")] == 2
    assert found[key("longest_halt_seconds")] == pytest.approx(600, abs=30)
    assert found[key("waiting_keys")] == 3


def test_the_keys_of_rates() -> None:
    found = scraped()
    assert (found[key("waiting_rate_keys")], found[key("rate_late_seconds")]) == (0, 0)
    make_rated("a", waiting=2)
    make_rated("b")
    RateBucket.objects.create(key="a", full_at=Now(), due_at=Now() - timedelta(seconds=30))
    RateBucket.objects.create(key="b", full_at=Now(), due_at=Now() + timedelta(seconds=30))
    found = scraped()
    assert found[key("waiting_rate_keys")] == 2
    assert found[key("rate_late_seconds")] == pytest.approx(30, abs=10)


def test_blocked_jobs_of_many_queues_have_one_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MOST_SERIES", 1)
    make_limited("a", waiting=3, queue_name="busy")
    for name in ("b", "c"):
        make_limited(name, queue_name=name)
    found = scraped()
    assert {each[1]: number for each, number in found.items() if "blocked_jobs" in each[0]} == {
        frozenset({("queue", "busy")}): 3,
        frozenset({("queue", "(other)")}): 2,
    }


def test_the_times_of_schedules() -> None:
    make_schedule("late", due=100, last_run_at=Now() - timedelta(minutes=5))
    make_schedule("paused", due=100, paused_at=Now())
    make_schedule("gone", due=100, source="code", retired_at=Now())
    found = scraped()
    name = "schedule_last_run_timestamp_seconds"
    assert found[key(name, schedule="late")] == pytest.approx(time.time() - 300, abs=10)
    assert key(name, schedule="paused") not in found
    assert found[key("schedule_next_run_timestamp_seconds", schedule="late")] == pytest.approx(
        time.time() - 100, abs=10
    )
    assert found[key("schedule_late_seconds", schedule="late")] == pytest.approx(100, abs=10)
    assert found[key("schedule_late_seconds", schedule="paused")] == 0
    assert not [each for each in found if ("schedule", "gone") in each[1]]


def test_the_open_batches() -> None:
    found = scraped()
    assert (found[key("open_batches")], found[key("oldest_open_batch_seconds")]) == (0, 0)
    JobBatch.objects.create(created_at=Now() - timedelta(hours=2))
    JobBatch.objects.create(created_at=Now() - timedelta(hours=1))
    JobBatch.objects.create(created_at=Now() - timedelta(hours=9), finished_at=Now())
    found = scraped()
    assert found[key("open_batches")] == 2
    assert found[key("oldest_open_batch_seconds")] == pytest.approx(7200, abs=60)


def test_the_queues_as_they_are_now() -> None:
    make_job(queue_name="mail", run_after=timedelta(seconds=-90))
    make_job(queue_name="mail")
    make_job("running", queue_name="reports", locked_at=timedelta(seconds=-30))
    Queue.pause("mail")
    found = scraped()
    assert found[key("queued_jobs", queue="mail")] == 2
    assert 90 <= found[key("oldest_queued_seconds", queue="mail")] < 120
    assert found[key("queued_jobs", queue="reports")] == 0
    assert found[key("running_jobs", queue="reports")] == 1
    assert 30 <= found[key("longest_running_seconds", queue="reports")] < 60
    assert [each for each in found if each[0] == "skipqueue_queue_paused"] == [key("queue_paused", queue="mail")]


def test_the_workers_by_the_age_of_their_heartbeats() -> None:
    for age in (0, 1, 30, 500):
        make_worker(heartbeat=timedelta(seconds=-age))
    found = scraped()
    assert [found[key("workers", state=state)] for state in ("live", "late", "stale")] == [2, 1, 1]


def test_tables_indexes_dead_rows_and_the_prune_lag(connect: Any) -> None:
    make_job("completed", finished_at=timedelta(days=-2))
    other = connect()
    other.execute("VACUUM skipqueue_worker")
    other.execute("SELECT pg_stat_force_next_flush()")
    found = scraped()
    assert found[key("table_bytes", table="skipqueue_job")] > 0
    assert found[key("index_bytes", table="skipqueue_job", index="skipqueue_job_claim")] > 0
    assert key("table_dead_rows", table="skipqueue_job") in found
    assert key("table_live_rows", table="skipqueue_job") in found
    assert 0 <= found[key("table_vacuum_age_seconds", table="skipqueue_worker")] < 60
    assert found[key("prune_lag_seconds")] == pytest.approx(86_400, abs=60)


def test_partitions_count_for_their_table(connect: Any) -> None:
    other = connect()
    make = "CREATE TABLE scrape_part PARTITION OF skipqueue_archivedjob FOR VALUES FROM ('1999-1-1') TO ('1999-2-1')"
    other.execute(make)
    try:
        other.execute("VACUUM scrape_part")
        other.execute("SELECT pg_stat_force_next_flush()")
        found = scraped()
        indexes = {dict(given)["index"] for name, given in found if ("table", "skipqueue_archivedjob") in given
                   and name.endswith("index_bytes")}  # fmt: skip
        assert indexes
        assert not [name for name in indexes if "part" in name]
        for name in indexes:
            assert found[key("index_bytes", table="skipqueue_archivedjob", index=name)] >= 8_192
        assert 0 <= found[key("table_vacuum_age_seconds", table="skipqueue_archivedjob")] < 60
        assert key("table_dead_rows", table="scrape_part") not in found
    finally:
        other.execute("DROP TABLE scrape_part")


def test_the_load_of_the_queue_and_of_the_database() -> None:
    make_job()
    found = scraped()
    for name in ("rows_written_total", "pages_read_total", "pages_hit_total"):
        assert 0 <= found[key(name, scope="queue")] <= found[key(name, scope="database")]
    assert found[key("scrape_error", part="statements")] == 0


def test_who_waits_for_a_lock(session: Callable[[], Session]) -> None:
    assert scraped()[key("lock_waits")] == 0
    holder, waiter = session(), session()
    job = make_job()
    for each in (holder, waiter):
        each.begin()
    holder(lock, job.pk)
    waiting = waiter.start(lock, job.pk)
    waiter.wait_until_blocked()
    found = scraped()
    assert found[key("lock_waits")] == 1
    assert found[key("longest_lock_wait_seconds")] >= 0
    holder.rollback()
    waiting.result(10)
    waiter.rollback()


def lock(job_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [job_id])


# Bounds


# A part that fails


def test_a_part_that_takes_too_long_is_left_out(session: Callable[[], Session], monkeypatch: Any) -> None:
    monkeypatch.setattr(scrape, "PART_SECONDS", 2.0)
    other = session()
    other.begin()
    other(lock_table)
    found = scraped()
    other.rollback()
    assert found[key("scrape_error", part="workers")] == 1
    assert found[key("scrape_error", part="jobs")] == 0
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",), "it ends with the part"


def test_many_parts_that_take_too_long_are_left_out_in_time(monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    def sleeps(store: Store) -> Iterator[Any]:
        store.rows("SELECT pg_sleep(60)")
        yield from ()

    names = [f"slow {number}" for number in range(20)]
    monkeypatch.setattr(scrape, "scraped", lambda: [Scraped(name, sleeps) for name in names])
    monkeypatch.setattr(scrape, "SCRAPE_SECONDS", 3.0)
    began = time.monotonic()
    found = scraped()
    assert time.monotonic() - began < 10, "Prometheus would have given up"
    for name in names:
        assert found[key("scrape_error", part=name)] == 1
        assert f'scrape failed part="{name}"' in caplog.text


def test_no_statement_is_compiled() -> None:
    """PostgreSQL takes 50 ms to compile a statement. The statements are cheap, whatever its planner expects."""

    def shown() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW jit")
            return str(cursor.fetchone()[0])

    before = shown()
    with short_transaction(STORE, 1.0):
        assert shown() == "off"
    assert shown() == before


def lock_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE skipqueue_worker IN ACCESS EXCLUSIVE MODE")


def test_without_a_connection_no_part_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def lost(self: Store, statement: str, values: Any = None) -> Any:
        asked.append(statement)
        connection.close()
        raise DatabaseError("the server closed the connection")

    monkeypatch.setattr(Store, "rows", lost)
    found = scraped()
    assert len(asked) == 1
    assert [value for (name, _), value in found.items() if name.endswith("scrape_error")] == [1.0] * len(
        scrape.scraped()
    )


# The library, and the reference


def test_the_collector_has_the_same_series() -> None:
    make_job(queue_name="mail")
    registry = CollectorRegistry(auto_describe=True)
    registry.register(SkipqueueCollector())
    by_library, ours = series(generate_latest(registry).decode()), scraped()
    assert by_library.keys() == ours.keys()
    assert by_library[key("queued_jobs", queue="mail")] == 1


def test_to_register_the_collector_sends_no_query(django_assert_num_queries: Any) -> None:
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
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REFERENCE.parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'pip install "django-skipqueue[prometheus]"' in done.stdout


def test_the_reference_has_every_metric_with_its_kind_and_labels() -> None:
    documented = re.findall(r"^\| `(skipqueue_\w+)` \| (\w+) \|(.*?)\|", REFERENCE.read_text(), re.MULTILINE)
    given = {name: (kind, tuple(re.findall(r"`(\w+)`", cell))) for name, kind, cell in documented}
    assert given == {metric.name: (metric.kind, metric.labels) for metric in scrape.metrics()}


def test_the_catalogue_has_every_metric_that_is_served() -> None:
    make_job(queue_name="mail")
    Queue.pause("mail")
    served = re.findall(r"^# TYPE (\w+)", exposition(scrape.scrape(STORE)), re.MULTILINE)
    of_several = scrape.DATABASE_UP.name
    assert sorted([*served, of_several]) == sorted(metric.name for metric in scrape.metrics())


def test_names_follow_the_conventions(subtests: pytest.Subtests) -> None:
    for metric in scrape.metrics():
        with subtests.test(metric.name):
            assert re.fullmatch(r"skipqueue(_[a-z]+)+", metric.name)
            assert metric.name.endswith("_total") == (metric.kind == "counter")
            assert metric.kind != "histogram" or metric.name.endswith("_seconds")


# Statements


def test_a_statement_is_bounded_and_reads_only(subtests: pytest.Subtests) -> None:
    for name, text in {name: getattr(labels, name) for name in ("INDEX_SIZES", "DEAD_ROWS")}.items():
        with subtests.test(name):
            assert re.search(r"\bLIMIT (\d+|%\(limit\)s)\s*$", text)
            assert not re.search(r"\b(INSERT|UPDATE|DELETE|ALTER|FOR SHARE)\b", text)
            assert "skipqueue_job" not in text

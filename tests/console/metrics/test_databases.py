"""A scrape of several databases: each series names its database, also while another database is down."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_skipqueue.console.metrics import scrape
from django_skipqueue.console.metrics.scrape import scrape_all
from django_skipqueue.integrations.prometheus import SkipqueueCollector
from django_skipqueue.values.exposition import exposition

from ...app.rows import make_job, make_worker
from ...app.waiting import DEADLINE
from ...harness.proxy import Proxy
from ...harness.reached import NOBODY, reached_at

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ("default", "other")
TOKEN = "s3cr3t-s3cr3t-s3cr3t"
DATABASE_UP = "skipqueue_database_up"


@pytest.fixture(autouse=True)
def two_databases(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SKIPQUEUE = {"DATABASES": BOTH, "METRICS_TOKEN": TOKEN}
    monkeypatch.setattr(scrape, "SCRAPE_CONNECT_SECONDS", DEADLINE)  # enough for a busy machine


@pytest.fixture
def unreachable_alias(settings: Any) -> Iterator[str]:
    """Add a third database that is unreachable, and into which jobs are put by default. Yield its alias."""
    settings.SKIPQUEUE = {"DATABASES": ("gone", *BOTH), "METRICS_TOKEN": TOKEN}
    with reached_at("gone", NOBODY) as alias:
        yield alias


def values_by_database(text: str, name: str, **labels: str) -> dict[str, float]:
    """Return the values of these series by their databases."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        sample.labels["database"]: sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def test_each_series_has_its_database() -> None:
    make_job(queue_name="mail")
    for _ in range(2):
        make_job(queue_name="mail", using="other")
    make_worker(using="other")
    text = exposition(scrape_all())
    assert values_by_database(text, DATABASE_UP) == {"default": 1, "other": 1}
    assert values_by_database(text, "skipqueue_queued_jobs", queue="mail") == {"default": 1, "other": 2}
    assert values_by_database(text, "skipqueue_workers", state="live") == {"default": 0, "other": 1}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels.get("database") for sample in samples} == set(BOTH)


def test_each_metric_has_one_block_for_all_databases() -> None:
    """Prometheus refuses a whole page if the page contains two blocks of one metric."""
    served = re.findall(r"^# TYPE (\w+)", exposition(scrape_all()), re.MULTILINE)
    assert sorted(served) == sorted(metric.name for metric in scrape.metrics())


@pytest.mark.parametrize("setting", [{}, {"DATABASES": ("default",)}])
def test_with_one_database_the_series_have_no_label_database(settings: Any, setting: Any) -> None:
    settings.SKIPQUEUE = setting
    make_job(queue_name="mail")
    text = exposition(scrape_all())
    assert 'skipqueue_queued_jobs{queue="mail"} 1\n' in text
    assert not re.search(r'[{,]database="', text)
    assert f"# TYPE {DATABASE_UP} " not in text


def test_a_retiring_database_has_metrics(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}
    assert values_by_database(exposition(scrape_all()), DATABASE_UP) == {"default": 1, "other": 1}


def test_the_metrics_of_the_other_databases_are_served_while_one_is_down(
    unreachable_alias: str, client: Client
) -> None:
    make_job(queue_name="mail", using="other")
    response = client.get("/metrics/skipqueue", headers={"Authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 200
    text = response.text
    assert values_by_database(text, DATABASE_UP) == {unreachable_alias: 0, "default": 1, "other": 1}
    assert values_by_database(text, "skipqueue_queued_jobs", queue="mail") == {"other": 1}
    assert set(values_by_database(text, "skipqueue_scrape_seconds")) == set(BOTH)


def test_the_admin_serves_the_metrics_of_all_databases(unreachable_alias: str, admin_client: Client) -> None:
    for address in ("/admin/django_skipqueue/job/metrics/", "/admin/django_skipqueue/job/metrics/?database=other"):
        response = admin_client.get(address)
        assert response.status_code == 200
        assert values_by_database(response.text, DATABASE_UP) == {unreachable_alias: 0, "default": 1, "other": 1}


def test_a_scrape_waits_for_two_silent_databases_at_the_same_time(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "SCRAPE_CONNECT_SECONDS", 2.0)
    proxy = Proxy()
    proxy.stall()
    settings.SKIPQUEUE = {"DATABASES": ("default", "slow_1", "slow_2")}
    with reached_at("slow_1", proxy.settings), reached_at("slow_2", proxy.settings):
        started_at = time.monotonic()
        text = exposition(scrape_all())
        seconds_taken = time.monotonic() - started_at
        proxy.close()
    assert values_by_database(text, DATABASE_UP) == {"default": 1, "slow_1": 0, "slow_2": 0}
    assert seconds_taken < 3.9, "one after the other, the two databases would take four seconds"


def test_the_collector_has_the_series_of_the_exposition(unreachable_alias: str) -> None:
    make_job(queue_name="mail")
    registry = CollectorRegistry(auto_describe=True)
    registry.register(SkipqueueCollector())
    text = generate_latest(registry).decode()
    assert values_by_database(text, DATABASE_UP) == {unreachable_alias: 0, "default": 1, "other": 1}
    assert values_by_database(text, "skipqueue_queued_jobs", queue="mail") == {"default": 1}


def test_a_part_that_fails_is_logged_with_its_database(caplog: pytest.LogCaptureFixture) -> None:
    with connections["other"].cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_rollup RENAME TO hidden")
        try:
            text = exposition(scrape_all())
        finally:
            cursor.execute("ALTER TABLE hidden RENAME TO skipqueue_rollup")
    assert values_by_database(text, "skipqueue_scrape_error", part="jobs") == {"default": 0, "other": 1}
    assert values_by_database(text, DATABASE_UP) == {"default": 1, "other": 1}
    assert "scrape failed database=other part=jobs error=" in caplog.text

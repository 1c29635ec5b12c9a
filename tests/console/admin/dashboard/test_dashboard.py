"""The dashboard: what its cards and tables say of hand-made jobs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console.admin.dashboard import Dashboard
from django_skipqueue.models import JobBatch, Queue

from ....app.rows import make_job, make_worker
from ..conftest import LIST

DASHBOARD = f"{LIST}dashboard/"

pytestmark = pytest.mark.django_db


def get_dashboard(**query: str) -> Dashboard:
    return Dashboard.of(query, lambda permission: True)


def get_card(label: str, **query: str) -> Any:
    return next(card for card, _ in get_dashboard(**query).cards if str(card.label) == label)


def test_the_cards_count_jobs_and_workers() -> None:
    make_job(queue_name="mail", run_after=timedelta(minutes=-3))
    make_job(queue_name="other")
    make_job("running", locked_at=timedelta(minutes=-12))
    make_job("scheduled", attempts=1)
    make_job("failed", finished_at=timedelta(hours=-2))
    make_job("failed", finished_at=timedelta(hours=-30))
    make_worker(name="a")
    texts_by_label = {str(card.label): (card.value, card.detail, card.level) for card, _ in get_dashboard().cards}
    assert texts_by_label == {
        "queued": ("2", "in 2 queues", ""),
        "oldest waiting": ("3 min", "in mail", "warning"),
        "running": ("1", "the longest for 12 min", ""),
        "jobs per minute": ("0", "over the last 5 min", ""),
        "retrying": ("1", "wait for another attempt", ""),
        "failed in 24 h": ("1", "0 in the last hour", ""),
        "recovered in 24 h": ("0", "", ""),
        "workers alive": ("1", "4 slots", ""),
    }


def test_the_cards_of_serious_problems_have_the_level_alarm() -> None:
    make_job(run_after=timedelta(minutes=-20))
    make_job("failed")
    level_by_label = {str(card.label): card.level for card, _ in get_dashboard().cards}
    assert {label for label, level in level_by_label.items() if level == "alarm"} == {"oldest waiting", "workers alive"}
    assert level_by_label["failed in 24 h"] == "warning"


def test_a_job_that_waits_in_a_paused_queue_raises_no_alarm() -> None:
    make_job(queue_name="mail", run_after=timedelta(hours=-3))
    Queue.pause("mail", by="ann")
    card = get_card("oldest waiting")
    assert (card.value, card.detail, card.level) == ("3 h", "in mail, paused", "")
    make_job(queue_name="other", run_after=timedelta(minutes=-2))
    card = get_card("oldest waiting")
    assert (card.value, card.detail, card.level) == ("2 min", "in other", "warning")
    assert card.address == f"{LIST}?status=queued&queue=other"


def test_the_card_of_workers_counts_late_and_dead_workers() -> None:
    make_worker(name="a")
    make_worker(name="b", heartbeat=timedelta(minutes=-10))
    assert (get_card("workers alive").value, get_card("workers alive").detail) == ("1", "1 is late or dead")


def test_the_cards_of_one_queue_count_only_its_jobs() -> None:
    make_job(queue_name="mail")
    make_job(queue_name="other")
    make_job("failed", queue_name="other")
    make_worker(name="a", queues=["other"])
    card_by_label = {str(card.label): card for card, _ in get_dashboard(queue="mail").cards}
    assert card_by_label["queued"].value == "1"
    assert card_by_label["queued"].address == f"{LIST}?status=queued&queue=mail"
    assert card_by_label["failed in 24 h"].value == "0"
    assert card_by_label["workers alive"].value == "0"


def section_content(name: str, **query: str) -> Any:
    return next(content for section, content in get_dashboard(**query).sections if section.name == name)


def test_the_five_longest_running_jobs_are_listed() -> None:
    job_by_hours = {
        hours: make_job("running", locked_at=timedelta(hours=-hours), locked_by="web/1:0123456789ab", queue_name="mail")
        for hours in (1, 8, 3, 4, 5, 6, 7)
    }
    listed_jobs = section_content("longest_jobs")
    assert [listed_job["id"] for listed_job in listed_jobs] == [job_by_hours[hours].pk for hours in (8, 7, 6, 5, 4)]
    assert (listed_jobs[0]["ran"], listed_jobs[0]["worker_id"]) == ("8 h", "web/1:0123456789ab")
    assert section_content("longest_jobs", queue="other") == []


def test_the_dashboard_shows_the_state_of_the_queues() -> None:
    Queue.pause("mail")
    assert "paused" in str(section_content("queues")["rows"][0])


def test_the_page_shows_cards_and_how_long_it_took_to_compute_them(operator: Client) -> None:
    make_job(queue_name="mail", run_after=timedelta(minutes=-3))
    text = operator.get(DASHBOARD).text
    assert "{#" not in text, "a comment of a template has one line"
    for expected in (
        f"{LIST}?status=queued",
        "3 min",
        "This page was computed in",
    ):
        assert expected in text


@pytest.mark.parametrize("address", ["?range=x", "?range=24h", "?range=7d", "?queue=%00x", f"?queue={'x' * 5000}"])
def test_an_invalid_query_of_the_dashboard_is_no_error(operator: Client, address: str) -> None:
    assert operator.get(DASHBOARD + address).status_code == 200


def test_the_number_of_queries_is_fixed(operator: Client) -> None:
    def count_queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert operator.get(DASHBOARD).status_code == 200
        return len(captured)

    operator.get(DASHBOARD)  # fills the cache of notices
    count_before = count_queries()
    for number in range(8):
        make_job(queue_name=f"q{number}")
        make_job("running", queue_name=f"r{number}")
        make_worker(name=f"w{number}")
    assert count_queries() == count_before <= 32


def test_without_a_permission_to_view_jobs_there_is_no_dashboard(log_in: Callable[..., Client]) -> None:
    assert log_in("view_queue").get(DASHBOARD).status_code == 403


def test_a_card_has_no_link_to_a_list_that_the_user_may_not_view(log_in: Callable[..., Client]) -> None:
    text = log_in("view_job").get(DASHBOARD).text
    assert f'href="{LIST}?status=running"' in text
    assert "/worker/" not in text


def test_lists_and_the_index_link_to_the_dashboard(operator: Client) -> None:
    for address in ("/admin/", "/admin/django_skipqueue/", LIST, "/admin/django_skipqueue/queue/"):
        assert f'href="{DASHBOARD}"' in operator.get(address).text, address


def test_the_dashboard_lists_running_batches_and_batches_with_failures() -> None:
    assert section_content("batches")["rows"] == []
    for number in range(7):
        JobBatch.objects.create(name=f"runs {number}")
        JobBatch.objects.create(name=f"failed {number}", finished_at=Now(), completed=0, failed=1, discarded=0)
    JobBatch.objects.create(name="good", finished_at=Now(), completed=1, failed=0, discarded=0)
    cells = [str(row[0][1]) for row in section_content("batches")["rows"]]
    newest = (6, 5, 4, 3, 2)
    names = [f"runs {number}" for number in newest] + [f"failed {number}" for number in newest]
    assert [name for name, cell in zip(names, cells, strict=True) if f">{name}</a>" not in cell] == []

"""The list of queues in the admin, and the buttons that pause, resume and limit them."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_skipqueue.console import queues_and_workers
from django_skipqueue.console.queues_and_workers import queue_states
from django_skipqueue.models import Queue

from ....app.limit_rows import make_limited
from ....app.rows import make_job, make_worker
from ..conftest import LIST, QUEUES, WORKERS, messages_of, page

pytestmark = pytest.mark.django_db


def queue_names() -> list[str]:
    return [queue.name for queue in queue_states()]


def test_a_queue_is_known_by_its_jobs_tasks_workers_or_pause() -> None:
    make_job(queue_name="waits")
    make_job("running", queue_name="runs")
    make_job("completed", queue_name="was")
    make_worker(queues=["served"])
    make_worker(queues=["dead"], heartbeat=timedelta(hours=-1))
    Queue.pause("paused")
    Queue.pause("resumed")
    Queue.resume("resumed")
    assert {"waits", "runs", "served", "paused", "default"} <= set(queue_names())
    assert not {"was", "dead", "resumed"} & set(queue_names())
    assert queue_names()[0] == "paused", "a queue that needs attention comes first"


def test_a_row_shows_the_jobs_and_the_workers_of_a_queue(operator: Client) -> None:
    for minutes in (3, 1):
        make_job(queue_name="mail", run_after=timedelta(minutes=-minutes))
    make_job("running", queue_name="mail", locked_at=timedelta(minutes=-12))
    make_worker(queues=["mail"], concurrency=8)
    (queue,) = [queue for queue in queue_states() if queue.name == "mail"]
    assert (queue.now.queued, queue.now.running, queue.pause) == (2, 1, None)
    text = operator.get(QUEUES).text
    for expected in ("3 min", "the longest for 12 min", "8 slots", f"{LIST}?status=queued&amp;queue=mail"):
        assert expected in text


class TestBlockedJobs:
    def test_the_number_of_blocked_jobs_links_to_their_list(self, operator: Client) -> None:
        make_limited("k", waiting=3, queue_name="mail")
        make_job("blocked", queue_name="mail", held=True)
        make_job("blocked", queue_name="only blocked")
        blocked_by_queue = {queue.name: str(queue.blocked) for queue in queue_states()}
        assert (blocked_by_queue["mail"], blocked_by_queue["only blocked"], blocked_by_queue["default"]) == (
            "4",
            "1",
            "0",
        )
        text = operator.get(QUEUES).text
        assert f'href="{LIST}?status=blocked&amp;queue=mail">4</a>' in text

    def test_blocked_jobs_are_counted_up_to_a_limit(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queues_and_workers, "MOST_BLOCKED", 2)
        make_limited("k", waiting=3, queue_name="mail")
        blocked_by_queue = {queue.name: str(queue.blocked) for queue in queue_states()}
        assert (blocked_by_queue["mail"], blocked_by_queue["default"]) == ("2+", "0+")

    def test_without_blocked_jobs_the_list_has_no_column_for_them(self, operator: Client) -> None:
        make_job(queue_name="mail")
        assert "column-blocked" not in operator.get(QUEUES).text


def test_a_row_shows_user_end_and_reason_of_a_pause(operator: Client) -> None:
    Queue.pause("mail", for_=timedelta(hours=1), by="ann", reason="no answer")
    until = Queue.objects.get().paused_until
    text = operator.get(QUEUES).text
    assert until is not None
    for expected in ('data-status="paused"', f"until {until:%Y-%m-%d %H:%M}", "by ann", "no answer"):
        assert expected in text


def post_pause(client: Client, **answers: Any) -> Any:
    return client.post(f"{QUEUES}pause/?queue=mail", {"lasts": "", "minutes": "", "reason": "", **answers}, follow=True)


@pytest.mark.parametrize(
    ("answers", "minutes"),
    [
        ({}, None),
        ({"lasts": "15"}, 15),
        ({"lasts": "240"}, 240),
        ({"lasts": "own", "minutes": "90"}, 90),
        ({"lasts": "15", "minutes": "90"}, 15),
        ({"minutes": "90"}, 90),
    ],
)
def test_a_queue_is_paused_for_the_chosen_time(operator: Client, answers: dict[str, str], minutes: int | None) -> None:
    post_pause(operator, **answers)
    queue = Queue.objects.get()
    assert queue.paused_at is not None
    assert queue.paused_by == "ann"
    duration = queue.paused_until and queue.paused_until - queue.paused_at
    assert duration == (None if minutes is None else timedelta(minutes=minutes))


def test_a_pause_is_logged_with_its_reason(operator: Client) -> None:
    response = post_pause(operator, reason="no answer")
    expected = "The queue “mail” is paused by ann until it is resumed: no answer"
    assert messages_of(response) == [expected]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr, entry.get_change_message()) == ("mail", "mail", expected)


@pytest.mark.parametrize(
    "answers", [{"lasts": "own"}, {"lasts": "7"}, {"lasts": "own", "minutes": "0"}, {"reason": "x" * 201}]
)
def test_the_form_of_a_pause_asks_again_after_an_invalid_answer_and_pauses_no_queue(
    operator: Client, answers: dict[str, str]
) -> None:
    response = post_pause(operator, **answers)
    assert "errorlist" in response.text
    assert not Queue.objects.exists()


def post_limit(client: Client, **answers: Any) -> Any:
    return client.post(f"{QUEUES}limit/?queue=mail", {"limit": "own", "number": "", **answers}, follow=True)


@pytest.fixture
def _limited_by_settings(settings: Any) -> None:
    """Limit the queue `mail` in the settings."""
    settings.SKIPQUEUE = {"QUEUES": {"mail": {"concurrency": 20}, "later": {"concurrency": None}}}


@pytest.mark.parametrize(
    ("answers", "stored", "expected_message"),
    [
        ({"number": "1234"}, 1234, "Jobs of the queue “mail” that may run at once: 1,234."),
        ({"limit": "none", "number": "7"}, 0, "Jobs of the queue “mail” that may run at once: any number."),
        ({"limit": "settings"}, None, "The queue “mail” uses the limit from the settings again."),
    ],
)
@pytest.mark.usefixtures("_limited_by_settings")
def test_a_queue_is_limited(
    operator: Client, answers: dict[str, str], stored: int | None, expected_message: str
) -> None:
    Queue.limit("mail", 5)
    response = post_limit(operator, **answers)
    assert messages_of(response) == [expected_message]
    assert Queue.objects.get().concurrency == stored
    assert LogEntry.objects.get().get_change_message() == expected_message


@pytest.mark.parametrize("answers", [{}, {"limit": "7"}, {"number": "0"}, {"number": "10001"}])
@pytest.mark.usefixtures("_limited_by_settings")
def test_the_form_of_a_limit_asks_again_after_an_invalid_limit(operator: Client, answers: dict[str, str]) -> None:
    assert "errorlist" in post_limit(operator, **answers).text
    assert not Queue.objects.exists()


def test_a_queue_whose_jobs_have_no_limit_key_cannot_be_limited(operator: Client) -> None:
    make_job(queue_name="mail")
    assert "limit/?queue" not in operator.get(QUEUES).text
    answer = post_limit(operator, number="3").text
    assert "once SKIPQUEUE[&quot;QUEUES&quot;] names the queue" in answer
    assert not Queue.objects.exists()


@pytest.mark.usefixtures("_limited_by_settings")
def test_the_form_begins_with_the_limit_in_effect(operator: Client) -> None:
    assert {"mail", "later"} <= set(queue_names())
    text = operator.get(QUEUES).text
    assert f"{QUEUES}limit/?queue=mail" in text
    address = f"{QUEUES}limit/?queue=mail"
    question = operator.get(address).text
    assert '<option value="settings" selected>as in the settings: 20</option>' in question
    assert "No worker is alive" not in question, "only questions about many jobs say it"
    Queue.limit("mail", 4)
    assert '<option value="own" selected>' in operator.get(address).text
    assert "in the settings: 20" in operator.get(QUEUES).text
    Queue.limit("mail", None)
    assert '<option value="none" selected>' in operator.get(address).text


def test_a_queue_is_resumed(operator: Client) -> None:
    Queue.pause("mail")
    response = operator.post(f"{QUEUES}resume/", {"queue": "mail"}, follow=True)
    assert messages_of(response) == ["The queue “mail” was resumed."]
    assert not Queue.objects.paused().exists()
    assert LogEntry.objects.count() == 1
    response = operator.post(f"{QUEUES}resume/", {"queue": "mail"}, follow=True)
    assert messages_of(response) == ["The queue “mail” is not paused."]
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize("name", ["", "a,b", " ", "\0", "x" * 1001])
def test_a_name_that_no_queue_can_have_is_not_found(operator: Client, name: str) -> None:
    assert operator.get(f"{QUEUES}pause/", {"queue": name}).status_code == 404
    assert operator.get(f"{QUEUES}limit/", {"queue": name}).status_code == 404
    assert operator.post(f"{QUEUES}resume/", {"queue": name}).status_code == 404


def test_users_who_may_only_view_queues_see_no_buttons(log_in: Callable[..., Client]) -> None:
    Queue.pause("mail")
    text = log_in("view_queue").get(QUEUES).text
    assert "mail" in text
    assert "skipqueue-buttons" not in text


def test_the_list_of_queues_escapes_html(operator: Client) -> None:
    hostile = "<script>alert(1)</script>"
    make_job(queue_name=hostile)
    make_worker(queues=[hostile])
    Queue.pause(hostile, by=hostile, reason=hostile)
    for address in (QUEUES, f"{QUEUES}pause/?queue={hostile}", LIST):
        text = operator.get(address).text
        assert "&lt;script&gt;alert" in text
        assert "<script>alert" not in text


def test_the_number_of_queries_does_not_grow_with_the_queues(operator: Client) -> None:
    query_counts = []
    for queue_count in (1, 20):
        for number in range(queue_count):
            make_job(queue_name=f"{queue_count} {number}")
            Queue.pause(f"{queue_count} {number}")
        operator.get(QUEUES)  # fills the cache of the verdict
        with CaptureQueriesContext(connection) as queries:
            operator.get(QUEUES)
        query_counts.append(len(queries))
    assert query_counts[0] == query_counts[1] <= 22


def test_a_pause_that_is_over_is_not_shown(operator: Client) -> None:
    Queue.pause("mail", for_=timedelta(hours=1))
    Queue.objects.update(paused_until=Now())
    make_job(queue_name="mail")
    assert 'data-status="paused"' not in operator.get(QUEUES).text


def queue_page(name: str) -> str:
    return reverse("admin:django_skipqueue_queue_change", args=[quote(name)])


class TestPage:
    """The page of one queue."""

    def test_lists_and_pages_link_to_the_page_of_a_queue(self, operator: Client) -> None:
        job = make_job("running", queue_name="mail", locked_by=make_worker(queues=["mail"]).pk)
        for address in (QUEUES, WORKERS, LIST, page("change", job.pk), reverse("admin:django_skipqueue_job_dashboard")):
            assert f'href="{queue_page("mail")}"' in operator.get(address).text, address

    def test_the_page_of_a_queue_shows_its_jobs_and_workers(self, operator: Client) -> None:
        make_job(queue_name="mail", run_after=timedelta(minutes=-3))
        worker = make_worker(name="web/1", queues=["mail"], concurrency=8)
        make_worker(name="web/2", queues=["other"])
        running = make_job("running", queue_name="mail", locked_by=worker.pk)
        job_of_other_queue = make_job("running", queue_name="other")
        text = operator.get(queue_page("mail")).text
        for expected in ("<dt>Queued</dt>", f"{LIST}?status=queued&amp;queue=mail", "3 min", "web/1", "1/8 busy"):
            assert expected in text, expected
        assert "web/2" not in text
        assert page("change", running.pk) in text
        assert page("change", job_of_other_queue.pk) not in text
        assert f"{QUEUES}pause/?queue=mail" in text

    def test_the_page_of_a_queue_has_its_charts(self, operator: Client) -> None:
        text = operator.get(queue_page("mail"), {"range": "6h", "queue": "other"}).text
        assert "skipqueue-chart" in text
        assert re.search(r'href="\?range=24h&amp;queue=mail"', text)
        assert re.search(r'href="\?range=6h&amp;queue=mail" aria-current="true"', text)
        assert "skipqueue-cards" not in text

    def test_the_page_of_an_unknown_queue_is_empty(self, operator: Client) -> None:
        text = operator.get(queue_page("nobody's")).text
        assert "nobody&#x27;s" in text
        assert "No worker serves this queue." in text

    def test_a_name_that_no_queue_can_have_is_not_found(self, operator: Client) -> None:
        assert operator.get(queue_page("a,b")).status_code == 404

    def test_users_who_may_not_view_queues_may_not_see_the_page_of_a_queue(self, log_in: Callable[..., Client]) -> None:
        assert log_in("view_job").get(queue_page("mail")).status_code == 403

    def test_the_page_of_a_queue_has_no_buttons_without_permission(self, log_in: Callable[..., Client]) -> None:
        assert "pause/?queue" not in log_in("view_queue").get(queue_page("mail")).text

    def test_users_who_may_view_only_jobs_have_no_link_to_queues_and_workers(
        self, log_in: Callable[..., Client]
    ) -> None:
        job = make_job("completed", queue_name="mail", locked_by="web/1:0123456789ab")
        text = log_in("view_job").get(page("change", job.pk)).text
        assert "mail" in text
        assert "/queue/mail/" not in text
        assert "/worker/" not in text

    def test_the_list_of_queues_escapes_html(self, operator: Client) -> None:
        hostile = "<script>alert(1)</script>"
        make_job("running", queue_name=hostile, task=hostile, locked_by=make_worker(name=hostile).pk)
        Queue.pause(hostile, by=hostile, reason=hostile)
        text = operator.get(queue_page(hostile)).text
        assert "&lt;script&gt;alert" in text
        assert "<script>alert" not in text

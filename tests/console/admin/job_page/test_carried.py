"""How the admin shows a job that a carrier has: another system, such as Celery, where the job may wait or run."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils.timezone import localtime

from django_skipqueue.console.admin.bulk import queue_with_workers
from django_skipqueue.console.admin.dashboard import Dashboard
from django_skipqueue.console.admin.notices import notices_cache
from django_skipqueue.console.queues_and_workers import Workforce, queue_states
from django_skipqueue.console.rules.verdict import Verdict
from django_skipqueue.console.waiting import why_it_waits
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ....app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ....app.rows import make_job, make_worker
from ..conftest import LIST, QUEUES, messages_of, page

pytestmark = pytest.mark.django_db

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _celery_carries_pdf(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS


def handover_time(job: Job) -> str:
    assert job.locked_at is not None
    return f"{localtime(job.locked_at):%H:%M:%S}"


def test_the_page_of_a_carried_job_says_since_when_the_carrier_has_it(operator: Client) -> None:
    make_carrier()
    make_relay()
    job = make_carried()
    text = operator.get(page("change", job.pk)).text
    assert re.search(rf"<dt>At celery since</dt><dd>{handover_time(job)}</dd>", text)
    assert f"It has been with celery since {handover_time(job)}, where it waits or runs." in text
    assert "attempt 1 at celery" in text
    assert "waiting or running for" in text
    for wrong in ("Running for", "<dt>Worker</dt>", "attempt 1 running", ">running for"):
        assert wrong not in text


def test_the_page_of_a_job_that_a_worker_runs_names_no_carrier(operator: Client) -> None:
    text = operator.get(page("change", make_job("running", queue_name="pdf").pk)).text
    assert "Running for" in text
    assert "carrier" not in text


def test_the_page_of_a_finished_carried_job_names_the_carrier_as_its_worker(operator: Client) -> None:
    job = make_carried()
    Job.objects.filter(pk=job.pk).update(status="completed", finished_at=job.locked_at)
    text = operator.get(page("change", job.pk)).text
    assert re.search(r"<dt>Worker</dt><dd><a [^>]*>celery</a></dd>", text)
    assert "At celery since" not in text


def test_the_list_says_since_when_the_carrier_has_a_job(operator: Client) -> None:
    make_carrier()
    job = make_carried()
    text = operator.get(f"{LIST}?status=running").text
    assert f"with celery since {handover_time(job)}</time>" in text
    assert '<span class="skipqueue-detail">celery</span>' not in text


def test_the_explanation_says_when_no_relay_is_alive() -> None:
    job = make_carried()
    assert job.locked_at is not None
    explanation = why_it_waits(job, job.locked_at, Workforce.now())
    reason = "No relay is alive, so its outcome cannot be stored yet."
    assert explanation == f"It has been with celery since {handover_time(job)}. {reason}"


def test_a_queued_job_waits_for_a_relay_or_until_the_carrier_takes_more_jobs() -> None:
    job = make_job(queue_name="pdf")
    make_worker(queues=[])
    assert why_it_waits(job, job.run_after, Workforce.now()) == "It waits for a relay, but no relay of celery is alive."
    make_relay()
    explanation = why_it_waits(job, job.run_after, Workforce.now())
    assert explanation == "It is the next job in the queue “pdf”, and goes to celery once there is room."


class TestCancelling:
    def test_the_question_before_cancelling_says_that_a_carried_job_is_not_interrupted(self, operator: Client) -> None:
        job = make_carried()
        text = operator.get(page("cancel", job.pk)).text
        assert "If it has begun, it is not interrupted, and its outcome is dropped." in text
        assert "Interrupt this job" not in text
        response = operator.post(page("cancel", job.pk), {"confirmed": "yes"}, follow=True)
        expected = f"Job {job.pk} is cancelled. If it has begun, it runs on, and its outcome is dropped."
        assert messages_of(response) == [expected]

    def test_a_job_that_a_worker_runs_is_interrupted(self, operator: Client) -> None:
        text = operator.get(page("cancel", make_job("running", queue_name="pdf").pk)).text
        assert "Interrupt this job" in text

    def test_the_question_before_cancelling_many_jobs_mentions_carried_jobs(
        self, operator: Client, settings: Any
    ) -> None:
        posted = {"action": "cancel_selected", "_selected_action": [make_carried().pk]}
        explanation = "A job that has begun outside of the workers is not interrupted, and its outcome is dropped."
        assert explanation in operator.post(LIST, posted).text
        settings.SKIPQUEUE = {}
        assert explanation not in operator.post(LIST, posted).text


class TestVerdict:
    def problems(self) -> list[tuple[str, str]]:
        return [(problem.code, problem.subject) for problem in Verdict.now(Store("default")).problems]

    def test_a_carried_queue_needs_a_relay(self, operator: Client) -> None:
        make_worker(queues=[])
        make_job(queue_name="pdf")
        assert self.problems() == [("carrier-without-relay", "celery")]
        notices_cache.clear()
        text = operator.get(LIST).text
        assert "No relay of the carrier celery is alive" in text
        assert "<code>python manage.py runrelay --carrier celery</code>" in text
        make_relay()
        assert self.problems() == []

    def test_without_any_process_a_queue_that_is_not_carried_needs_a_worker(self) -> None:
        make_job(queue_name="pdf")
        severity_by_code = {problem.code: problem.severity for problem in Verdict.now(Store("default")).problems}
        assert severity_by_code == {"carrier-without-relay": "critical", "no-worker": "warning"}
        make_job(queue_name="mail")
        assert [problem.severity for problem in Verdict.now(Store("default")).problems] == ["critical", "critical"]

    def test_a_relay_serves_only_its_queues(self) -> None:
        make_relay()
        make_job(queue_name="mail")
        assert self.problems() == [("queue-without-worker", "mail")]

    def test_carried_jobs_take_no_slot_of_a_worker(self) -> None:
        make_carrier()
        relay = make_relay()
        make_carried(locked_by=relay.pk, locked_at=-2 * MINUTE)
        make_job(queue_name="pdf", run_after=-2 * MINUTE)
        make_carried(locked_at=-2 * MINUTE)
        assert self.problems() == []

    def test_a_queue_without_a_free_slot_is_found_beside_carried_jobs(self) -> None:
        make_carrier()
        make_carried(locked_at=-3 * MINUTE)
        worker = make_worker(queues=["mail"], concurrency=1)
        make_job("running", locked_by=worker.pk, locked_at=-2 * MINUTE)
        make_job(queue_name="mail", run_after=-2 * MINUTE)
        assert self.problems() == [("no-free-slot", "mail"), ("carrier-without-relay", "celery")]


class TestDashboard:
    def cards(self, **query: str) -> dict[str, Any]:
        return {str(card.label): card for card, _ in Dashboard.of(query, lambda permission: True).cards}

    def test_the_card_of_workers_counts_relays_separately(self) -> None:
        make_relay()
        card = self.cards()["workers alive"]
        assert (card.value, card.detail, card.level) == ("0", "1 relay", "")
        make_worker(concurrency=4)
        card = self.cards()["workers alive"]
        assert (card.value, card.detail, card.level) == ("1", "4 slots · 1 relay", "")
        card = self.cards(queue="pdf")["workers alive"]
        assert (card.value, card.detail, card.level) == ("0", "1 relay", "")

    def test_the_card_of_workers_does_not_count_a_carrier(self) -> None:
        make_carrier()
        card = self.cards()["workers alive"]
        assert (card.value, card.detail, card.level) == ("0", "none is alive", "alarm")

    def test_the_longest_running_jobs_do_not_include_carried_jobs(self, operator: Client) -> None:
        make_carrier()
        make_carried(locked_at=-9 * HOUR, task="a.carried")
        job_of_worker = make_job("running", task="a.ran")
        card = self.cards()["running"]
        assert (card.value, card.detail) == ("2", "1 in carried queues")
        text = operator.get(f"{LIST}dashboard/").text
        longest = text.partition("Longest running jobs")[2].partition("</section>")[0]
        assert f"#{job_of_worker.pk}" in longest
        assert "a.carried" not in longest


def test_the_list_of_queues_says_which_carrier_has_the_jobs_of_a_queue(operator: Client) -> None:
    make_carried(locked_at=-HOUR)
    make_relay()
    assert "pdf" in [queue.name for queue in queue_states()]
    text = operator.get(QUEUES).text
    assert re.search(r"at celery, the oldest for 1 h", text)
    assert re.search(r'0 <span class="skipqueue-detail">1 relay</span>', text)
    make_worker(queues=["pdf"], concurrency=8)
    assert re.search(r'1 <span class="skipqueue-detail">8 slots · 1 relay</span>', operator.get(QUEUES).text)


def test_a_bulk_action_goes_into_a_queue_that_no_carrier_takes() -> None:
    make_relay()
    assert queue_with_workers() is None
    make_worker(queues=["pdf", "mail"])
    assert queue_with_workers() == "mail"

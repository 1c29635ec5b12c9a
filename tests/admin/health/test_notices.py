"""`notices`: queues without a worker, queues without a free slot, workers without a heartbeat."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console.admin.jobs.job_admin import JobAdmin
from django_skipqueue.console.admin.notices import Notices, NoWorker, notices_cache
from django_skipqueue.console.admin.ui import cached
from django_skipqueue.console.queues_and_workers import state_after
from django_skipqueue.models import Job, Queue, Worker

from ...app import jobs
from ...app.rows import make_job, make_worker
from ..conftest import LIST, QUEUES, WORKERS, page

pytestmark = pytest.mark.django_db

LONG_AGO = timedelta(minutes=-5)


def test_it_is_not_there_while_nothing_waits() -> None:
    for status in ("scheduled", "running", "completed", "failed", "discarded"):
        make_job(status)
    assert Notices.now().no_worker is None


def test_jobs_that_wait_without_a_live_worker_bring_it_up() -> None:
    make_job()
    make_worker(heartbeat=LONG_AGO)
    seen = Notices.now().no_worker
    assert seen == NoWorker(())
    assert seen.command == "python manage.py runworker"


def test_so_does_a_scheduled_job_that_is_overdue() -> None:
    make_job("scheduled", run_after=LONG_AGO)
    assert Notices.now().no_worker == NoWorker(())
    make_worker()
    assert Notices.now().no_worker is None


def test_a_live_worker_for_all_queues_is_enough() -> None:
    make_job(queue_name="mail")
    make_worker(queues=["default"])
    make_worker(queues=[])
    assert Notices.now().no_worker is None


def test_a_queue_that_no_live_worker_serves_is_named() -> None:
    make_job(queue_name="default")
    make_job(queue_name="mail")
    make_job(queue_name="it's")
    make_worker(queues=["default"])
    make_worker(queues=["mail"], heartbeat=LONG_AGO)
    seen = Notices.now().no_worker
    assert seen == NoWorker(("it's", "mail"))
    assert seen.command == """python manage.py runworker --queues 'it'"'"'s,mail'"""


def test_a_paused_queue_needs_no_worker() -> None:
    make_job(queue_name="mail")
    Queue.pause("mail")
    assert Notices.now().no_worker is None


def test_a_paused_queue_is_named_with_a_link(operator: Client) -> None:
    Queue.pause("mail", by="ann", reason="no answer")
    text = operator.get(LIST).text
    assert "The queue “mail” is paused by ann until it is resumed: no answer" in text
    assert f'<a href="{QUEUES}">Queues</a>' in text
    Queue.pause("sms")
    notices_cache.clear()
    assert "2 queues are paused: <strong>mail, sms</strong>." in " ".join(operator.get(WORKERS).text.split())
    assert "queues are paused" not in operator.get(QUEUES).text, "the list itself says it"


COMMAND = "<code>python manage.py runworker</code>"
APP = "/admin/django_skipqueue/"


@pytest.mark.parametrize("address", ["/admin/", APP, LIST, WORKERS])
def test_every_page_shows_it(operator: Client, address: str) -> None:
    assert "skipqueue-banner" not in operator.get(address).text
    job = make_job()
    notices_cache.clear()
    assert COMMAND in operator.get(address).text
    assert COMMAND in operator.get(page("change", job.pk)).text


def test_a_process_looks_once_in_a_few_seconds(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMMAND not in operator.get("/admin/").text
    make_job()
    assert COMMAND not in operator.get("/admin/").text
    monkeypatch.setattr(cached, "CACHE_SECONDS", 0.0)
    assert COMMAND in operator.get("/admin/").text


def test_it_is_for_those_who_may_see_jobs_or_workers(log_in: Callable[..., Client]) -> None:
    make_job()
    client = log_in("retry_job")
    assert "skipqueue-banner" not in client.get("/admin/").text
    user = User.objects.get()
    user.user_permissions.set(Permission.objects.filter(codename="view_worker"))
    assert COMMAND in client.get("/admin/").text


def test_the_index_of_a_project_whose_queue_cannot_be_asked_is_as_ever(operator: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_worker RENAME TO somewhere_else")
    response = operator.get("/admin/")
    assert response.status_code == 200
    assert "skipqueue-banner" not in response.text


def test_an_index_of_the_projects_own_stays() -> None:
    class Own(AdminSite):
        index_template = "own.html"

    plain, own = AdminSite(), Own()
    for site in (plain, own):
        site.register(Job, JobAdmin)
    assert plain.index_template == "admin/django_skipqueue/index.html"
    assert own.index_template == "own.html"


class TestNoFreeSlot:
    @pytest.fixture
    def workers(self) -> list[Worker]:
        """Two, with two slots each, for all queues but `mail`, and one for that."""
        queues = [["default", "reports"], ["default", "reports"], ["mail"]]
        return [make_worker(name=f"w{n}", concurrency=2, queues=names) for n, names in enumerate(queues)]

    def hang(self, worker: Worker, amount: int, task: str = "shop.hang", **fields: Any) -> None:
        """Jobs that run for long."""
        for _ in range(amount):
            times = {"locked_at": timedelta(hours=-12), "started_at": timedelta(hours=-12)}
            make_job("running", task=task, locked_by=worker.pk, **(times | fields))

    def test_jobs_that_hold_every_slot_are_named_where_others_wait_for_them(self, workers: list[Worker]) -> None:
        self.hang(workers[0], 2)
        self.hang(workers[1], 3)  # one is claimed ahead
        for queue_name in ("default", "reports", "mail"):
            make_job(queue_name=queue_name, run_after=timedelta(hours=-11))
        (full,) = Notices.now().no_free_slot
        assert (full.queue_names, full.slots, full.task) == (("default", "reports"), 4, "shop.hang")
        assert (full.longest_in_words, full.waits_in_words) == ("12 h", "11 h")

    def test_a_free_slot_brings_no_notice(self, workers: list[Worker]) -> None:
        self.hang(workers[0], 4)
        self.hang(workers[1], 1)
        make_job(run_after=timedelta(hours=-11))
        assert not Notices.now().no_free_slot

    def test_threads_and_coroutines_are_counted_apart(self, workers: list[Worker]) -> None:
        make_job(queue_name="mail", run_after=timedelta(hours=-11))
        self.hang(workers[2], 1)
        self.hang(workers[2], 1, task=jobs.anoop.name)
        assert not Notices.now().no_free_slot
        self.hang(workers[2], 1, task=jobs.anoop.name)
        assert [(full.task, full.slots) for full in Notices.now().no_free_slot] == [(jobs.anoop.name, 2)]

    def test_short_jobs_bring_no_notice(self, workers: list[Worker]) -> None:
        self.hang(workers[0], 2)
        self.hang(workers[1], 2, locked_at=timedelta(seconds=-5))
        make_job(run_after=timedelta(hours=-11))
        assert not Notices.now().no_free_slot

    def test_a_job_that_has_just_come_brings_no_notice(self, workers: list[Worker]) -> None:
        for worker in workers:
            self.hang(worker, 2)
        make_job()
        assert not Notices.now().no_free_slot

    def test_the_pages_say_so(self, workers: list[Worker], operator: Client) -> None:
        self.hang(workers[2], 2, task="crm.jobs.push_to_crm")
        make_job(queue_name="mail", run_after=timedelta(hours=-11))
        text = " ".join(operator.get(LIST).text.split())
        assert "<strong>mail</strong>: all 2 slots are taken" in text
        assert "<strong>crm.jobs.push_to_crm</strong>, the longest for 12 h" in text
        assert "The next job has waited for 11 h." in text


class TestLateWorkers:
    def test_one_that_is_late_or_dead_is_named(self, operator: Client) -> None:
        make_worker(name="web-1/1")
        assert "skipqueue-banner" not in operator.get(LIST).text
        make_worker(name="web-2/1", heartbeat=timedelta(seconds=-40))
        notices_cache.clear()
        text = " ".join(operator.get(LIST).text.split())
        assert re.search("Worker <strong>web-2/1</strong> has sent no heartbeat for 4[0-9] s", text)
        dead = make_worker(name="web-3/1", heartbeat=LONG_AGO)
        held = make_job("running", locked_by=dead.id)
        notices_cache.clear()
        assert "2 workers are late or dead" in operator.get(LIST).text
        held.delete()
        notices_cache.clear()
        assert "web-3/1" not in operator.get(LIST).text, "its jobs are recovered"

    @pytest.mark.parametrize(
        ("age", "state"), [(0, "live"), (20, "live"), (26, "late"), (59, "late"), (60, "stale"), (900, "stale")]
    )
    def test_late_is_after_two_missed_heartbeats(self, age: float, state: str) -> None:
        assert state_after(timedelta(seconds=age)) == state


def test_the_queries_are_few_whatever_there_is(operator: Client) -> None:
    for number in range(30):
        worker = make_worker(name=f"w{number}", concurrency=1, queues=[f"q{number % 3}"])
        for queue in range(3):
            make_job("running", locked_by=worker.pk, locked_at=timedelta(hours=-1), queue_name=f"q{queue}")
            make_job(queue_name=f"q{queue}", run_after=LONG_AGO)
    with CaptureQueriesContext(connection) as queries:
        assert len(Notices.now().no_free_slot) == 3
    assert len(queries) <= 8


def test_what_keeps_jobs_from_running_is_red_and_the_rest_is_not(operator: Client) -> None:
    make_job()
    make_worker(queues=["other"], name="w", heartbeat=timedelta(seconds=-40))
    Queue.pause("sms")
    banners = re.findall('<div class="skipqueue-banner" data-status="(.*?)"', operator.get(LIST).text)
    assert banners == ["critical", "warning", "warning"]

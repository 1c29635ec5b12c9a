"""The list of workers and the page of a worker: whether a worker is alive, and which jobs it runs."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_skipqueue.console import workers
from django_skipqueue.console.workers import last_jobs_of, processes_of
from django_skipqueue.models import Worker, WorkerRequest
from django_skipqueue.queue.store import Store

from ....app import jobs
from ....app.rows import make_job, make_worker
from ..conftest import LIST, WORKERS, messages_of, page

pytestmark = pytest.mark.django_db

LIVE, LATE, STALE = 'data-status="live"', 'data-status="late"', 'data-status="stale"'


def test_a_row_shows_host_queues_slots_and_state_of_a_worker(operator: Client) -> None:
    make_worker(name="web/1", hostname="web-1", pid=4711, queues=["mail", "default"], concurrency=8)
    text = operator.get(WORKERS).text
    for expected in ("web/1", "web-1 · pid 4711", ">mail</a>, <a", ">default</a>", "0/8 busy", LIVE):
        assert expected in text


def test_a_row_shows_the_deployment_of_a_worker(operator: Client) -> None:
    make_worker(hostname="web-1", pid=4711)
    assert "deployment" not in operator.get(WORKERS).text
    make_worker(hostname="web-2", pid=4712, deployment="4f2a")
    assert "web-2 · pid 4712 · deployment 4f2a" in operator.get(WORKERS).text


def test_the_column_of_the_buttons_has_a_title_for_screen_readers(operator: Client) -> None:
    make_worker()
    assert '<span class="visually-hidden">Actions</span>' in operator.get(WORKERS).text.partition("<tbody>")[0]


def test_a_worker_without_queues_serves_all_queues(operator: Client) -> None:
    make_worker(queues=[])
    assert '<td class="field-queue_names">all queues</td>' in operator.get(WORKERS).text


@pytest.mark.parametrize(("worker_timeout", "state"), [(60, STALE), (600, LATE)])
def test_a_worker_is_late_until_the_worker_timeout_and_then_stale(
    operator: Client, settings: Any, worker_timeout: int, state: str
) -> None:
    settings.SKIPQUEUE = {"WORKER_TIMEOUT": worker_timeout}
    make_worker(heartbeat=timedelta(minutes=-5))
    text = operator.get(WORKERS).text
    assert state in text
    assert "5 min ago" in text


def test_the_row_of_a_worker_links_to_its_running_jobs_the_oldest_first(operator: Client) -> None:
    worker, idle = make_worker(), make_worker()
    young = make_job("running", locked_by=str(worker.pk), task="a.jobs.young")
    old = make_job("running", locked_by=str(worker.pk), task="a.jobs.old", locked_at=timedelta(hours=-1))
    make_job("running", locked_by="somebody else", task="a.jobs.other")
    make_job("completed", locked_by=str(idle.pk), task="a.jobs.finished_before")
    text = operator.get(WORKERS).text
    assert text.index(page("change", old.pk)) < text.index(page("change", young.pk))
    assert "other" not in text
    assert "finished_before" not in text
    assert "nothing" in text


def test_the_row_of_a_worker_shows_only_its_first_running_jobs(operator: Client) -> None:
    worker = make_worker()
    for _ in range(7):
        make_job("running", locked_by=str(worker.pk))
    text = operator.get(WORKERS).text
    assert text.count("skipqueue-running") == 4
    assert "and more" not in text
    assert "4/4 busy" in text
    assert "3 claimed ahead" in text
    Worker.objects.update(concurrency=8)
    text = operator.get(WORKERS).text
    assert text.count("skipqueue-running") == 5
    assert "and more" in text
    assert "7/8 busy" in text


def test_the_row_of_a_worker_counts_threads_and_coroutines_separately(operator: Client) -> None:
    worker = make_worker()
    for task, number in ((jobs.noop, 2), (jobs.anoop, 6)):
        for _ in range(number):
            make_job("running", locked_by=str(worker.pk), task=task.name)
    text = operator.get(WORKERS).text
    assert "2/4 threads, 4/4 coroutines busy" in text
    assert "2 claimed ahead" in text


def test_the_row_of_a_worker_shows_how_long_its_job_runs(operator: Client) -> None:
    make_job("running", locked_by=make_worker().pk, locked_at=timedelta(minutes=-12, seconds=-20))
    assert re.search(r"for 12 min 2\d s", operator.get(WORKERS).text)


def test_an_empty_list_of_workers_shows_the_command_that_starts_one(operator: Client) -> None:
    assert operator.get(WORKERS).text.count("<code>python manage.py runworker</code>") == 1


def test_the_number_of_queries_does_not_grow_with_the_workers(operator: Client) -> None:
    query_counts = []
    for worker_count in (1, 20):
        for _ in range(worker_count):
            make_job("running", locked_by=str(make_worker().pk))
        operator.get(WORKERS)  # fills the cache of the verdict
        with CaptureQueriesContext(connection) as queries:
            operator.get(WORKERS)
        query_counts.append(len(queries))
    assert query_counts[0] == query_counts[1] <= 17


def test_the_list_of_workers_escapes_html(operator: Client) -> None:
    hostile = "<script>alert(1)</script>"
    worker = make_worker(name=hostile, hostname=hostile, queues=[hostile])
    make_job("running", locked_by=str(worker.pk), task=hostile)
    assert "<script>alert" not in operator.get(WORKERS).text


def test_a_row_shows_memory_and_number_of_jobs_of_a_worker(operator: Client) -> None:
    make_worker(memory_mb=1234, jobs_done=5678)
    text = operator.get(WORKERS).text
    assert "1,234 MiB" in text
    assert "5,678 jobs done" in text
    Worker.objects.update(memory_mb=None)
    assert "MiB" not in operator.get(WORKERS).text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("restart", "The worker web/1 restarts once its jobs have ended."),
        ("stop", "The runworker of web/1 stops."),
    ],
)
class TestRequests:
    def address(self, name: str, worker_id: str) -> str:
        return reverse(f"admin:django_skipqueue_worker_{name}", query={"worker": worker_id})

    def test_a_request_to_a_worker_is_stored_and_logged_after_a_question(
        self, operator: Client, name: str, message: str
    ) -> None:
        worker, _ = make_worker(name="web/1"), make_worker(name="web/2")
        address = self.address(name, worker.pk)
        assert address.replace("&", "&amp;") in operator.get(WORKERS).text
        assert operator.get(address).status_code == 200
        assert not WorkerRequest.objects.exists(), "a question changes nothing"
        response = operator.post(address, follow=True)
        assert messages_of(response) == [message]
        assert f"{name} requested" in response.text
        assert list(WorkerRequest.objects.values_list("worker_id", "request")) == [(worker.pk, name)]
        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.get_change_message()) == (worker.pk, message)

    @pytest.mark.parametrize("worker_id", ["", "gone:0123456789ab", "\0", "<b>"])
    def test_no_request_is_sent_to_a_worker_that_has_ended(
        self, operator: Client, name: str, message: str, worker_id: str
    ) -> None:
        for send in (operator.get, operator.post):
            assert messages_of(send(self.address(name, worker_id), follow=True)) == ["This worker has ended."]
        assert not LogEntry.objects.exists()


def test_a_dead_worker_has_no_buttons(operator: Client) -> None:
    make_worker(heartbeat=timedelta(hours=-1))
    assert "skipqueue-buttons" not in operator.get(WORKERS).text


def test_users_who_may_only_view_workers_see_no_buttons(log_in: Callable[..., Client]) -> None:
    make_worker()
    assert "skipqueue-buttons" not in log_in("view_worker").get(WORKERS).text


def test_workers_can_be_neither_added_nor_changed_nor_deleted(operator: Client) -> None:
    worker = make_worker()
    text = operator.get(WORKERS).text
    assert 'name="action"' not in text
    for name, args in (("add", []), ("delete", [worker.pk])):
        assert operator.get(reverse(f"admin:django_skipqueue_worker_{name}", args=args)).status_code == 403
    address = reverse("admin:django_skipqueue_worker_change", args=[worker.pk])
    assert operator.post(address, {"name": "other"}).status_code == 405
    worker.refresh_from_db()
    assert worker.name == "w"


def test_users_who_may_not_view_workers_may_not_see_the_list(log_in: Callable[..., Client]) -> None:
    assert log_in("view_job").get(WORKERS).status_code == 403


@pytest.mark.parametrize("lookup", ["id__exact=%00", "name__regex=("])
def test_a_lookup_in_the_address_is_refused(operator: Client, lookup: str) -> None:
    assert operator.get(f"{WORKERS}?{lookup}").status_code == 400


def worker_page(worker_id: str) -> str:
    return reverse("admin:django_skipqueue_worker_change", args=[quote(worker_id)])


class TestPage:
    """The page of one worker."""

    def test_lists_and_jobs_link_to_the_page_of_a_worker(self, operator: Client) -> None:
        worker = make_worker(name="web/1")
        job = make_job("running", locked_by=worker.pk)
        for address in (WORKERS, page("change", job.pk), LIST, reverse("admin:django_skipqueue_job_dashboard")):
            assert f'href="{worker_page(worker.pk)}"' in operator.get(address).text, address

    def test_the_page_of_a_worker_shows_its_facts_and_running_jobs(self, operator: Client) -> None:
        worker = make_worker(name="web/1", hostname="web-1", queues=["mail"], memory_mb=1234, concurrency=9)
        jobs = [make_job("running", locked_by=worker.pk) for _ in range(7)]
        text = operator.get(worker_page(worker.pk)).text
        for expected in ("web/1", "web-1 · pid", ">mail</a>", "1,234 MiB", "7/9 busy", LIVE, "worker/restart/?worker="):
            assert expected in text
        assert all(page("change", job.pk) in text for job in jobs)

    def test_the_page_of_a_worker_lists_the_last_jobs_of_all_processes_with_its_name(self, operator: Client) -> None:
        worker = make_worker(name="web/1")
        earlier_process_id = "web/1:0123456789ab"
        jobs_of_name = [
            make_job("completed", locked_by=worker.pk, started_at=timedelta(minutes=-1)),
            make_job(
                "failed", locked_by=earlier_process_id, started_at=timedelta(hours=-2), finished_at=timedelta(hours=-1)
            ),
            make_job("scheduled", attempts=1, locked_by=earlier_process_id, started_at=timedelta(hours=-3)),
        ]
        other_jobs = [
            make_job("completed", locked_by=name) for name in ("web/10:0123456789ab", "web/2:0123456789ab", "")
        ]
        text = operator.get(worker_page(worker.pk)).text.partition("Last jobs")[2]
        assert [text.index(page("change", job.pk)) for job in jobs_of_name] == sorted(
            text.index(page("change", job.pk)) for job in jobs_of_name
        )
        assert not any(page("change", job.pk) in text for job in other_jobs)
        processes = text.partition("Processes with this name")[2]
        assert processes.index(worker.pk) < processes.index(earlier_process_id)
        assert 'data-status="retrying"' in text

    def test_the_page_of_a_dead_worker_counts_the_jobs_lost_by_its_death(self, operator: Client) -> None:
        dead_id, live_worker = "web/1:0123456789ab", make_worker(name="web/1")
        death = {"exception": "django_skipqueue.exceptions.WorkerDied", "worker_id": dead_id}
        for _ in range(2):
            now = timedelta(0)
            make_job(
                "completed",
                locked_by=live_worker.pk,
                started_at=now,
                errors=[death, {"exception": "builtins.KeyError"}, 7],
            )
        processes = processes_of(Store.default(), live_worker.pk)
        assert [(process.id, process.jobs, process.lost) for process in processes] == [
            (live_worker.pk, 2, 0),
            (dead_id, 0, 2),
        ]
        assert re.search(r'field-lost"[^>]*>2</td>', operator.get(worker_page(dead_id)).text)

    def test_the_last_jobs_of_a_worker_are_searched_among_the_newest_jobs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workers, "NEWEST_JOBS", 1)
        old = make_job("completed", locked_by="web/1:0123456789ab", finished_at=timedelta(hours=-1))
        assert [job.id for job in last_jobs_of(Store.default(), "web/1:0123456789ab")] == [old.pk]
        make_job("completed", locked_by="web/2:0123456789ab")
        assert last_jobs_of(Store.default(), "web/1:0123456789ab") == []

    def test_the_page_of_a_worker_that_has_ended_lists_its_jobs(self, operator: Client) -> None:
        job = make_job("completed", locked_by="web/1:0123456789ab")
        text = operator.get(worker_page("web/1:0123456789ab")).text
        assert "This worker has ended." in text
        assert page("change", job.pk) in text
        assert "worker/restart/" not in text

    @pytest.mark.parametrize("worker_id", ["gone:0123456789ab", "<b>", "w"])
    def test_an_unknown_worker_has_no_page(self, operator: Client, worker_id: str) -> None:
        assert messages_of(operator.get(worker_page(worker_id), follow=True)) == ["This worker has ended."]

    def test_the_page_of_a_worker_escapes_html(self, operator: Client) -> None:
        hostile = "<script>alert(1)</script>"
        worker = make_worker(name=hostile, hostname=hostile, queues=[hostile], id=f"{hostile}:0123456789ab")
        make_job("completed", locked_by=worker.pk, task=hostile, queue_name=hostile)
        text = operator.get(worker_page(worker.pk)).text
        assert "&lt;script&gt;alert" in text
        assert "<script>alert" not in text

    def test_the_page_of_a_worker_has_no_buttons_without_permission(self, log_in: Callable[..., Client]) -> None:
        worker = make_worker()
        assert "worker/restart/" not in log_in("view_worker").get(worker_page(worker.pk)).text

    def test_users_who_may_not_view_workers_may_not_see_the_page_of_a_worker(
        self, log_in: Callable[..., Client]
    ) -> None:
        assert log_in("view_job").get(worker_page(make_worker().pk)).status_code == 403

"""The archive in the admin: the list with its filters and search, the page of a job, and running it again."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import localtime

from django_skipqueue.console import search
from django_skipqueue.console.periods import Period
from django_skipqueue.models import ArchivedJob, Job
from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.parts.archive.admin import ArchivedJobs
from django_skipqueue.parts.archive.move import make_partitions
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner
from django_skipqueue.testing import run_jobs

from ....app.rows import FINISHED, make_job, make_worker, plan_of
from ....console.admin.conftest import messages_of, page
from ....harness.partitions import drop_partitions

pytestmark = pytest.mark.django_db

ARCHIVE = "/admin/django_skipqueue/archivedjob/"
HOSTILE = "<script>alert('x')</script>"
OLD = timedelta(days=-100)


@pytest.fixture(autouse=True)
def _archive_is_on(settings: Any) -> None:
    settings.SKIPQUEUE = {"ARCHIVE": None}


def prune_into_archive(status: str = "failed", *, finished_at: timedelta = OLD, **fields: Any) -> int:
    """Prune a job, and return its id."""
    job = make_job(status, finished_at=finished_at, **fields)
    pruner = Pruner(Store("default"))
    pruner.batch()
    while pruner.has_more:
        pruner.batch()
    return job.pk


def archived_job_address(job_id: int, name: str = "change") -> str:
    return reverse(f"admin:django_skipqueue_archivedjob_{name}", args=[job_id])


def archived_ids(client: Client, query: str = "") -> list[int]:
    response = client.get(ARCHIVE + query)
    assert response.status_code == 200
    return [job.pk for job in response.context["cl"].result_list]


class TestTheList:
    def test_a_row_shows_task_arguments_error_and_age_of_an_archived_job(self, operator: Client) -> None:
        prune_into_archive(
            task="payments.jobs.charge", kwargs={"token": "hunter22", "amount": 7}, last_error="SMTPError: busy"
        )
        html = operator.get(ARCHIVE).text
        for expected in ("payments.jobs", "charge", "amount=7", "SMTPError: busy", "100 d ago", "Archived jobs"):
            assert expected in html
        assert "hunter22" not in html

    def test_archived_jobs_are_listed_by_their_end_the_newest_first(self, operator: Client) -> None:
        job_ids = [prune_into_archive(finished_at=-timedelta(days=days)) for days in (300, 40, 90, 41)]
        assert archived_ids(operator) == [job_ids[1], job_ids[3], job_ids[2], job_ids[0]]

    def test_the_list_escapes_html_in_an_archived_job(self, operator: Client) -> None:
        prune_into_archive(task=HOSTILE, kwargs={HOSTILE: HOSTILE}, last_error=HOSTILE, queue_name=HOSTILE)
        assert "<script>alert" not in operator.get(ARCHIVE).text

    def test_the_tabs_have_counts_only_for_statuses_that_an_index_can_count(self, operator: Client) -> None:
        ids_by_status = {status: prune_into_archive(status) for status in FINISHED}
        prune_into_archive("failed")
        tabs = operator.get(ARCHIVE).context["cl"].tabs
        assert [(tab.state, str(tab.count)) for tab in tabs] == [
            ("", "None"), ("completed", "None"), ("failed", "2"), ("discarded", "1")
        ]  # fmt: skip
        assert archived_ids(operator, "?status=discarded") == [ids_by_status["discarded"]]
        assert archived_ids(operator, "?status=completed") == [ids_by_status["completed"]]
        assert len(archived_ids(operator, "?status=queued")) == 4, (
            "no job of the archive is queued: the filter is ignored"
        )

    def test_archived_jobs_are_filtered_by_task_queue_and_time(self, operator: Client) -> None:
        old_id = prune_into_archive(task="t.a", queue_name="mail")
        young_id = prune_into_archive(task="t.b", finished_at=timedelta(days=-50))
        assert archived_ids(operator, "?task=t.a") == [old_id]
        assert archived_ids(operator, "?task=t.a&status=completed") == []
        assert archived_ids(operator, "?queue=mail") == [old_id]
        moment_between = localtime() - timedelta(days=75)
        assert archived_ids(operator, f"?first={moment_between:%Y-%m-%dT%H:%M}") == [young_id]
        assert archived_ids(operator, f"?before={moment_between:%Y-%m-%dT%H:%M}") == [old_id]
        assert archived_ids(
            operator, f"?before={moment_between:%Y-%m-%dT%H:%M}&first=2000-01-01T00:00&status=failed"
        ) == [old_id]

    @pytest.mark.parametrize("time_text", ["", "soon", "2026-99-99T00:00", "0001-01-01T00:00", "9999-12-31T23:59"])
    def test_an_invalid_time_in_the_address_is_no_error(self, operator: Client, time_text: str) -> None:
        prune_into_archive()
        assert operator.get(ARCHIVE, {"before": time_text, "first": time_text}).status_code == 200

    def test_the_form_for_the_period_keeps_the_other_filters(self, operator: Client) -> None:
        prune_into_archive()
        html = operator.get(ARCHIVE, {"status": "failed", "q": "abc"}).text
        form = html.partition('class="skipqueue-period"')[2].partition("</form>")[0]
        assert '<input type="hidden" name="status" value="failed">' in form
        assert '<input type="hidden" name="q" value="abc">' in form

    def test_a_lookup_that_is_no_filter_is_refused(self, operator: Client) -> None:
        response = operator.get(ARCHIVE, {"last_error__contains": "x"})
        assert response.status_code in (302, 400)

    @pytest.mark.parametrize("search", ["#{id}", "{id}", "payment_id=42", "Gateway", "order.id=7", "down"])
    def test_a_search_finds_archived_jobs_by_id_argument_and_error(self, operator: Client, search: str) -> None:
        job_id = prune_into_archive(
            kwargs={"payment_id": 42, "order": {"id": 7}}, last_error="GatewayError: down", queue_name="q"
        )
        prune_into_archive("completed", kwargs={"payment_id": None})
        assert archived_ids(operator, "?" + f"q={search.format(id=job_id)}".replace("#", "%23")) == [job_id]

    def test_a_search_does_not_find_masked_values(self, operator: Client) -> None:
        prune_into_archive(kwargs={"token": "hunter22"})
        assert archived_ids(operator, "?q=hunter22") == []
        assert archived_ids(operator, "?q=token=hunter22") == []


class TestThePage:
    def test_the_page_of_an_archived_job_shows_all_that_the_page_of_the_job_showed(self, operator: Client) -> None:
        job_id = prune_into_archive(
            task="payments.jobs.charge",
            args=[1],
            kwargs={"password": "hunter22"},
            errors=[
                {"attempt": 1, "exception": "x.Down", "message": "no", "traceback": "tb", "at": "2026-01-01T00:00Z"}
            ],
            operations=[{"verb": "retry", "by": "anna", "reason": "PSP is back", "at": "2026-01-01T00:00:00+00:00"}],
            last_error="Down: no",
            metadata={"tenant": 7},
        )
        html = operator.get(archived_job_address(job_id)).text
        for expected in (
            "x.Down",
            "retried by anna",
            "PSP is back",
            "tenant",
            "••••••",
            "to the archive after its retention",
        ):
            assert expected in html
        assert "hunter22" not in html
        history = operator.get(archived_job_address(job_id, "history")).text
        assert "anna" in history
        assert archived_job_address(job_id) in history

    def test_the_history_page_of_an_archived_job_shows_the_admin_log(self, operator: Client) -> None:
        job = make_job("failed", finished_at=OLD)
        operator.post(page("run_again", job.pk), {"confirmed": "yes"})
        Pruner(Store("default")).batch()
        assert "Run again as job" in operator.get(archived_job_address(job.pk, "history")).text

    def test_the_page_of_a_pruned_job_leads_to_the_archive(self, operator: Client) -> None:
        job_id = prune_into_archive()
        for name in ("change", "history"):
            response = operator.get(page(name, job_id), follow=True)
            assert response.redirect_chain == [(archived_job_address(job_id), 302)]
        assert operator.get(page("change", job_id), {"fragment": "1"}).status_code == 404

    def test_a_pruned_job_has_no_archive_link_without_permission(self, log_in: Callable[..., Client]) -> None:
        job_id = prune_into_archive()
        client = log_in("view_job")
        response = client.get(page("change", job_id), follow=True)
        assert "There is no job" in messages_of(response)[0]
        for address in (ARCHIVE, archived_job_address(job_id), archived_job_address(job_id, "history")):
            assert client.get(address).status_code == 403
        assert client.get(archived_job_address(job_id, "run_again")).status_code == 403

    @pytest.mark.parametrize("job_id", ["999999", "x", "99999999999999999999999"])
    def test_the_page_of_a_job_that_is_not_in_the_archive_says_so(self, operator: Client, job_id: str) -> None:
        response = operator.get(f"{ARCHIVE}{job_id}/change/", follow=True)
        assert messages_of(response) == [f"There is no job {job_id} in the archive."]

    def test_an_archived_job_can_be_neither_changed_nor_deleted(self, operator: Client) -> None:
        job_id = prune_into_archive()
        assert operator.post(archived_job_address(job_id)).status_code == 405
        for name in ("add/", f"{job_id}/delete/"):
            assert operator.post(ARCHIVE + name, {"post": "yes"}).status_code == 403
        assert ArchivedJob.objects.filter(pk=job_id).exists()

    def test_the_table_is_listed_only_with_an_archive(self, operator: Client, settings: Any) -> None:
        assert ARCHIVE in operator.get("/admin/").text
        settings.SKIPQUEUE = {}
        assert ARCHIVE not in operator.get("/admin/").text


class TestRunAgain:
    def test_an_archived_job_is_run_again_as_a_copy_after_a_question(self, operator: Client) -> None:
        job_id = prune_into_archive(
            task="tests.app.jobs.noop", kwargs={"a": 1}, queue_name="mail", priority=5, timeout=2.5
        )
        address = archived_job_address(job_id, "run_again")
        assert address in operator.get(archived_job_address(job_id)).text
        assert "again, as a new job?" in operator.get(address).text
        assert not Job.objects.exists(), "a GET changes nothing"
        response = operator.post(address, {"confirmed": "yes"}, follow=True)
        copy = Job.objects.get()
        assert response.redirect_chain == [(page("change", copy.pk), 302)]
        assert messages_of(response) == [f"This is job {copy.pk}, a copy of job {job_id}."]
        assert (copy.task, copy.kwargs, copy.queue_name, copy.priority, copy.timeout, copy.status) == (
            "tests.app.jobs.noop", {"a": 1}, "mail", 5, 2.5, "queued"
        )  # fmt: skip
        entries = {entry.object_id: entry.change_message for entry in LogEntry.objects.all()}
        assert entries == {str(job_id): f"Run again as job {copy.pk}.", str(copy.pk): f"Copied from job {job_id}."}

    def test_a_job_that_acts_for_a_user_is_not_run_again(self, operator: Client) -> None:
        job_id = prune_into_archive("completed", task=BULK_TASK)
        address = archived_job_address(job_id, "run_again")
        assert address not in operator.get(archived_job_address(job_id)).text
        assert operator.post(address, {"confirmed": "yes"}).status_code == 403
        assert not Job.objects.exists()

    def test_a_job_is_not_run_again_while_another_job_holds_its_unique_key(self, operator: Client) -> None:
        job_id = prune_into_archive(unique_key="k")
        holder = make_job("queued", unique_key="k")
        response = operator.post(archived_job_address(job_id, "run_again"), {"confirmed": "yes"}, follow=True)
        assert f"job {holder.pk}" in messages_of(response)[0]
        assert Job.objects.count() == 1

    @pytest.mark.parametrize("seconds", [0.0, 3600.0, None])
    def test_a_copy_of_an_archived_job_holds_the_unique_key_for_the_same_time(
        self, operator: Client, seconds: float | None
    ) -> None:
        job_id = prune_into_archive(unique_key="k", unique_seconds=seconds)
        operator.post(archived_job_address(job_id, "run_again"), {"confirmed": "yes"})
        copy = Job.objects.get()
        assert (copy.unique_key, copy.unique_seconds) == ("k", seconds)

    def test_to_run_again_needs_the_permission_to_add_jobs(self, log_in: Callable[..., Client]) -> None:
        job_id = prune_into_archive()
        client = log_in("view_archivedjob", "view_job")
        assert "run-again" not in client.get(archived_job_address(job_id)).text
        assert client.post(archived_job_address(job_id, "run_again"), {"confirmed": "yes"}).status_code == 403
        assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
class TestSearchingEverything:
    """A worker goes through all of the archive, and its page leads to the archived jobs that it has found."""

    def search_all(self, client: Client, query: str = "?q=payment_id%3D7") -> Any:
        """Request the search of this list, and let a worker run it. Returns the page of the search's progress."""
        make_worker()
        address = re.search(r'formaction="([^"]*)"', client.get(ARCHIVE + query).text)
        assert address
        (progress_address, _status), *_ = client.post(address[1].replace("&amp;", "&"), follow=True).redirect_chain
        Job.objects.filter(task=BULK_TASK).update(queue_name="only")
        run_jobs(queue_names=["only"])
        return client.get(progress_address)

    @pytest.fixture(autouse=True)
    def _small_windows(self, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[None]:
        monkeypatch.setattr(search, "WINDOW_SIZE", 2)
        yield
        drop_partitions()

    def test_searching_everything_finds_jobs_that_the_pages_of_a_search_do_not_reach(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(search, "MOST_WINDOWS", 2)
        old_ids = [
            prune_into_archive(finished_at=-timedelta(days=days), kwargs={"payment_id": 7}) for days in (300, 400)
        ]
        for days in range(100, 108):
            prune_into_archive(finished_at=-timedelta(days=days), kwargs={"payment_id": days})
        assert archived_ids(operator, "?q=payment_id=7&look=2") == []
        make_job("failed", kwargs={"payment_id": 7})  # in the job table, which is not searched
        progress_page = self.search_all(operator)
        assert "2 jobs match." in progress_page.text
        found_query = f"?found={Job.objects.get(task=BULK_TASK).pk}"
        assert f'href="{ARCHIVE}{found_query}"' in progress_page.text
        assert f'href="{ARCHIVE}?q=payment_id%3D7"' in progress_page.text
        assert archived_ids(operator, found_query) == old_ids
        assert (
            archived_ids(operator, f"{found_query}&status=failed")
            == archived_ids(operator, f"{found_query}&q=payment_id=7")
            == old_ids
        )
        assert (
            archived_ids(operator, f"{found_query}&status=completed")
            == archived_ids(operator, f"{found_query}&q=nothing")
            == []
        )
        assert {tab.count for tab in operator.get(ARCHIVE + found_query).context["cl"].tabs} == {None}

    @pytest.mark.parametrize("permission", ["view_job", "view_archivedjob"])
    def test_a_user_must_see_the_archive_and_the_page_of_the_progress(
        self, log_in: Callable[..., Client], permission: str
    ) -> None:
        make_worker()
        assert log_in(permission).post(f"{ARCHIVE}search/?q=x").status_code == 403
        assert not Job.objects.exists()

    def test_a_user_who_may_not_see_the_archive_sees_no_progress_of_its_search(
        self, log_in: Callable[..., Client]
    ) -> None:
        make_worker()
        client = log_in("view_job", "view_archivedjob")
        client.post(f"{ARCHIVE}search/?q=x")
        address = page("progress", Job.objects.get().pk)
        assert client.get(address).status_code == 200
        User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_job"))
        assert client.get(address).status_code == client.post(address).status_code == 403

    def test_a_search_is_discarded_once_its_user_may_no_longer_view_the_archive(
        self, log_in: Callable[..., Client]
    ) -> None:
        make_worker()
        client = log_in("view_job", "view_archivedjob")
        assert client.post(f"{ARCHIVE}search/?q=x").status_code == 302
        User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_job"))
        Job.objects.update(queue_name="only")
        run_jobs(queue_names=["only"])
        job = Job.objects.get()
        assert job.status == "discarded"
        assert job.last_error.endswith("ann may not see jobs.")


NUMBER_OF_ROWS = 60_000
INSERT_ARCHIVED_JOBS = """
INSERT INTO skipqueue_archivedjob (
    id, finished_at, enqueued_at, run_after, priority, attempts, max_attempts, status, queue_name, task, args, kwargs,
    locked_by, last_error, errors, metadata
)
SELECT
    number, last - number * (last - first) / 60000, now(), now(), 0, 1, 10,
    CASE WHEN mod(number, 50) = 0 THEN 'failed' WHEN mod(number, 51) = 0 THEN 'discarded' ELSE 'completed' END,
    'default', 'a.jobs.task_' || mod(number, 200), '[]', jsonb_build_object('payment_id', number), '', '', '[]', '{}'
FROM
    generate_series(1, %s) AS number,
    LATERAL (SELECT date_trunc('month', now()) AS last) AS this_month,
    LATERAL (SELECT last - interval '3 months' AS first) AS months
"""
"""Inserts archived jobs of three months: each 50th job failed, and each 51st was discarded."""

# Which index PostgreSQL reads, by the status and the task that filter the list.
INDEXES = {
    (None, None): "finished_at",
    ("completed", None): "finished_at",
    ("failed", None): "status_finished_at",
    ("discarded", None): "status_finished_at",
    (None, "a.jobs.task_3"): "task_finished_at",
    ("failed", "a.jobs.task_3"): "task_finished_at",
}


@pytest.fixture
def _filled_archive() -> None:
    for days in (0, 31, 61, 90, 100):
        make_job("completed", finished_at=-timedelta(days=days))
    make_partitions(Store("default"))
    with connection.cursor() as cursor:
        cursor.execute(INSERT_ARCHIVED_JOBS, [NUMBER_OF_ROWS])
        cursor.execute("ANALYZE skipqueue_archivedjob")


def partitions_read_sequentially(plan: str) -> set[str]:
    """The large partitions that a plan reads by a sequential scan."""
    return set(re.findall(r"Seq Scan on (skipqueue_archivedjob_\d+_\d+)", plan)) - {
        f"skipqueue_archivedjob_{localtime():%Y_%m}",
        f"skipqueue_archivedjob_{localtime() - timedelta(days=100):%Y_%m}",
    }


@pytest.mark.usefixtures("_filled_archive")
class TestPlans:
    @pytest.mark.parametrize(("status_and_task", "index"), INDEXES.items())
    def test_each_list_is_read_from_the_end_of_an_index_in_each_partition(
        self, status_and_task: tuple[str | None, str | None], index: str
    ) -> None:
        jobs = ArchivedJobs.of(*status_and_task, Period()).jobs()[:50]
        plan = plan_of(*jobs.query.sql_with_params())
        indexes_read = set(
            re.findall(r"Index (?:Only )?Scan(?: Backward)? using skipqueue_archivedjob_\d+_\d+_(\w+)_idx", plan)
        )
        assert indexes_read == {index}, plan
        assert partitions_read_sequentially(plan) == set(), plan
        assert not re.search(r"^ *(-> +)?Sort  \(", plan, re.MULTILINE), plan

    @pytest.mark.parametrize(
        "query",
        ["", "?status=failed", "?status=completed", "?task=a.jobs.task_3", "?q=%2312345", "?q=payment_id=59000"],
    )
    def test_no_page_reads_a_partition_from_end_to_end(
        self, operator: Client, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_skipqueue.console.search.WINDOW_SIZE", 5_000)
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(ARCHIVE + query).status_code == 200
        statements = [captured["sql"] for captured in queries if "skipqueue_archivedjob" in captured["sql"]]
        statements = [statement for statement in statements if not statement.startswith("EXPLAIN")]
        assert statements
        for statement in statements:
            plan = plan_of(statement)
            assert partitions_read_sequentially(plan) == set(), (statement, plan)

    def test_a_search_says_which_part_it_has_searched_and_leads_to_the_next_part(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_skipqueue.console.search.WINDOW_SIZE", 5_000)
        response = operator.get(ARCHIVE + "?q=payment_id=7000")
        assert "No match among the first 5,000 jobs" in response.text
        assert archived_ids(operator, "?q=payment_id=7000&look=2") == [7_000]
        moment = localtime(ArchivedJob.objects.get(pk=7_000).finished_at)
        first, before = moment - timedelta(minutes=10), moment + timedelta(minutes=10)
        assert archived_ids(
            operator, f"?q=payment_id=7000&first={first:%Y-%m-%dT%H:%M}&before={before:%Y-%m-%dT%H:%M}"
        ) == [7_000]

"""The job list: its columns, its order, its queries and its permissions."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_skipqueue.console.admin.ui.cells import CELL_LIMIT
from django_skipqueue.models import Job

from ....app.rows import STATUSES, make_job
from ..conftest import LIST, listed, page

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestTheList:
    def test_a_row_shows_status_task_arguments_attempts_and_error_of_a_job(self, operator: Client) -> None:
        make_job(
            "failed", task="payments.jobs.send_receipt", args=[1], kwargs={"email": "x@example.com"}, attempts=2,
            queue_name="mail", last_error="SMTPError: busy\nsecond line", finished_at=timedelta(minutes=-3),
        )  # fmt: skip
        text = operator.get(LIST).text
        for expected in (
            '<span class="skipqueue-badge" data-status="failed">failed</span>',
            "send_receipt",
            "payments.jobs",
            "1, email=&quot;x@example.com&quot;",
            "2/10",
            "SMTPError: busy",
            "3 min ago",
        ):
            assert expected in text
        assert "second line" not in text

    def test_all_jobs_come_newest_first_and_each_status_in_the_order_of_its_index(self, operator: Client) -> None:
        late, early = (make_job("scheduled", run_after=timedelta(hours=hours)) for hours in (2, 1))
        old, new = (make_job("completed", finished_at=timedelta(hours=-hours)) for hours in (2, 1))
        assert listed(operator) == [new.pk, old.pk, early.pk, late.pk]
        assert listed(operator, "?status=scheduled") == [early.pk, late.pk]
        assert listed(operator, "?status=completed") == [new.pk, old.pk]

    def test_the_list_cannot_be_sorted_by_a_column(self, operator: Client) -> None:
        jobs = [make_job(priority=priority) for priority in (1, 9, 5)]
        assert listed(operator, "?o=2") == [job.pk for job in reversed(jobs)]
        assert "sortable" not in operator.get(LIST).text

    def test_the_number_of_queries_does_not_grow_with_the_jobs(self, operator: Client) -> None:
        query_counts = []
        for job_count in (1, 30):
            for status in STATUSES:
                for _ in range(job_count):
                    make_job(status, errors=[{"attempt": 1}], last_error="x")
            operator.get(LIST)  # fills the cache of the verdict
            with CaptureQueriesContext(connection) as queries:
                operator.get(LIST)
            query_counts.append(len(queries))
        assert query_counts[0] == query_counts[1] <= 27

    def test_the_list_loads_no_column_that_it_does_not_show(self, operator: Client) -> None:
        make_job("failed", kwargs={"a": "x" * 100_000}, errors=[{"traceback": "x"}])
        with CaptureQueriesContext(connection) as queries:
            operator.get(LIST)
        (list_query,) = (
            query["sql"] for query in queries if "args_text" in query["sql"] and "COUNT" not in query["sql"]
        )
        for column in ("errors", "result", "metadata"):
            assert f'"skipqueue_job"."{column}"' not in list_query
        (job,) = operator.get(LIST).context["cl"].result_list
        assert len(job.kwargs_text) == CELL_LIMIT * 4  # only the beginning of the arguments was read

    def test_the_list_escapes_html_of_jobs(self, operator: Client) -> None:
        make_job(
            "failed", task=HOSTILE, queue_name=HOSTILE, args=[HOSTILE], kwargs={HOSTILE: HOSTILE}, last_error=HOSTILE
        )
        make_job(task=HOSTILE, queue_name=HOSTILE)
        for address in ("", f"?queue={HOSTILE}", f"?task={HOSTILE}", f"?q={HOSTILE}", f"?status={HOSTILE}"):
            text = operator.get(LIST + address).text
            assert "<script>alert" not in text
            assert 'onload="alert' not in text

    def test_jobs_are_neither_added_nor_edited(self, operator: Client) -> None:
        job = make_job("failed")
        assert operator.get(reverse("admin:django_skipqueue_job_add")).status_code == 403
        assert operator.post(page("change", job.pk), {"status": "completed"}).status_code == 405
        assert operator.post(page("delete", job.pk), {"post": "yes"}).status_code == 405
        assert Job.objects.get(pk=job.pk).status == "failed"

    def test_users_who_may_not_view_jobs_see_neither_list_nor_page(self, log_in: Callable[..., Client]) -> None:
        job = make_job()
        client = log_in("retry_job", "discard_job", "delete_job", "add_job")
        assert client.get(LIST).status_code == 403
        assert client.get(page("change", job.pk)).status_code == 403

    @pytest.mark.parametrize("lookup", ["kwargs__contains=1", "task__icontains=a", "errors__0__message=x", "id__gt=1"])
    def test_a_lookup_by_another_column_is_refused(self, operator: Client, lookup: str) -> None:
        assert operator.get(f"{LIST}?{lookup}").status_code == 400


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_the_admin_shows_and_changes_the_jobs_of_the_configured_database(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASE": "other"}
    make_job("failed")
    job = make_job("failed", using="other", kwargs={"here": 1})
    assert listed(operator) == [job.pk]
    assert "here" in operator.get(page("change", job.pk)).text
    operator.post(page("retry", job.pk))
    for verb in ("discard", "run_again"):
        operator.post(page(verb, job.pk), {"confirmed": "yes"})
    jobs_of_other = Job.objects.using("other")
    assert sorted(jobs_of_other.values_list("status", flat=True)) == ["discarded", "queued"]
    ids = list(jobs_of_other.values_list("pk", flat=True))
    operator.post(LIST, {"action": "delete_selected", "_selected_action": ids, "confirmed": "yes"})
    assert not jobs_of_other.exists()
    assert Job.objects.using("default").get().status == "failed"
    assert LogEntry.objects.using("default").count() == 6  # a retry, a discard, two of the copy, two deletions

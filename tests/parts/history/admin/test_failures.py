"""The pages of failures: "Failing now", and the page of one cause with its jobs."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from playwright.sync_api import Page, expect

from django_skipqueue.console.search import cause_query, cause_text
from django_skipqueue.exceptions import WorkerDied
from django_skipqueue.models import FailureRollUp, Job
from django_skipqueue.parts.history.causes import LONGEST_NOTE
from django_skipqueue.parts.history.failures import MOST_CAUSES_ON_DASHBOARD, MOST_CAUSES_SHOWN, top_causes
from django_skipqueue.values.records import Cause
from django_skipqueue.values.redaction import MASK

from ....app.failing import BAD_VALUE, UNAVAILABLE, make_failing
from ....app.rows import make_job
from ....console.admin.browser import Complaints
from ....console.admin.conftest import LIST, listed, messages_of, page, task_page
from ..failing import record_ended_attempts, record_failures

FAILURES = f"{LIST}failures/"
DAY = 86_400.0

pytestmark = pytest.mark.django_db(transaction=True)


def cause_address(cause: Cause) -> str:
    return f"{FAILURES}cause/?{cause_query(cause)}"


def list_query(cause: Cause, status: str = "failed") -> str:
    return f"?status={status}&{cause_query(cause)}"


class TestFailingNow:
    def test_a_cause_is_shown_with_its_counts_while_its_jobs_are_still_retried(self, operator: Client) -> None:
        record_failures(UNAVAILABLE, 3, seconds_ago=2 * DAY)
        record_failures(UNAVAILABLE, 1_234)
        html = operator.get(FAILURES).text
        for expected in ("shop.jobs.capture", "psp.errors.Unavailable", "shop.gateway.Client.post:42", "1,237"):
            assert expected in html
        assert ">new<" not in html
        assert "2 d ago" in html

    def test_a_cause_of_the_last_hour_is_new(self, operator: Client) -> None:
        record_failures(BAD_VALUE)
        html = operator.get(FAILURES).text
        assert ">new<" in html
        assert "<code>ValueError</code>" in html

    def test_a_cause_has_a_drawing_and_a_text_of_its_last_24_hours(self, operator: Client) -> None:
        record_failures(BAD_VALUE, 7, seconds_ago=2 * 3600)
        (cause,) = top_causes()
        assert cause.trend.path.count("M") == 1
        assert cause.trend.text.startswith("24 hours, by hour; the most were 7, in the hour from ")
        assert f"<title>{cause.trend.text}</title>" in operator.get(FAILURES).text
        record_failures(UNAVAILABLE, seconds_ago=3 * DAY)
        assert top_causes()[-1].trend.text == "none in 24 hours"

    def test_the_row_of_all_other_causes_has_no_link(self, operator: Client) -> None:
        record_failures(Cause("(other)", "(other)", ""))
        html = operator.get(FAILURES).text
        assert "other causes" in html
        assert "cause/?" not in html

    def test_the_page_and_the_dashboard_show_a_limited_number(self, operator: Client) -> None:
        for number in range(MOST_CAUSES_SHOWN + 1):
            record_failures(BAD_VALUE._replace(place=f"shop.f{number}"), number + 1)
        assert [cause.counts.place for cause in top_causes()] == [
            f"shop.f{MOST_CAUSES_SHOWN - place}:42" for place in range(MOST_CAUSES_ON_DASHBOARD)
        ]
        response = operator.get(FAILURES)
        assert len(response.context["causes"]) == MOST_CAUSES_SHOWN
        assert f"The first {MOST_CAUSES_SHOWN} causes are shown." in response.text

    def test_the_dashboard_shows_the_first_causes(self, operator: Client) -> None:
        html = operator.get(f"{LIST}dashboard/").text
        assert "No attempt has failed in the last 7 days." in html
        record_failures(UNAVAILABLE)
        html = operator.get(f"{LIST}dashboard/").text
        assert "psp.errors.Unavailable" in html
        assert f'href="{FAILURES}"' in html

    def test_the_page_says_that_nothing_fails(self, operator: Client) -> None:
        assert "No attempt has failed in the last 7 days." in operator.get(FAILURES).text

    def test_the_page_reads_the_last_job_of_each_cause_by_its_id(self, operator: Client) -> None:
        for place in ("shop.jobs.a", "shop.jobs.b"):
            cause = BAD_VALUE._replace(place=place)
            record_failures(cause, job_id=make_failing(cause).pk)
        with CaptureQueriesContext(connection) as queries:
            top_causes()
        (query,) = [captured["sql"] for captured in queries if "skipqueue_job" in captured["sql"]]
        assert "WHERE id = ANY" in query

    def test_a_row_has_the_last_message_without_secrets(self, operator: Client) -> None:
        entry = {"exception": BAD_VALUE.exception, "place": BAD_VALUE.place, "message": "<no> hunter2", "traceback": ""}
        record_failures(BAD_VALUE, job_id=make_failing(BAD_VALUE, kwargs={"password": "hunter2"}, errors=[entry]).pk)
        for address in (FAILURES, f"{LIST}dashboard/", task_page(BAD_VALUE.task)):
            html = operator.get(address).text
            assert f'<span class="skipqueue-said">&lt;no&gt; {MASK}</span>' in html
            assert "hunter2" not in html

    def test_the_task_of_a_cause_links_to_its_page(self, operator: Client) -> None:
        record_failures(BAD_VALUE)
        assert f'href="{task_page(BAD_VALUE.task)}"' in operator.get(FAILURES).text

    def test_causes_that_no_longer_fail_are_grey_and_below_the_others(self, operator: Client) -> None:
        record_failures(UNAVAILABLE, seconds_ago=24 * 60)
        for address in (FAILURES, f"{LIST}dashboard/"):
            html = operator.get(address).text
            assert "No attempt has failed in the last 10 minutes." in html
            assert "Failed at the last attempt of the task" in html
            assert "skipqueue-over" not in html
        record_ended_attempts(UNAVAILABLE.task, seconds_ago=10 * 60)
        record_failures(BAD_VALUE)
        for address in (FAILURES, f"{LIST}dashboard/"):
            html = operator.get(address).text
            assert "No attempt has failed in the last 10 minutes." not in html
            html_of_failing, _, html_of_stopped = html.partition('<tr class="skipqueue-over">')
            assert "Failed in the last 10 minutes" in html_of_failing
            assert BAD_VALUE.place in html_of_failing
            assert UNAVAILABLE.place in html_of_stopped
            assert "stopped 24 min ago" in html_of_stopped

    def test_a_row_says_in_which_deployments_it_was_seen(self, operator: Client, settings: Any) -> None:
        for deployment in ("4f2a", "5b3c"):
            settings.SKIPQUEUE = {"DEPLOYMENT": deployment}
            record_failures(BAD_VALUE)
        html = operator.get(FAILURES).text
        assert html.index("in 4f2a") < html.index("in 5b3c")
        html = operator.get(cause_address(BAD_VALUE)).text
        assert html.index("in deployment 4f2a") < html.index("in deployment 5b3c")

    @pytest.mark.parametrize("address", [FAILURES, cause_address(BAD_VALUE)])
    def test_users_who_may_not_view_jobs_may_not_see_the_page_of_failures(
        self, log_in: Callable[..., Client], address: str
    ) -> None:
        record_failures(BAD_VALUE)
        client = log_in("view_worker")
        assert client.get(address).status_code == 403
        assert client.post(address).status_code == 405

    def test_the_list_of_jobs_links_to_the_page_of_failures(self, operator: Client) -> None:
        assert f'href="{FAILURES}"' in operator.get(LIST).text


class TestOneCause:
    def test_the_page_of_a_cause_lists_its_jobs_by_state_with_the_last_error(self, operator: Client) -> None:
        failed = make_failing(UNAVAILABLE)
        retrying = make_failing(UNAVAILABLE, "scheduled")
        make_failing(BAD_VALUE)
        record_failures(UNAVAILABLE, job_id=failed.pk)
        response = operator.get(cause_address(UNAVAILABLE))
        groups = [(group.state, [job.pk for job, _ in group.first]) for group, _ in response.context["groups"]]
        assert groups == [("failed", [failed.pk]), ("retrying", [retrying.pk])]
        assert response.context["last_job"] == failed
        assert sum(response.context["chart"].series[0].values) == 1
        for expected in ("1 failed", "1 retrying", "Retry these", "Run these jobs now", "Discard these"):
            assert expected in response.text

    def test_the_page_of_a_cause_masks_secrets_in_the_error(self, operator: Client) -> None:
        entry = {"exception": BAD_VALUE.exception, "place": BAD_VALUE.place, "message": "no hunter2", "traceback": ""}
        job = make_failing(BAD_VALUE, kwargs={"password": "hunter2"}, errors=[entry])
        record_failures(BAD_VALUE, job_id=job.pk)
        html = operator.get(cause_address(BAD_VALUE)).text
        assert "hunter2" not in html
        assert 'class="skipqueue-message">no ' in html

    def test_the_error_of_another_job_is_shown_if_the_last_job_has_another_cause_now(self, operator: Client) -> None:
        earlier_job = make_failing(UNAVAILABLE)
        record_failures(UNAVAILABLE, job_id=make_failing(BAD_VALUE).pk)
        assert operator.get(cause_address(UNAVAILABLE)).context["last_job"] == earlier_job
        Job.objects.all().delete()
        assert operator.get(cause_address(UNAVAILABLE)).context["last"] is None

    def test_the_page_of_an_unknown_cause_redirects_to_the_page_of_failures(self, operator: Client) -> None:
        response = operator.get(cause_address(UNAVAILABLE), follow=True)
        assert messages_of(response) == ["No failed attempt with this cause is known."]
        assert response.request["PATH_INFO"] == FAILURES
        assert operator.get(f"{FAILURES}cause/?task=%00&cause=%00").status_code == 302

    def test_the_page_has_only_the_buttons_that_the_user_may_use(self, log_in: Callable[..., Client]) -> None:
        make_failing(UNAVAILABLE)
        make_failing(UNAVAILABLE, "scheduled")
        record_failures(UNAVAILABLE)
        html = log_in("view_job", "discard_job").get(cause_address(UNAVAILABLE)).text
        assert "Discard these jobs" in html
        assert "Retry these jobs" not in html

    def test_jobs_of_dead_workers_have_a_cause_without_a_place(self, operator: Client) -> None:
        died = Cause("shop.jobs.send", f"{WorkerDied.__module__}.{WorkerDied.__qualname__}", "")
        job = make_failing(died, errors=[{"exception": died.exception, "message": "m", "traceback": ""}])
        record_failures(died, line=None, job_id=job.pk)
        response = operator.get(cause_address(died))
        assert response.context["last_job"] == job
        (first_group, _), *_ = response.context["groups"]
        assert [job.pk for job, _ in first_group.first] == [job.pk]


def acknowledge(client: Client, cause: Cause = BAD_VALUE, **posted: str) -> Any:
    return client.post(f"{FAILURES}cause/acknowledge/?{cause_query(cause)}", posted, follow=True)


class TestAcknowledge:
    def test_a_cause_is_acknowledged_with_a_note_and_logged(self, log_in: Callable[..., Client]) -> None:
        record_failures(BAD_VALUE)
        client = log_in("view_job", "acknowledge_cause")
        assert ">Acknowledge<" in client.get(cause_address(BAD_VALUE)).text
        response = acknowledge(client, note="<ticket> 12")
        assert response.request["PATH_INFO"] == f"{FAILURES}cause/"
        user = User.objects.get()
        assert f"Acknowledged by {user} now: &lt;ticket&gt; 12" in response.text
        html = client.get(FAILURES).text
        assert html.index(">Acknowledged<") < html.index("skipqueue-over") < html.index("&lt;ticket&gt; 12")
        entry = LogEntry.objects.get()
        assert (entry.user, entry.object_repr) == (user, f"the cause {cause_text(BAD_VALUE)} of {BAD_VALUE.task}")
        assert entry.change_message == "Acknowledged. <ticket> 12"
        assert entry.get_admin_url() is None

    def test_an_acknowledgement_is_taken_back(self, operator: Client) -> None:
        record_failures(BAD_VALUE)
        assert "Take back" not in operator.get(cause_address(BAD_VALUE)).text
        acknowledge(operator)
        response = acknowledge(operator, take_back="")
        assert "Acknowledged by" not in response.text
        acknowledge(operator, take_back="")
        entries = LogEntry.objects.order_by("pk").values_list("change_message", flat=True)
        assert list(entries) == ["Acknowledged.", "Took back the acknowledgement."]

    def test_a_cause_that_has_come_back_says_so(self, operator: Client) -> None:
        record_failures(BAD_VALUE)
        acknowledge(operator, note="vendor")
        record_failures(BAD_VALUE, 60)
        html = operator.get(FAILURES).text
        assert "now: vendor; since then it has come back, or fails far more often" in html
        assert "skipqueue-over" not in html

    @pytest.mark.parametrize("permissions", [("view_job", "retry_job"), ("acknowledge_cause",)])
    def test_users_without_both_permissions_cannot_acknowledge_a_cause(
        self, log_in: Callable[..., Client], permissions: tuple[str, ...]
    ) -> None:
        record_failures(BAD_VALUE)
        client = log_in(*permissions)
        assert acknowledge(client).status_code == 403
        assert ">Acknowledge<" not in client.get(cause_address(BAD_VALUE)).text
        assert not FailureRollUp.objects.exclude(acknowledged_at=None).exists()

    def test_a_get_request_acknowledges_nothing(self, operator: Client) -> None:
        record_failures(BAD_VALUE)
        assert operator.get(f"{FAILURES}cause/acknowledge/?{cause_query(BAD_VALUE)}").status_code == 405
        assert not FailureRollUp.objects.exclude(acknowledged_at=None).exists()

    def test_an_unknown_cause_is_not_acknowledged(self, operator: Client) -> None:
        assert messages_of(acknowledge(operator)) == ["No failed attempt with this cause is known."]
        assert not LogEntry.objects.exists()

    def test_a_long_note_of_an_acknowledgement_is_cut(self, operator: Client) -> None:
        record_failures(BAD_VALUE)
        acknowledge(operator, note="x\0" * 1_000)
        assert len(FailureRollUp.objects.get(span=0).note) == LONGEST_NOTE


class TestTheList:
    def test_the_page_of_a_cause_lists_the_jobs_whose_last_error_has_the_cause(self, operator: Client) -> None:
        failed, retrying = make_failing(UNAVAILABLE), make_failing(UNAVAILABLE, "scheduled")
        completed = make_failing(UNAVAILABLE, "completed")
        make_failing(BAD_VALUE)
        make_failing(UNAVAILABLE._replace(place="elsewhere"))
        make_failing(UNAVAILABLE, "scheduled", attempts=0)
        assert listed(operator, list_query(UNAVAILABLE)) == [failed.pk]
        assert listed(operator, list_query(UNAVAILABLE, "retrying")) == [retrying.pk]
        assert listed(operator, list_query(UNAVAILABLE, "completed")) == [completed.pk]
        without_task = f"?status=failed&cause={cause_text(UNAVAILABLE).replace(' ', '+')}"
        assert listed(operator, without_task) == [failed.pk]
        assert listed(operator, f"{list_query(UNAVAILABLE)}&q=%23{failed.pk}") == [failed.pk]
        assert listed(operator, f"{list_query(UNAVAILABLE)}&q=nothing") == []

    def test_the_list_of_a_cause_is_searched_in_full_and_its_tabs_have_counts(self, operator: Client) -> None:
        make_failing(UNAVAILABLE)
        for state in ("failed", "retrying"):
            changelist: Any = operator.get(LIST + list_query(UNAVAILABLE, state)).context["cl"]
            assert changelist.partly_searched is None
            assert {tab.state: str(tab.count) for tab in changelist.tabs if tab.count} == {
                "failed": "1",
                "retrying": "0",
            }
        searched: Any = operator.get(f"{LIST}{list_query(UNAVAILABLE)}&q=no").context["cl"]
        assert searched.window is not None

    def test_an_error_entry_without_a_place_counts_as_an_entry_with_an_empty_place(self, operator: Client) -> None:
        earlier_job = make_failing(BAD_VALUE, errors=[{"exception": BAD_VALUE.exception}])
        make_failing(BAD_VALUE)
        assert listed(operator, list_query(BAD_VALUE._replace(place=""))) == [earlier_job.pk]


class TestTheJobPage:
    @pytest.mark.parametrize("status", ["failed", "scheduled"])
    def test_a_failing_job_links_to_its_cause(self, operator: Client, status: str) -> None:
        job = make_failing(UNAVAILABLE, status)
        record_failures(UNAVAILABLE, 12)
        html = operator.get(page("change", job.pk)).text
        assert "12 failed attempts with this cause in the last hour" in html
        assert cause_query(UNAVAILABLE).replace("&", "&amp;") in html

    def test_jobs_that_do_not_fail_with_the_cause_have_no_link_to_it(self, operator: Client) -> None:
        record_failures(UNAVAILABLE, 12)
        for job in (make_failing(UNAVAILABLE, "completed"), make_job("failed"), make_failing(BAD_VALUE)):
            assert "with this cause" not in operator.get(page("change", job.pk)).text


@pytest.mark.browser
class TestInABrowser:
    def test_an_operator_retries_all_jobs_of_a_cause(
        self, open_admin: Callable[..., Page], complaints: Complaints
    ) -> None:
        jobs = [make_failing(UNAVAILABLE) for _ in range(12)]
        job_of_other_cause = make_failing(BAD_VALUE)
        record_failures(UNAVAILABLE, 12, job_id=jobs[-1].pk)
        admin_page = open_admin(User.objects.create_superuser("boss"), "django_skipqueue/job/failures/")
        admin_page.get_by_role("link", name="psp.errors.Unavailable").click()
        expect(admin_page.locator("h1")).to_contain_text("psp.errors.Unavailable")
        admin_page.get_by_role("button", name="Retry these jobs").click()
        expect(admin_page.locator("h1")).to_have_text("Retry 12 jobs?")
        admin_page.get_by_label("Spread over minutes").fill("5")
        admin_page.get_by_role("button", name="Retry 12 jobs").click()
        expect(admin_page.locator(".messagelist")).to_have_text("12 jobs were put back into their queues.")
        assert not Job.objects.filter(pk__in=[job.pk for job in jobs]).failed().exists()
        assert Job.objects.failed().get() == job_of_other_cause
        assert complaints == []

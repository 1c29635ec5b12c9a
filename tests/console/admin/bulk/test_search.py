"""The button "Search everything": a job searches the whole list, and a page lists the jobs that were found."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from playwright.sync_api import Page, expect

from django_skipqueue.console import search as window
from django_skipqueue.console.admin import bulk
from django_skipqueue.console.admin.bulk import BulkAction, BulkProgress
from django_skipqueue.console.admin.jobs.changelist import JobChangeList
from django_skipqueue.models import Job
from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.testing import run_jobs

from ....app.rows import make_job, make_worker, state
from ..conftest import LIST, listed, messages_of, page

pytestmark = pytest.mark.django_db(transaction=True)

SEARCH = "/admin/django_skipqueue/job/search/"
QUERY_FOR_PAYMENT_7 = "?q=payment_id%3D7"


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW_SIZE", 2)
    monkeypatch.setattr(window, "MOST_WINDOWS", 2)


def make_jobs_that_pages_do_not_search(count: int = 2) -> list[Job]:
    """Make matching jobs so far down the list that a page does not search them. Return the matching jobs."""
    unsearched_jobs = [make_job("completed", kwargs={"payment_id": 7}) for _ in range(count)]
    for number in range(8):
        make_job("completed", kwargs={"payment_id": 100 + number})
    return unsearched_jobs


def ids_newest_first(jobs: list[Job]) -> list[int]:
    return [job.pk for job in reversed(jobs)]


def search_everything(client: Client, address: str = QUERY_FOR_PAYMENT_7) -> Any:
    return client.post(SEARCH + address, follow=True)


def get_search_job() -> Job:
    """Return the job that searches, moved to a queue of its own."""
    job = Job.objects.get(task=BULK_TASK)
    Job.objects.filter(pk=job.pk).update(queue_name="only")
    return job


def run_search() -> None:
    run_jobs(queue_names=["only"])


def text_in_one_line(response: Any) -> str:
    return " ".join(response.text.split())


def test_a_page_without_a_match_offers_to_search_everything(operator: Client) -> None:
    make_jobs_that_pages_do_not_search()
    for address in (QUERY_FOR_PAYMENT_7, f"{QUERY_FOR_PAYMENT_7}&look=2"):
        text = text_in_one_line(operator.get(LIST + address))
        assert "Not searched: " in text
        button = re.search(r'<button type="submit"[^>]*>Search everything</button>', text)
        assert button
        assert f'formaction="{SEARCH}{QUERY_FOR_PAYMENT_7}"' in button[0]
        assert 'form="changelist-form"' in button[0]
        assert text.count('<form id="changelist-form" method="post"') == 1


def test_a_page_that_has_searched_all_jobs_does_not_offer_to_search_everything(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_jobs_that_pages_do_not_search()
    monkeypatch.setattr(window, "WINDOW_SIZE", 100)
    assert "Search everything" not in operator.get(LIST + QUERY_FOR_PAYMENT_7).text
    assert "Search everything" not in operator.get(LIST).text


def test_a_worker_finds_the_jobs_that_a_page_does_not_reach(operator: Client) -> None:
    make_worker()
    unsearched_jobs = make_jobs_that_pages_do_not_search()
    response = search_everything(operator, f"{QUERY_FOR_PAYMENT_7}&look=2")
    search_job = get_search_job()
    assert response.redirect_chain == [(page("progress", search_job.pk), 302)]
    assert "Search everything" in response.text
    assert "Continue without a worker" not in response.text
    assert (search_job.kwargs["query"], search_job.kwargs["action"]) == ("q=payment_id%3D7", "search")
    assert search_job.priority == 100, "the highest priority"
    assert listed(operator, f"?found={search_job.pk}") == []
    run_search()
    assert state(search_job)["result"] == {"found": 2}
    text = text_in_one_line(operator.get(page("progress", search_job.pk)))
    assert "All jobs in the list were searched" in text
    assert re.search(r"max=\"(\d+)\" value=\"\1\"", text)
    assert "2 jobs match." in text
    assert "data-final" in text
    assert f'href="{LIST}?found={search_job.pk}"' in text
    assert listed(operator, f"?found={search_job.pk}") == ids_newest_first(unsearched_jobs)
    assert not LogEntry.objects.exists()


def test_the_list_of_found_jobs_can_be_filtered_and_acted_on(operator: Client) -> None:
    make_worker()
    first, second = make_jobs_that_pages_do_not_search()
    search_everything(operator)
    search_job = get_search_job()
    run_search()
    Job.objects.filter(pk=second.pk).update(status="failed")
    address = f"?found={search_job.pk}"
    tabs = {tab.state: str(tab.count) for tab in operator.get(LIST + address).context["cl"].tabs if tab.count}
    assert {state: count for state, count in tabs.items() if count != "0"} == {"completed": "1", "failed": "1"}
    assert listed(operator, f"{address}&status=failed") == [second.pk]
    assert listed(operator, f"{address}&task=nosuch") == listed(operator, f"{address}&q=nosuch") == []
    assert listed(operator, f"{address}&q=payment_id=7") == [second.pk, first.pk]
    assert "Not searched" not in operator.get(f"{LIST}{address}&q=payment_id=7").text
    operator.post(
        f"{LIST}{address}&status=failed",
        {"action": "retry_selected", "_selected_action": "all", "select_across": "1", "confirmed": "yes"},
    )
    assert (state(first)["status"], state(second)["status"]) == ("completed", "queued")
    first.delete()
    assert listed(operator, address) == [second.pk]


@pytest.mark.parametrize("found", ["0", "x", "99999999999999999999", "{other_job}"])
def test_an_id_that_no_search_has_lists_nothing(operator: Client, found: str) -> None:
    other_job = make_job(metadata={"progress": {"newest": 1, "edges": [None, None], "found": [1]}})
    assert listed(operator, f"?found={found.format(other_job=other_job.pk)}") == []


def test_a_search_keeps_the_filters_of_its_list(operator: Client) -> None:
    make_worker()
    make_jobs_that_pages_do_not_search()
    failed = make_job("failed", kwargs={"payment_id": 7})
    for _ in range(5):
        make_job("failed")
    search_everything(operator, f"{QUERY_FOR_PAYMENT_7}&status=failed")
    search_job = get_search_job()
    run_search()
    assert listed(operator, f"?found={search_job.pk}") == [failed.pk]


def test_a_search_ends_at_the_largest_number_of_jobs_that_it_keeps(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST_FOUND", 3)
    monkeypatch.setattr("django_skipqueue.console.admin.jobs.progress_page.MOST_FOUND", 3)
    make_worker()
    unsearched_jobs = make_jobs_that_pages_do_not_search(7)
    search_everything(operator)
    search_job = get_search_job()
    run_search()
    assert listed(operator, f"?found={search_job.pk}") == ids_newest_first(unsearched_jobs[-3:])
    text = text_in_one_line(operator.get(page("progress", search_job.pk)))
    assert "3 jobs match. The search stopped there, because it keeps no more jobs." in text
    assert re.search(r"\d+ of about \d+ jobs were searched", text)


def test_a_search_that_has_failed_continues_with_the_window_where_it_failed(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_worker()
    unsearched_jobs = make_jobs_that_pages_do_not_search(4)
    search_everything(operator)
    search_job = get_search_job()
    starts_of_windows: list[Any] = []
    jobs_within = JobChangeList.jobs_within

    def fail_at_fourth_window(self: Any, window: Any, request: Any) -> Any:
        starts_of_windows.append(window.start)
        if len(starts_of_windows) == 4:
            raise OSError
        return jobs_within(self, window, request)

    monkeypatch.setattr(JobChangeList, "jobs_within", fail_at_fourth_window)
    run_search()
    assert (state(search_job)["status"], len(starts_of_windows)) == ("scheduled", 4)
    Job.objects.filter(pk=search_job.pk).run_now()
    run_search()
    assert starts_of_windows[3] == starts_of_windows[4]  # the second attempt begins with the unfinished window
    assert len(set(starts_of_windows)) == len(starts_of_windows) - 1
    assert listed(operator, f"?found={search_job.pk}") == ids_newest_first(unsearched_jobs)


def test_stop_ends_a_search_and_keeps_the_jobs_that_it_has_found(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_worker()
    unsearched_jobs = make_jobs_that_pages_do_not_search(4)
    search_everything(operator)
    search_job = get_search_job()
    save = BulkProgress.save

    def cancel_once_found(progress: BulkProgress, context: Any) -> None:
        save(progress, context)
        if progress.found:
            response = operator.post(page("progress", search_job.pk), follow=True)
            assert response.status_code == 200

    monkeypatch.setattr(BulkProgress, "save", cancel_once_found)
    run_search()
    assert state(search_job)["status"] == "discarded"
    found_ids = listed(operator, f"?found={search_job.pk}")
    assert 0 < len(found_ids) < 4
    assert set(found_ids) < {matching_job.pk for matching_job in unsearched_jobs}
    text = text_in_one_line(operator.get(page("progress", search_job.pk)))
    assert "Show these jobs" in text
    assert "of about" in text


def test_a_search_sends_one_statement_for_each_window(operator: Client) -> None:
    make_worker()
    make_jobs_that_pages_do_not_search()
    search_everything(operator)
    search_job = get_search_job()
    with CaptureQueriesContext(connection) as queries:
        run_search()
    searches = [query["sql"] for query in queries if "jsonb_path_exists" in query["sql"]]
    assert len(searches) >= 5
    assert state(search_job)["result"] == {"found": 2}


def test_without_a_worker_the_page_says_that_nobody_can_search_everything(operator: Client) -> None:
    make_jobs_that_pages_do_not_search()
    response = search_everything(operator)
    assert messages_of(response) == ["There is no live worker that could search everything."]
    assert response.redirect_chain == [(f"{LIST}{QUERY_FOR_PAYMENT_7}", 302)]
    assert not Job.objects.filter(task=BULK_TASK).exists()


class TestForWhomItSearches:
    def test_a_user_who_may_view_jobs_may_search_and_stop_the_search(self, log_in: Callable[..., Client]) -> None:
        make_worker()
        unsearched_jobs = make_jobs_that_pages_do_not_search()
        client = log_in("view_job")
        assert search_everything(client).status_code == 200
        search_job = get_search_job()
        assert "Stop" in client.get(page("progress", search_job.pk)).text
        run_search()
        assert set(listed(client, f"?found={search_job.pk}")) == {matching_job.pk for matching_job in unsearched_jobs}

    def test_a_user_who_may_not_view_jobs_may_not_search(self, log_in: Callable[..., Client]) -> None:
        make_worker()
        assert search_everything(log_in("view_queue")).status_code == 403
        assert not Job.objects.exists()

    def test_a_get_request_starts_no_search(self, operator: Client) -> None:
        make_worker()
        assert operator.get(SEARCH + QUERY_FOR_PAYMENT_7).status_code == 405

    def test_a_search_is_discarded_once_its_user_may_no_longer_view_jobs(self, log_in: Callable[..., Client]) -> None:
        make_worker()
        make_jobs_that_pages_do_not_search()
        search_everything(log_in("view_job"))
        search_job = get_search_job()
        User.objects.get().user_permissions.clear()
        run_search()
        assert state(search_job)["status"] == "discarded"
        assert state(search_job)["last_error"].endswith("ann may not see jobs.")
        assert BulkProgress.of(Job.objects.get(pk=search_job.pk)) is None

    def test_a_search_whose_arguments_were_forged_is_refused(self, operator: Client) -> None:
        make_worker()
        make_jobs_that_pages_do_not_search()
        search_everything(operator)
        search_job = get_search_job()
        bulk_action = BulkAction.of(search_job)
        assert bulk_action is not None
        Job.objects.filter(pk=search_job.pk).update(kwargs=asdict(replace(bulk_action, query="q=password")))
        run_search()
        assert "The signature of these arguments is not valid" in state(search_job)["last_error"]

    def test_searching_everything_finds_no_masked_value(self, operator: Client) -> None:
        make_worker()
        make_job("completed", kwargs={"password": "hunter2"})
        make_jobs_that_pages_do_not_search()
        for text in ("password%3Dhunter2", "hunter2"):
            search_everything(operator, f"?q={text}")
            search_job = get_search_job()
            run_search()
            assert state(search_job)["result"] == {"found": 0}
            search_job.delete()


def test_the_button_search_everything_posts_to_its_own_address() -> None:
    assert reverse("admin:django_skipqueue_job_search") == SEARCH


@pytest.mark.browser
@pytest.mark.parametrize("text", ["payment_id%3D100", "payment_id%3D107"])
def test_in_a_browser_the_button_hands_the_search_to_a_worker(open_admin: Callable[..., Page], text: str) -> None:
    make_worker()
    make_jobs_that_pages_do_not_search()
    page = open_admin(User.objects.create_superuser("boss"), f"django_skipqueue/job/?q={text}")
    page.get_by_role("button", name="Search everything").click()
    expect(page.get_by_role("heading", name="Search everything")).to_be_visible()
    search_job = get_search_job()
    run_search()
    page.reload()
    page.get_by_role("link", name="Show these jobs").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    assert state(search_job)["result"] == {"found": 1}

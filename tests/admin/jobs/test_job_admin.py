"""The list of jobs, with its tabs, filters and cells, and the page of one job."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_skipqueue.admin.health.notices import notices_cache
from django_skipqueue.admin.jobs import job_cells, window
from django_skipqueue.admin.ui import counts
from django_skipqueue.admin.ui.cells import CELL_LIMIT
from django_skipqueue.admin.ui.counts import Count
from django_skipqueue.models import Job

from ...app.rows import STATUSES, make_job
from ..conftest import LIST, page

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


def listed(client: Client, address: str = "") -> list[int]:
    """The ids on the first page."""
    return [job.pk for job in client.get(LIST + address).context["cl"].result_list]


class TestTheList:
    def test_a_row_says_what_a_job_is(self, operator: Client) -> None:
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

    def test_columns_cannot_be_sorted_by(self, operator: Client) -> None:
        jobs = [make_job(priority=priority) for priority in (1, 9, 5)]
        assert listed(operator, "?o=2") == [job.pk for job in reversed(jobs)]
        assert "sortable" not in operator.get(LIST).text

    def test_its_queries_do_not_grow_with_the_jobs(self, operator: Client) -> None:
        numbers = []
        for amount in (1, 30):
            for status in STATUSES:
                for _ in range(amount):
                    make_job(status, errors=[{"attempt": 1}], last_error="x")
            notices_cache.clear()
            with CaptureQueriesContext(connection) as queries:
                operator.get(LIST)
            numbers.append(len(queries))
        assert numbers[0] == numbers[1] <= 20

    def test_it_loads_nothing_that_it_does_not_show(self, operator: Client) -> None:
        make_job("failed", kwargs={"a": "x" * 100_000}, errors=[{"traceback": "x"}])
        with CaptureQueriesContext(connection) as queries:
            operator.get(LIST)
        (rows,) = (query["sql"] for query in queries if "args_text" in query["sql"] and "COUNT" not in query["sql"])
        for column in ("errors", "result", "metadata"):
            assert f'"skipqueue_job"."{column}"' not in rows
        (job,) = operator.get(LIST).context["cl"].result_list
        assert len(job.kwargs_text) == CELL_LIMIT * 4

    def test_nothing_in_it_is_markup(self, operator: Client) -> None:
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

    def test_it_is_for_those_who_may_look(self, log_in: Callable[..., Client]) -> None:
        job = make_job()
        client = log_in("retry_job", "discard_job", "delete_job", "add_job")
        assert client.get(LIST).status_code == 403
        assert client.get(page("change", job.pk)).status_code == 403

    @pytest.mark.parametrize("lookup", ["kwargs__contains=1", "task__icontains=a", "errors__0__message=x", "id__gt=1"])
    def test_no_other_lookup_can_be_asked_for(self, operator: Client, lookup: str) -> None:
        assert operator.get(f"{LIST}?{lookup}").status_code == 400


class TestTabs:
    def test_they_count_each_status(self, operator: Client) -> None:
        for status in STATUSES:
            make_job(status)
        make_job("failed")
        tabs = operator.get(LIST).context["cl"].tabs
        assert {tab.state: str(tab.count) for tab in tabs if tab.state} == {
            **dict.fromkeys(STATUSES, "1"),
            "retrying": "0",
            "failed": "2",
        }

    def test_they_keep_the_other_filters_and_count_what_an_index_can(self, operator: Client) -> None:
        make_job("failed", queue_name="mail")
        make_job("failed")
        make_job("completed", queue_name="mail")
        tabs = operator.get(f"{LIST}?queue=mail&status=queued&p=1").context["cl"].tabs
        assert [
            (tab.address, tab.count, tab.is_selected) for tab in tabs if tab.state in ("", "failed", "completed")
        ] == [
            ("?queue=mail", None, False),
            ("?queue=mail&status=completed", None, False),
            ("?queue=mail&status=failed", Count(1), False),
        ]
        assert [tab.state for tab in tabs if tab.is_selected] == ["queued"]

    def test_of_a_time_they_count_what_is_indexed_by_it(self, operator: Client) -> None:
        for status in ("failed", "running"):
            make_job(status)
        make_job("failed", finished_at=timedelta(days=-2))
        tabs = operator.get(f"{LIST}?time=day").context["cl"].tabs
        counted = {tab.state: str(tab.count) for tab in tabs if tab.count}
        assert counted == {"running": "1", "completed": "0", "failed": "1", "discarded": "0"}

    @pytest.mark.parametrize("more", ["&task=a", "&q=a"])
    def test_they_count_nothing_that_has_to_be_looked_for(self, operator: Client, more: str) -> None:
        assert not any(tab.count for tab in operator.get(f"{LIST}?{more}").context["cl"].tabs)


class TestRetrying:
    """A job that waits for its next attempt, apart from those that wait for their first."""

    def test_it_has_a_tab_with_its_error_and_the_time_of_its_next_attempt(self, operator: Client) -> None:
        tomorrow = make_job("scheduled", run_after=timedelta(days=1))
        snoozed = make_job("scheduled", run_after=timedelta(minutes=1), attempts=0)
        job = make_job("scheduled", run_after=timedelta(minutes=5, seconds=5), attempts=2, last_error="KeyError: 'psp'")
        assert listed(operator, "?status=retrying") == [job.pk]
        assert listed(operator, "?status=scheduled") == [snoozed.pk, tomorrow.pk]
        text = operator.get(f"{LIST}?status=retrying").text
        assert '<span class="skipqueue-badge" data-status="retrying">retrying</span>' in text
        assert "KeyError: &#x27;psp&#x27;" in text
        assert "next in 5 min" in text
        tabs = {tab.state: str(tab.count) for tab in operator.get(LIST).context["cl"].tabs}
        assert (tabs["retrying"], tabs["scheduled"]) == ("1", "2")

    def test_it_stands_in_the_list_of_all_jobs(self, operator: Client) -> None:
        make_job("scheduled", attempts=1)
        assert 'data-status="retrying">retrying</span>' in operator.get(LIST).text

    def test_of_many_scheduled_jobs_those_that_are_due_next_are_counted(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(counts, "CAP", 3)
        retrying = make_job("scheduled", run_after=timedelta(seconds=1), attempts=1)
        for _ in range(5):
            make_job("scheduled", run_after=timedelta(days=1))
        tabs = {tab.state: str(tab.count) for tab in operator.get(LIST).context["cl"].tabs}
        assert (tabs["retrying"], tabs["scheduled"]) == ("1+", "3+")
        assert listed(operator, "?status=retrying") == [retrying.pk]

    @pytest.mark.parametrize("attempts", [0, 1])
    def test_a_few_are_looked_for_among_the_many_others(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch, attempts: int
    ) -> None:
        monkeypatch.setattr(counts, "CAP", 3)
        monkeypatch.setattr(window, "WINDOW_SIZE", 4)
        for _ in range(6):
            make_job("scheduled", attempts=1 - attempts)
        make_job("scheduled", attempts=attempts, run_after=timedelta(days=1))
        state = "retrying" if attempts else "scheduled"
        response = operator.get(f"{LIST}?status={state}")
        assert listed(operator, f"?status={state}") == []
        assert "No match among the first 4 jobs" in " ".join(response.text.split())
        assert len(listed(operator, f"?status={'scheduled' if attempts else 'retrying'}")) == 6


class TestWhen:
    @pytest.mark.parametrize(
        ("status", "fields", "text"),
        [
            ("completed", {"finished_at": timedelta(minutes=-3)}, "3 min ago"),
            ("queued", {"run_after": timedelta(seconds=-43)}, "waiting 43 s"),
            ("scheduled", {"run_after": timedelta(hours=2, seconds=5)}, "in 2 h"),
            ("scheduled", {"run_after": timedelta(minutes=-2)}, "due 2 min ago"),
            ("running", {"started_at": timedelta(minutes=-12, seconds=-5)}, "for 12 min 5 s"),
        ],
    )
    def test_it_says_how_long(self, operator: Client, status: str, fields: dict[str, Any], text: str) -> None:
        make_job(status, **fields)
        assert f">{text}</time>" in operator.get(LIST).text

    def test_running_jobs_are_listed_by_the_longest_with_their_worker(self, operator: Client) -> None:
        short, long = (
            make_job("running", locked_at=timedelta(minutes=-age), locked_by="web-1/2:0123456789ab") for age in (1, 9)
        )
        assert listed(operator, "?status=running") == [long.pk, short.pk]
        assert '<span class="skipqueue-detail">web-1/2</span>' in operator.get(f"{LIST}?status=running").text

    @pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
    @pytest.mark.parametrize("moment", [datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)])
    def test_the_farthest_times_break_no_page(
        self, operator: Client, settings: Any, zone: str, moment: datetime
    ) -> None:
        settings.TIME_ZONE = zone
        job = make_job("scheduled", run_after=moment)
        for address in ("", "?status=scheduled", f"{job.pk}/change/"):
            assert operator.get(LIST + address).status_code == 200


class TestFilters:
    def test_by_queue_and_by_task(self, operator: Client) -> None:
        mail = make_job("failed", queue_name="mail", task="a")
        other = make_job("failed", queue_name="default", task="b")
        assert listed(operator, "?queue=mail") == listed(operator, "?status=failed&queue=mail") == [mail.pk]
        assert listed(operator, "?task=b") == [other.pk]
        assert listed(operator, "?queue=nobody") == []

    @pytest.mark.parametrize(("preset", "found"), [("hour", 1), ("day", 2), ("week", 3), ("month", 4), ("never", 5)])
    @pytest.mark.parametrize(
        ("address", "status", "column"),
        [
            ("", "queued", "enqueued_at"),
            ("&status=scheduled", "scheduled", "enqueued_at"),
            ("&status=running", "running", "locked_at"),
            ("&status=failed", "failed", "finished_at"),
        ],
    )
    def test_by_time(self, operator: Client, preset: str, found: int, address: str, status: str, column: str) -> None:
        for age in (
            timedelta(minutes=5),
            timedelta(hours=5),
            timedelta(days=5),
            timedelta(days=25),
            timedelta(days=50),
        ):
            times: dict[str, Any] = {column: -age}
            make_job(status, **times)
        assert len(listed(operator, f"?time={preset}{address}")) == found

    @pytest.mark.parametrize(
        "address", ["?queue=a%00b", "?task=%00", "?status=x", "?time=x", "?p=x", "?p=999", "?status=&q="]
    )
    def test_nothing_in_the_address_is_an_error(self, operator: Client, address: str) -> None:
        make_job()
        assert operator.get(LIST + address, follow=True).status_code == 200


class TestWindow:
    @pytest.fixture(autouse=True)
    def _small_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)

    @pytest.mark.parametrize(
        "address", ["?task=a", "?queue=mail", "?q=a", "?time=hour", "?status=completed&queue=mail"]
    )
    def test_what_no_index_finds_is_searched_for_in_the_front_of_the_list_and_the_page_says_so(
        self, operator: Client, address: str
    ) -> None:
        jobs = [make_job("completed", task="a", queue_name="mail") for _ in range(2)]
        Job.objects.filter(pk=jobs[0].pk).update(finished_at=F("finished_at") - timedelta(hours=1))
        assert set(listed(operator, address)) == {job.pk for job in jobs}
        for _ in range(3):
            make_job("completed", task="b", queue_name="b")
        assert jobs[0].pk not in listed(operator, address)
        text = " ".join(operator.get(LIST + address).text.split())
        assert "nly the first 2 jobs were searched" in text or "No match among the first 2 jobs" in text

    @pytest.mark.parametrize("address", ["", "?status=failed", "?status=failed&queue=mail", "?status=failed&time=hour"])
    def test_what_an_index_finds_is_found_wherever_it_is(self, operator: Client, address: str) -> None:
        jobs = [make_job("failed", queue_name="mail") for _ in range(5)]
        assert listed(operator, address) == [job.pk for job in reversed(jobs)]
        assert "the first 2 jobs" not in operator.get(LIST + address).text

    def test_so_is_an_id(self, operator: Client) -> None:
        job, *_ = [make_job() for _ in range(5)]
        assert listed(operator, f"?q={job.pk}") == listed(operator, f"?q=%23{job.pk}") == [job.pk]

    def test_one_can_look_further_down(self, operator: Client) -> None:
        jobs = [make_job(task=f"a{number}") for number in range(5)]
        for look, found in ((1, []), (2, []), (3, [jobs[0].pk]), (4, []), (99, [])):
            assert listed(operator, f"?q=a0&look={look}") == found
        assert "No match among jobs 3 to 4" in " ".join(operator.get(f"{LIST}?q=a0&look=2").text.split())
        assert '<a href="?look=2&amp;q=a0">further down</a>' in operator.get(f"{LIST}?q=a0").text
        assert '<a href="?q=a0&amp;status=failed">failed</a>' in operator.get(f"{LIST}?q=a0").text
        assert "further down" not in operator.get(f"{LIST}?q=a0&look=3").text

    @pytest.mark.parametrize("look", ["0", "-1", "x", "²", "9" * 4_400])
    def test_there_is_no_other_part_to_look_at(self, operator: Client, look: str) -> None:
        job, *_ = [make_job(task="a") for _ in range(3)][-1:]
        assert job.pk in listed(operator, f"?q=a&look={look}")


class TestArguments:
    @pytest.mark.parametrize(
        ("args", "kwargs", "text"),
        [
            ("[]", "{}", ""),
            ('[1, "a", null]', "{}", '1, "a", null'),
            ("[1]", '{"b": {"c": "é"}}', '1, b={"c": "é"}'),
            ("[]", '{"b": "xx', 'b="xx…"'),
            ("[1, 2", "{", '1, "…"'),
        ],
    )
    def test_they_read_like_a_call(self, args: str, kwargs: str, text: str) -> None:
        assert job_cells.arguments("t", job_cells.called("t", args, kwargs)) == text

    def test_those_passed_by_place_have_the_names_that_the_task_gives_them(self) -> None:
        task = "tests.app.jobs.add"
        assert job_cells.arguments(task, job_cells.called(task, "[1]", '{"b": 2}')) == "a=1, b=2"

    def test_long_ones_are_cut(self) -> None:
        text = job_cells.arguments("t", job_cells.called("t", f'["{"x" * 500}"]', "{}"))
        assert len(text) == CELL_LIMIT
        assert text.endswith("…")


class TestThePage:
    def test_it_shows_everything_about_a_job(self, operator: Client) -> None:
        job = make_job(
            "completed", task="tests.app.jobs.add", args=[1], kwargs={"b": {"c": "é"}}, result={"sum": [3]}, priority=7,
            queue_name="mail", unique_key="key-1", metadata={"m": 1}, timeout=90,
            errors=[{"attempt": 1, "exception": "x.Y", "message": "no", "traceback": "Traceback …", "worker": "w/1"}],
        )  # fmt: skip
        text = operator.get(page("change", job.pk)).text
        for expected in (
            "<dt>a</dt>", "<dt>b</dt>", "&quot;c&quot;: &quot;é&quot;", "&quot;sum&quot;: [", "key-1", "mail",
            "x.Y", "Traceback …", "w/1", "&quot;m&quot;: 1", "completed", "1 min 30 s",
        ):  # fmt: skip
            assert expected in text, expected

    @pytest.mark.parametrize("status", STATUSES)
    def test_nothing_in_it_is_markup(self, operator: Client, status: str) -> None:
        job = make_job(
            status, task=HOSTILE, queue_name=HOSTILE, args=[HOSTILE], kwargs={HOSTILE: HOSTILE}, last_error=HOSTILE,
            result=HOSTILE, metadata={HOSTILE: HOSTILE}, unique_key=HOSTILE, locked_by=HOSTILE,
            errors=[dict.fromkeys(("worker", "exception", "message", "traceback", "at"), HOSTILE)],
        )  # fmt: skip
        for name in ("change", "delete", "history"):
            text = operator.get(page(name, job.pk)).text
            assert "<script>alert" not in text
            assert 'onload="alert' not in text

    @pytest.mark.parametrize("status", STATUSES)
    def test_its_queries_do_not_grow_with_the_attempts(
        self, operator: Client, status: str, django_assert_max_num_queries: Any
    ) -> None:
        job = make_job(status, errors=[{"attempt": number, "worker": "w"} for number in range(10)])
        with django_assert_max_num_queries(10):
            assert operator.get(page("change", job.pk)).status_code == 200

    @pytest.mark.parametrize("job_id", ["4711", "x", "9" * 40, "9" * 4_400, "-1"])
    def test_an_id_of_no_job_leads_to_the_list(self, operator: Client, job_id: str) -> None:
        response = operator.get(f"{LIST}{job_id}/change/", follow=True)
        assert response.redirect_chain[-1][0] == LIST

    def test_attempts_that_are_not_kept_are_counted(self, operator: Client) -> None:
        job = make_job("failed", attempts=12, errors=[{"attempt": number} for number in range(3, 13)])
        assert "2 earlier attempts are not kept." in operator.get(page("change", job.pk)).text

    def test_megabytes_of_arguments_are_cut_in_the_middle(self, operator: Client) -> None:
        job = make_job(args=["x" * 1_000_000])
        text = operator.get(page("change", job.pk)).text
        assert len(text) < 60_000
        assert "characters left out" in text

    def test_the_question_before_deleting_one_job_goes_to_the_lists_action(self, operator: Client) -> None:
        job = make_job("failed")
        response = operator.get(page("delete", job.pk))
        assert response.context["title"] == "Delete 1 job?"
        assert f'action="{LIST}"' in response.text
        data = {"action": "delete_selected", "_selected_action": job.pk, "confirmed": "yes"}
        operator.post(LIST, data)
        assert not Job.objects.exists()

    def test_it_is_for_those_who_may_delete(self, log_in: Callable[..., Client]) -> None:
        job = make_job("failed")
        assert log_in("view_job").get(page("delete", job.pk)).status_code == 403


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_the_queue_may_live_in_another_database(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASE": "other"}
    make_job("failed")
    job = make_job("failed", using="other", kwargs={"here": 1})
    assert listed(operator) == [job.pk]
    assert "here" in operator.get(page("change", job.pk)).text
    operator.post(page("retry", job.pk))
    for verb in ("discard", "run_again"):
        operator.post(page(verb, job.pk), {"confirmed": "yes"})
    other = Job.objects.using("other")
    assert sorted(other.values_list("status", flat=True)) == ["discarded", "queued"]
    chosen = list(other.values_list("pk", flat=True))
    operator.post(LIST, {"action": "delete_selected", "_selected_action": chosen, "confirmed": "yes"})
    assert not other.exists()
    assert Job.objects.using("default").get().status == "failed"
    assert LogEntry.objects.using("default").count() == 6

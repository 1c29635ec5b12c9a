"""A verb changes the job of the database that the page shows, never a job with this id in another database."""

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_skipqueue.conf import using_database
from django_skipqueue.console.admin.jobs import job_admin
from django_skipqueue.models import Job, Queue, Schedule, Worker, WorkerRequest
from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.testing import run_jobs

from ....app.rows import make_job, make_worker
from ....app.verbs import BUTTONS, BY_ACTION
from ....console.admin.conftest import LIST, QUEUES, WORKERS, page
from ...schedules.rows import make_schedule
from .parsed import Page, database_of, with_database

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

JOB_ID = 4711
SCHEDULES = "/admin/django_skipqueue/schedule/"
STATUS_BEFORE_VERB = {
    "run_now": "scheduled",
    "reschedule": "queued",
    "change_queue": "queued",
    "change_priority": "queued",
    "discard": "queued",
    "postpone": "queued",
    "cancel": "running",
}
"""The status that a job needs for the verb. All other verbs need a failed job."""
ANSWER = {"confirmed": "yes", "run_after": "2100-01-01T12:30:15", "queue_name": "mail", "priority": "7", "delay": "5"}
MODELS: tuple[Any, ...] = (Job, Queue, Schedule, Worker, WorkerRequest)


@pytest.fixture(autouse=True)
def _two_databases(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}


def make_job_in_both_databases(status: str, **fields: Any) -> None:
    for alias in ("default", "other"):
        make_job(status, using=alias, pk=JOB_ID, **fields)


def all_rows(alias: str) -> list[Any]:
    return [list(model._base_manager.using(alias).order_by("pk").values()) for model in MODELS]


@pytest.mark.parametrize("verb", [verb.name for verb, _ in BUTTONS])
def test_a_button_on_the_page_of_a_job_changes_the_shown_database_alone(operator: Client, verb: str) -> None:
    make_job_in_both_databases(STATUS_BEFORE_VERB.get(verb, "failed"))
    rows_of_default, rows_of_other = all_rows("default"), all_rows("other")
    shown_page = Page(operator.get(with_database(page("change", JOB_ID), "other")).text, page("change", JOB_ID))
    addresses = [*shown_page.links, *(form.action for form in shown_page.own_forms)]
    address = next(link for link in addresses if link.startswith(page(verb, JOB_ID)))
    response = operator.post(address, ANSWER)
    assert response.status_code == 302
    assert database_of(response.headers["Location"]) == "other"
    assert all_rows("other") != rows_of_other
    assert all_rows("default") == rows_of_default
    assert not LogEntry.objects.filter(object_id=str(JOB_ID)).exists()


@pytest.mark.parametrize("name", BY_ACTION)
def test_an_action_of_the_list_changes_the_shown_database_alone(operator: Client, name: str) -> None:
    make_job_in_both_databases(STATUS_BEFORE_VERB.get(BY_ACTION[name].name, "failed"))
    rows_of_default, rows_of_other = all_rows("default"), all_rows("other")
    shown_page = Page(operator.get(with_database(LIST, "other")).text, LIST)
    form = next(form for form in shown_page.own_forms if "_selected_action" in form.fields)
    selection = {"action": name, "_selected_action": [str(JOB_ID)]}
    question_page = Page(operator.post(form.action, selection).text, form.action)
    question = next(form for form in question_page.own_forms if "confirmed" in form.fields)
    response = operator.post(question.action, {**question.fields, **ANSWER})
    assert database_of(response.headers["Location"]) == "other"
    assert all_rows("other") != rows_of_other
    assert all_rows("default") == rows_of_default


def test_the_delete_page_deletes_the_job_of_the_shown_database(operator: Client) -> None:
    make_job_in_both_databases("failed")
    address = with_database(page("delete", JOB_ID), "other")
    question = next(form for form in Page(operator.get(address).text, address).own_forms if "confirmed" in form.fields)
    response = operator.post(question.action, {**question.fields, **ANSWER})
    assert database_of(response.headers["Location"]) == "other"
    assert [Job.objects.using(alias).count() for alias in ("default", "other")] == [1, 0]


def test_a_bulk_action_of_a_worker_changes_the_shown_database_alone(
    operator: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "PLACEMENT": "spread"}
    monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
    make_worker(using="other", queues=["default"])
    for alias in ("default", "other"):
        for number in range(4):
            make_job("failed", using=alias, pk=JOB_ID + number)
    answer = {"action": "retry_selected", "_selected_action": "all", "select_across": "1", "confirmed": "yes"}
    for _ in range(4):  # jobs without a key take turns between the databases
        response = operator.post(
            with_database(f"{LIST}?status=failed", "other"), {**answer, "number": "4", "typed": "4"}
        )
        assert "/progress/" in response.headers["Location"]
        assert database_of(response.headers["Location"]) == "other"
    assert Job.objects.using("other").filter(task=BULK_TASK).count() == 4
    run_jobs(database="other", raise_errors=True)
    jobs_by_alias = {
        alias: Job.objects.using(alias).filter(pk__range=(JOB_ID, JOB_ID + 3)) for alias in ("default", "other")
    }
    assert set(jobs_by_alias["default"].values_list("status", flat=True)) == {"failed"}
    assert set(jobs_by_alias["other"].values_list("status", flat=True)) == {"completed"}


def make_schedule_in_both_databases() -> int:
    with using_database("other"):
        schedule = make_schedule("nightly")
    twin = Schedule(pk=schedule.pk, name="nightly", task=schedule.task, cron="0 9 * * *")
    Schedule.objects.using("default").bulk_create([twin])
    return int(schedule.pk)


def press_button(client: Client, address: str, action_start: str, **posted: str) -> Any:
    """On a page of the database `other`, press the button that posts to an address with this beginning."""
    address = with_database(address, "other")
    form = next(
        form for form in Page(client.get(address).text, address).own_forms if form.action.startswith(action_start)
    )
    return client.post(form.action, {**form.fields, **posted})


@pytest.mark.parametrize("verb", ["pause", "run", "delete"])
def test_a_button_of_a_schedule_changes_the_shown_database_alone(operator: Client, verb: str) -> None:
    pk = make_schedule_in_both_databases()
    rows_of_default, rows_of_other = all_rows("default"), all_rows("other")
    button_address = f"{SCHEDULES}{pk}/{verb}/"
    response = press_button(operator, button_address if verb == "delete" else SCHEDULES, button_address)
    assert response.status_code == 302
    assert database_of(response.headers["Location"]) == "other"
    assert all_rows("other") != rows_of_other
    assert all_rows("default") == rows_of_default
    assert [entry.object_id for entry in LogEntry.objects.all()] == [f"other:{pk}"]


def test_the_form_of_a_schedule_saves_it_in_the_shown_database(operator: Client) -> None:
    fields = {"name": "n", "task": "tests.app.jobs.noop", "cron": "1 1 * * *", "timezone": "UTC"}
    fields |= {"catch_up": "latest", "overlap": "allow"}
    response = press_button(operator, f"{SCHEDULES}add/", f"{SCHEDULES}add/", **fields)
    assert database_of(response.headers["Location"]) == "other"
    assert [Schedule.objects.using(alias).count() for alias in ("default", "other")] == [0, 1]
    schedule = Schedule.objects.using("other").get()
    Schedule.objects.using("default").bulk_create(
        [Schedule(pk=schedule.pk, name="n", task=schedule.task, cron="1 1 * * *")]
    )
    form_address = f"{SCHEDULES}{schedule.pk}/change/"
    response = press_button(operator, form_address, form_address, **fields | {"cron": "2 2 * * *"})
    assert database_of(response.headers["Location"]) == "other"
    crons = [Schedule.objects.using(alias).get().cron for alias in ("default", "other")]
    assert crons == ["1 1 * * *", "2 2 * * *"]


def test_pausing_a_queue_and_stopping_a_worker_change_the_shown_database_alone(operator: Client) -> None:
    for alias in ("default", "other"):
        make_job(using=alias, queue_name="mail")
        make_worker(using=alias, pk="w:1", queues=["mail"])
    rows_of_default = all_rows("default")
    for path in (f"{QUEUES}pause/?queue=mail", f"{WORKERS}stop/?worker=w:1"):
        rows_of_other = all_rows("other")
        response = press_button(operator, path, path.partition("?")[0], confirmed="yes")
        assert database_of(response.headers["Location"]) == "other"
        assert all_rows("other") != rows_of_other
        assert all_rows("default") == rows_of_default


def test_the_history_of_an_object_has_no_entry_of_another_database(operator: Client) -> None:
    make_job_in_both_databases("failed")
    pk = make_schedule_in_both_databases()
    press_button(operator, page("change", JOB_ID), page("retry", JOB_ID))
    press_button(operator, SCHEDULES, f"{SCHEDULES}{pk}/pause/")
    Job.objects.using("other").update(operations=None)  # only the admin log has the operation now
    for address in (page("history", JOB_ID), f"{SCHEDULES}{pk}/history/"):
        assert "<td>ann" in operator.get(with_database(address, "other")).text
        assert "<td>ann" not in operator.get(address).text


def test_an_entry_of_the_admin_log_links_to_the_job_in_its_database(operator: Client) -> None:
    make_job_in_both_databases("failed")
    press_button(operator, page("change", JOB_ID), page("retry", JOB_ID))
    address = LogEntry.objects.get().get_admin_url()
    assert address is not None
    response = operator.get(address)
    assert response.headers["Location"] == with_database(page("change", JOB_ID), "other")

"""Schedules in the admin: the list, the page of one schedule, the form, the buttons."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.test import Client

from django_skipqueue import job
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Schedule
from django_skipqueue.parts.schedules.entry import ScheduleEntry
from django_skipqueue.values.redaction import MASK

from ....app import jobs
from ....app.rows import make_job
from ....console.admin.conftest import LIST, messages_of
from ..rows import fire_all, make_schedule

pytestmark = pytest.mark.django_db

SCHEDULES = "/admin/django_skipqueue/schedule/"

# Valid values for the fields of the form of a schedule.
FORM_FIELDS = {
    "name": "sum",
    "task": "tests.app.jobs.add",
    "args": "[1]",
    "kwargs": '{"b": 2}',
    "cron": "",
    "interval": "00:05:00",
    "timezone": "Europe/Berlin",
    "catch_up": "all",
    "overlap": "skip",
    "jitter": "",
}


def schedule_address(schedule: Schedule, name: str = "change") -> str:
    return f"{SCHEDULES}{schedule.pk}/{name}/"


def add_schedule(client: Client, **fields: str) -> Any:
    return client.post(f"{SCHEDULES}add/", FORM_FIELDS | fields)


def form_errors(response: Any) -> dict[str, list[str]]:
    return dict(response.context["adminform"].form.errors)


# The list


def test_a_row_shows_the_times_of_a_schedule_and_its_last_job(operator: Client) -> None:
    last_job = make_job("failed")
    make_schedule(
        "daily", due=-7300, cron="0 9 * * mon-fri", timezone="Asia/Tokyo", source="code",
        last_job_id=last_job.pk, last_run_at=Now() - timedelta(hours=3),
    )  # fmt: skip
    html = operator.get(SCHEDULES).text
    for expected in ("daily", "at 09:00, Monday to Friday", "0 9 * * mon-fri · Asia/Tokyo", "in 2 h", "JST", "3 h ago"):
        assert expected in html
    assert f"/admin/django_skipqueue/job/{last_job.pk}/change/" in html
    assert 'data-status="failed"' in html


@pytest.mark.parametrize(
    ("fields", "state", "detail"),
    [
        ({"due": -60}, "on time", ""),
        ({"due": 90}, "late", ""),
        ({"due": 90, "error": "<no> task"}, "cannot run", "&lt;no&gt; task"),
        ({"paused_at": Now(), "paused_by": "ann"}, "paused", "ann"),
        ({"due": 90, "source": "code", "retired_at": Now()}, "no longer in the code", ""),
    ],
)
def test_a_row_shows_the_state_of_a_schedule(operator: Client, fields: dict[str, Any], state: str, detail: str) -> None:
    make_schedule("s", **fields)
    html = operator.get(SCHEDULES).text
    assert f">{state}</span>" in html
    assert detail in html


def test_an_empty_list_of_schedules_says_so(operator: Client) -> None:
    assert "There are no schedules." in operator.get(SCHEDULES).text


def test_many_schedules_take_one_query_and_little_time(operator: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(40):
        make_schedule(f"s{number}", due=-number, cron="0 9 * * *")
    operator.get(SCHEDULES)
    with django_assert_max_num_queries(12):
        operator.get(SCHEDULES)


# The buttons


def test_a_schedule_is_paused_and_resumed(operator: Client) -> None:
    schedule = make_schedule("s", due=-60)
    response = operator.post(schedule_address(schedule, "pause"), follow=True)
    assert messages_of(response) == ["The schedule “s” is paused."]
    assert Schedule.objects.get().paused_by == "ann"
    assert messages_of(operator.post(schedule_address(schedule, "pause"), follow=True)) == [
        "The schedule “s” is already paused."
    ]
    response = operator.post(schedule_address(schedule, "resume"), follow=True)
    assert messages_of(response) == ["The schedule “s” was resumed."]
    assert Schedule.objects.get().paused_at is None
    assert messages_of(operator.post(schedule_address(schedule, "resume"), follow=True)) == [
        "The schedule “s” is not paused."
    ]
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == [
        "The schedule “s” is paused.",
        "The schedule “s” was resumed.",
    ]


def test_run_now_enqueues_a_job_unless_the_last_job_is_unfinished(operator: Client) -> None:
    schedule = make_schedule("100 %s", due=-60, overlap="skip")
    response = operator.post(schedule_address(schedule, "run"), follow=True)
    job = Job.objects.get()
    assert messages_of(response) == [f"Job {job.pk} of the schedule “100 %s” was enqueued."]
    response = operator.post(schedule_address(schedule, "run"), follow=True)
    assert messages_of(response) == [
        f"The last job, {job.pk}, is still unfinished, and this schedule does not overlap jobs."
    ]
    assert Job.objects.count() == 1


@pytest.mark.parametrize("schedule_id", [4711, 2**63, 10**30])
def test_a_button_of_a_schedule_that_does_not_exist_is_not_found(operator: Client, schedule_id: int) -> None:
    for name in ("pause", "resume", "run"):
        assert operator.post(f"{SCHEDULES}{schedule_id}/{name}/").status_code == 404


# The page of a schedule


def test_the_page_of_a_schedule_shows_its_next_five_runs_in_its_time_zone(operator: Client) -> None:
    schedule = make_schedule("s", due=-60, cron="0 9 * * *", timezone="Asia/Tokyo")
    html = operator.get(schedule_address(schedule)).text
    assert html.count("09:00 JST") >= 4
    assert "at 09:00, every day" in html


def test_the_page_of_a_schedule_shows_times_and_arguments_and_has_buttons(operator: Client) -> None:
    schedule = make_schedule("daily", cron="0 9 * * mon-fri", args=[1], kwargs={"b": 2}, source="code")
    html = operator.get(schedule_address(schedule)).text
    assert "at 09:00, Monday to Friday 0 9 * * mon-fri" in re.sub("<[^>]*>", "", html)
    assert "<code>1, b=2</code>" in html
    assert "Run now" in html
    assert f'href="{LIST}?task={schedule.task}"' in html
    operator.post(schedule_address(schedule, "pause"))
    html = operator.get(schedule_address(schedule)).text
    assert "Resume the schedule daily" in html
    assert "Pause the schedule daily" not in html


def test_a_schedule_without_arguments_has_a_dash(operator: Client) -> None:
    assert "[] {}" not in operator.get(schedule_address(make_schedule("daily", source="code"))).text


def test_users_who_may_not_run_a_schedule_see_no_buttons(log_in: Callable[..., Client]) -> None:
    schedule = make_schedule("daily", source="code")
    html = log_in("view_schedule").get(schedule_address(schedule)).text
    assert "Run now" not in html
    assert "Jobs of this task" not in html


def test_the_form_of_a_new_schedule_has_the_usual_values(operator: Client) -> None:
    form = operator.get(f"{SCHEDULES}add/").context["adminform"].form
    assert [form[name].value() for name in ("args", "kwargs", "catch_up", "overlap")] == ["[]", "{}", "latest", "allow"]
    labels = [str(field.label) for field in form]
    assert labels == [label[:1].upper() + label[1:] for label in labels]


def test_a_schedule_of_the_code_cannot_be_edited(operator: Client) -> None:
    schedule = make_schedule("s", due=-60, source="code", kwargs={"token": "secret", "id": 5})
    response = operator.get(schedule_address(schedule))
    assert 'name="cron"' not in response.text
    assert "secret" not in response.text
    assert "id=5" in response.text
    assert operator.post(schedule_address(schedule), FORM_FIELDS).status_code == 403
    assert operator.post(schedule_address(schedule, "delete"), {"post": "yes"}).status_code == 403
    Schedule.objects.update(retired_at=Now())
    operator.post(schedule_address(schedule, "delete"), {"post": "yes"})
    assert not Schedule.objects.exists()


# The form


def test_a_schedule_made_with_the_form_fires(operator: Client) -> None:
    assert add_schedule(operator, jitter="30").status_code == 302
    schedule = Schedule.objects.annotate(now=Now()).get()
    assert (schedule.name, schedule.task, schedule.args, schedule.kwargs) == (
        "sum",
        "tests.app.jobs.add",
        [1],
        {"b": 2},
    )
    assert (schedule.cron, schedule.interval, schedule.timezone) == ("", timedelta(minutes=5), "Europe/Berlin")
    assert (schedule.catch_up, schedule.overlap, schedule.jitter, schedule.source) == ("all", "skip", 30, "admin")
    assert schedule.next_run_at == schedule.fire_at
    assert schedule.next_run_at is not None
    assert abs(schedule.next_run_at - schedule.now - timedelta(minutes=5)) < timedelta(seconds=10)
    Schedule.objects.update(fire_at=Now(), next_run_at=Now())
    assert fire_all() == 1
    assert Job.objects.get().args == [1]


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"cron": "* * * * *"}, "cron", "either a cron expression or an interval"),
        ({"interval": ""}, "cron", "either a cron expression or an interval"),
        ({"interval": "", "cron": "0 9 * *"}, "cron", "has 4 fields"),
        ({"interval": "", "cron": "61 9 * * *"}, "cron", "Bad minute"),
        ({"interval": "00:00:00.5"}, "interval", "from 1 second to 10 years"),
        ({"timezone": "Europe/Bonn"}, "timezone", "Select a valid choice"),
        ({"task": "gone.jobs.gone"}, "task", "Select a valid choice"),
        ({"kwargs": '{"surprise": 2}'}, "kwargs", "surprise"),
        ({"kwargs": "[1]"}, "kwargs", "kwargs must be a dict"),
        ({"args": "{}"}, "kwargs", "args must be a list"),
        ({"args": "x"}, "args", "Enter a valid JSON"),
        ({"jitter": "-1"}, "jitter", "jitter must be from 0"),
        ({"name": "n" * 1001}, "name", "at most 1000 bytes"),
        ({"name": ""}, "name", "required"),
    ],
)
def test_a_schedule_that_could_not_fire_is_not_saved(
    operator: Client, fields: dict[str, str], field: str, problem: str
) -> None:
    errors = form_errors(add_schedule(operator, **fields))
    assert list(errors) == [field]
    assert problem in str(errors[field])
    assert not Schedule.objects.exists()


def test_a_task_with_a_computed_unique_key_is_refused(operator: Client, registry: Registry) -> None:
    job(name="computed", unique_key=lambda: "k")(jobs.noop.function)
    errors = form_errors(add_schedule(operator, task="computed", args="", kwargs=""))
    assert "which a supervisor must not call" in str(errors["kwargs"])


def test_a_schedule_with_the_name_of_another_is_refused(operator: Client) -> None:
    make_schedule("sum")
    assert "already exists" in str(form_errors(add_schedule(operator))["name"])


def test_an_edit_changes_the_next_run_if_the_times_have_changed(operator: Client) -> None:
    add_schedule(operator)
    schedule = Schedule.objects.get()
    operator.post(schedule_address(schedule), FORM_FIELDS | {"kwargs": '{"b": 3}'})
    schedule_after = Schedule.objects.get()
    assert (schedule_after.kwargs, schedule_after.next_run_at) == ({"b": 3}, schedule.next_run_at)
    operator.post(schedule_address(schedule), FORM_FIELDS | {"cron": "0 9 * * *", "interval": ""})
    schedule_after = Schedule.objects.get()
    assert (schedule_after.cron, schedule_after.interval) == ("0 9 * * *", None)
    assert schedule_after.next_run_at != schedule.next_run_at
    assert schedule_after.next_run_at == schedule_after.fire_at


def test_an_edit_keeps_the_columns_that_a_supervisor_writes(operator: Client) -> None:
    add_schedule(operator)
    schedule = Schedule.objects.get()
    Schedule.objects.update(last_job_id=7, last_run_at=Now(), error="no")
    operator.post(schedule_address(schedule), FORM_FIELDS | {"name": "other"})
    schedule_after = Schedule.objects.get()
    assert (schedule_after.name, schedule_after.last_job_id, schedule_after.error) == ("other", 7, "")
    assert schedule_after.last_run_at is not None


SECRET = "hunter22-correct-horse"

FIELDS_OF_GATHER = {"task": "tests.app.jobs.gather", "args": "[1]"}


def make_schedule_with_secret(**fields: Any) -> Schedule:
    kwargs = {"token": SECRET, "id": 5}
    return make_schedule("sum", task="tests.app.jobs.gather", args=[1], kwargs=kwargs, source="admin", **fields)


def test_the_form_shows_masks_and_an_edit_keeps_the_secrets(operator: Client) -> None:
    schedule = make_schedule_with_secret()
    response = operator.get(schedule_address(schedule))
    assert SECRET not in response.text
    masked_kwargs = str(response.context["adminform"].form["kwargs"].value())
    assert MASK in masked_kwargs
    fields = FORM_FIELDS | FIELDS_OF_GATHER
    assert (
        operator.post(schedule_address(schedule), fields | {"kwargs": masked_kwargs, "jitter": "3"}).status_code == 302
    )
    edited_kwargs = masked_kwargs.replace("5", "6")
    assert operator.post(schedule_address(schedule), fields | {"kwargs": edited_kwargs}).status_code == 302
    assert Schedule.objects.get().kwargs == {"token": SECRET, "id": 6}
    edited_kwargs = masked_kwargs.replace(MASK, "another-token")
    assert operator.post(schedule_address(schedule), fields | {"kwargs": edited_kwargs}).status_code == 302
    assert Schedule.objects.get().kwargs == {"token": "another-token", "id": 5}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kwargs": json.dumps({"id": MASK})}, "kwargs"),
        ({"kwargs": json.dumps({"token": MASK, "id": 5}), "task": "tests.app.jobs.add"}, "kwargs"),
        ({"args": json.dumps([MASK])}, "args"),
    ],
)
def test_a_mask_is_refused_where_it_hides_no_value_of_the_schedule(
    operator: Client, fields: dict[str, str], field: str
) -> None:
    response = operator.post(schedule_address(make_schedule_with_secret()), FORM_FIELDS | FIELDS_OF_GATHER | fields)
    assert "This mask hides no value of this schedule" in str(form_errors(response)[field])
    assert SECRET not in response.text
    assert Schedule.objects.get().kwargs == {"token": SECRET, "id": 5}


def test_an_error_of_the_form_shows_no_secret(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error_with_a_secret(self: ScheduleEntry) -> None:
        raise InvalidOption(f"no {self.kwargs['token']}")

    monkeypatch.setattr(ScheduleEntry, "check", raise_error_with_a_secret)
    response = operator.post(
        schedule_address(make_schedule_with_secret()),
        FORM_FIELDS | FIELDS_OF_GATHER | {"kwargs": json.dumps({"token": MASK, "id": 6})},
    )
    assert form_errors(response) == {"kwargs": [f"no {MASK}"]}


# The dashboard


def test_the_dashboard_shows_schedules_with_problems_first(operator: Client) -> None:
    for number in range(6):
        make_schedule(f"fine {number}", due=-60 - number)
    make_schedule("broken", due=90, error="no")
    html = operator.get("/admin/django_skipqueue/job/dashboard/").text
    section = html.partition("skipqueue-schedules")[2]
    assert section.index("broken") < section.index("fine 0")
    assert "2 more" in section


def test_without_schedules_the_dashboard_has_no_section_for_them(operator: Client) -> None:
    assert "skipqueue-schedules" not in operator.get("/admin/django_skipqueue/job/dashboard/").text


def test_the_page_of_a_job_links_to_its_schedule(operator: Client) -> None:
    schedule = make_schedule("s <b>", due=1)
    fire_all()
    job = Job.objects.get()
    link = f'<a href="{schedule_address(schedule)}">s &lt;b&gt;</a>'
    assert link in operator.get(f"/admin/django_skipqueue/job/{job.pk}/change/").text
    schedule.delete()
    assert link not in operator.get(f"/admin/django_skipqueue/job/{job.pk}/change/").text


@pytest.mark.parametrize("schedule_of_metadata", ["x", 5, None, {"name": 5}, {}])
def test_a_job_with_invalid_metadata_of_a_schedule_has_a_page(operator: Client, schedule_of_metadata: object) -> None:
    job = make_job(metadata={"schedule": schedule_of_metadata})
    assert operator.get(f"/admin/django_skipqueue/job/{job.pk}/change/").status_code == 200

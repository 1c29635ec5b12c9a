"""Who may do what in the admin: every view and every action, for each kind of user, by GET and by POST.

The tests read the views from `get_urls` of the admin, so they fail on a new view until the table `VIEWS` has the view.
"""

from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client, override_settings
from django.urls import reverse

from django_skipqueue.console.search import cause_query
from django_skipqueue.console.verbs.table import verbs_by_action
from django_skipqueue.models import FailureRollUp, Job, JobBatch, JobSignal, JobStep, Queue, Schedule, Worker
from django_skipqueue.models.copies import BULK_TASK

from ...app.failing import BAD_VALUE
from ...app.rows import make_job, make_worker
from ...harness.parts import modules_of_parts
from ...harness.table import Case
from ...parts.schedules.rows import make_schedule
from .conftest import LIST

pytestmark = pytest.mark.django_db

# The permissions of each kind of user.
PEOPLE: dict[str, list[str]] = {
    "anonymous": [],
    "staff": [],
    "viewer": ["view_job", "view_queue", "view_worker", "view_schedule", "view_jobbatch"],
    "retrier": ["view_job", "retry_job"],
    "discarder": ["view_job", "discard_job"],
    "acknowledger": ["view_job", "acknowledge_cause"],
    "copier": ["view_job", "add_job"],
    "deleter": ["view_job", "delete_job"],
    "scheduler": ["view_schedule", "run_schedule"],
    "planner": ["view_schedule", "add_schedule", "change_schedule", "delete_schedule"],
    "pauser": ["view_queue", "change_queue"],
    "changer": ["change_job", "change_worker"],  # Django lets users who may change a model also view the model
    "blind": [
        "retry_job",
        "discard_job",
        "acknowledge_cause",
        "add_job",
        "delete_job",
        "add_worker",
        "delete_worker",
        "add_schedule",
        "delete_schedule",
        "run_schedule",
        "signal_job",
    ],
    "signaller": ["view_job", "signal_job"],
    "boss": ["*"],
}
JOB_VIEWERS = {"viewer", "retrier", "discarder", "acknowledger", "copier", "deleter", "changer", "signaller", "boss"}
SCHEDULE_VIEWERS = {"viewer", "scheduler", "planner", "boss"}
STAFF = set(PEOPLE) - {"anonymous"}


class View(NamedTuple):
    """The kinds of users who may use a view."""

    readers: set[str]
    """The users who get a page, or a redirect to one, by GET."""
    writers: set[str]
    """The users for whom a POST changes something."""
    is_post: bool = False
    """Whether the view refuses every GET."""


NOBODY: set[str] = set()
VIEWS: dict[tuple[str, str | None], View] = {
    ("job", "changelist"): View(JOB_VIEWERS, NOBODY),
    ("job", "add"): View(NOBODY, NOBODY),
    ("job", "history"): View(JOB_VIEWERS, NOBODY),
    ("job", "delete"): View({"deleter", "boss"}, NOBODY),
    ("job", "change"): View(JOB_VIEWERS, NOBODY),
    ("job", "retry"): View(NOBODY, {"retrier", "boss"}, is_post=True),
    ("job", "run_now"): View(NOBODY, {"retrier", "boss"}, is_post=True),
    ("job", "reschedule"): View({"retrier", "boss"}, {"retrier", "boss"}),
    ("job", "change_queue"): View({"retrier", "boss"}, {"retrier", "boss"}),
    ("job", "change_priority"): View({"retrier", "boss"}, {"retrier", "boss"}),
    ("job", "discard"): View({"discarder", "boss"}, {"discarder", "boss"}),
    ("job", "cancel"): View({"discarder", "boss"}, {"discarder", "boss"}),
    ("job", "progress"): View(JOB_VIEWERS, {"discarder", "boss"}),
    ("job", "search"): View(NOBODY, JOB_VIEWERS, is_post=True),
    ("job", "edit"): View({"copier", "boss"}, {"copier", "boss"}),
    ("job", "run_again"): View({"copier", "boss"}, {"copier", "boss"}),
    ("job", "signal"): View({"signaller", "boss"}, {"signaller", "boss"}),
    ("job", "retry_from"): View({"retrier", "boss"}, {"retrier", "boss"}),
    ("job", "run_again_from"): View({"copier", "boss"}, {"copier", "boss"}),
    ("job", "dashboard"): View(JOB_VIEWERS, NOBODY),
    ("job", "failures"): View(JOB_VIEWERS, NOBODY),
    ("job", "cause"): View(JOB_VIEWERS, NOBODY),
    ("job", "acknowledge"): View(NOBODY, {"acknowledger", "boss"}, is_post=True),
    ("job", "task"): View(JOB_VIEWERS, NOBODY),
    ("job", "limits"): View(JOB_VIEWERS, NOBODY),
    ("job", "doctor"): View(JOB_VIEWERS, NOBODY),
    ("job", "metrics"): View(JOB_VIEWERS, NOBODY),
    ("job", None): View(STAFF, NOBODY),  # redirects to the page of the job
    ("queue", "changelist"): View({"viewer", "pauser", "boss"}, NOBODY),
    ("queue", "pause"): View({"pauser", "boss"}, {"pauser", "boss"}),
    ("queue", "resume"): View(NOBODY, {"pauser", "boss"}, is_post=True),
    ("queue", "limit"): View({"pauser", "boss"}, {"pauser", "boss"}),
    ("queue", "rate"): View({"pauser", "boss"}, {"pauser", "boss"}),
    ("queue", "add"): View(NOBODY, NOBODY),
    ("queue", "history"): View({"viewer", "pauser", "boss"}, NOBODY),
    ("queue", "delete"): View(NOBODY, NOBODY),
    ("queue", "change"): View({"viewer", "pauser", "boss"}, NOBODY),
    ("queue", None): View(STAFF, NOBODY),
    ("schedule", "changelist"): View(SCHEDULE_VIEWERS, NOBODY),
    ("schedule", "pause"): View(NOBODY, {"scheduler", "boss"}, is_post=True),
    ("schedule", "resume"): View(NOBODY, {"scheduler", "boss"}, is_post=True),
    ("schedule", "run"): View(NOBODY, {"scheduler", "boss"}, is_post=True),
    ("schedule", "add"): View({"planner", "boss"}, {"planner", "boss"}),
    ("schedule", "history"): View(SCHEDULE_VIEWERS, NOBODY),
    ("schedule", "delete"): View({"planner", "boss"}, {"planner", "boss"}),
    ("schedule", "change"): View(SCHEDULE_VIEWERS, {"planner", "boss"}),
    ("schedule", None): View(STAFF, NOBODY),
    ("jobbatch", "changelist"): View({"viewer", "boss"}, NOBODY),
    ("jobbatch", "add"): View(NOBODY, NOBODY),
    ("jobbatch", "history"): View({"viewer", "boss"}, NOBODY),
    ("jobbatch", "delete"): View(NOBODY, NOBODY),
    ("jobbatch", "change"): View({"viewer", "boss"}, NOBODY),
    ("jobbatch", None): View(STAFF, NOBODY),
    ("worker", "changelist"): View({"viewer", "changer", "boss"}, NOBODY),
    ("worker", "restart"): View({"changer", "boss"}, {"changer", "boss"}),
    ("worker", "stop"): View({"changer", "boss"}, {"changer", "boss"}),
    ("worker", "add"): View(NOBODY, NOBODY),
    ("worker", "history"): View({"viewer", "changer", "boss"}, NOBODY),
    ("worker", "delete"): View(NOBODY, NOBODY),
    ("worker", "change"): View({"viewer", "changer", "boss"}, NOBODY),
    ("worker", None): View(STAFF, NOBODY),
}
# The kinds of users who may use each action of the job list.
ACTIONS = {
    "retry_selected": {"retrier", "boss"},
    "run_now_selected": {"retrier", "boss"},
    "postpone_selected": {"retrier", "boss"},
    "reschedule_selected": {"retrier", "boss"},
    "change_queue_selected": {"retrier", "boss"},
    "change_priority_selected": {"retrier", "boss"},
    "discard_selected": {"discarder", "boss"},
    "cancel_selected": {"discarder", "boss"},
    "delete_selected": {"deleter", "boss"},
    "run_again_selected": {"copier", "boss"},
    "signal_selected": {"signaller", "boss"},
    "retry_from_selected": {"retrier", "boss"},
    "run_again_from_selected": {"copier", "boss"},
}
SCHEDULE_FIELDS = {"name": "x", "task": "tests.app.jobs.noop", "interval": "00:05:00", "timezone": "UTC"}
MORE_FIELDS = {"catch_up": "latest", "overlap": "allow", "cron": "", "args": "[]", "kwargs": "{}", "jitter": "0"}
# Fields for every form and question of the admin, posted together to each view.
ANSWERS = (
    SCHEDULE_FIELDS
    | MORE_FIELDS
    | {"over": "5", "delay": "5", "run_after": "2100-01-01T00:00", "queue_name": "mail", "priority": "7"}
    | {"limit": "none", "rate": "none"}
    | {"signal_name": "go", "payload": "1", "step": "book"}
)
BULK_ARGUMENTS = {"action": "retry_selected", "query": "", "site": "admin", "user_id": 0, "user": "x", "number": 3}
EVIL_QUERY = (
    "next=//evil.example/&redirect_to=https://evil.example/&_changelist_filters=//evil.example&_popup=1&_to_field=id"
)


VIEWS_WITHOUT_ID = {
    "changelist", "add", "dashboard", "task", "failures", "cause", "acknowledge", "limits", "doctor", "metrics",
    "search",
}  # fmt: skip
"""The views whose addresses do not contain an id."""


class Rows:
    """Makes a job for each button, a paused queue, a worker, schedules and a batch."""

    def __init__(self) -> None:
        self.failed, self.queued, self.done = make_job("failed"), make_job("queued"), make_job("completed")
        self.running, self.scheduled = make_job("running"), make_job("scheduled", run_after=timedelta(seconds=90))
        self.bulk = make_job("running", task=BULK_TASK, kwargs=BULK_ARGUMENTS)
        self.worker = make_worker()
        self.schedule, self.paused = make_schedule("s", due=-60), make_schedule("paused", due=-60, paused_at=Now())
        Queue.pause("mail")
        with override_settings(SKIPQUEUE={"QUEUES": {"mail": {"concurrency": None, "rate": None}}}):
            Queue.limit("mail", 4)
            Queue.rate("mail", "4/s")
        self.batch = JobBatch.objects.create(name="b")
        for part in modules_of_parts("admin_pages"):
            part.make_rows()
        for job in Job.objects.all():
            step = JobStep(job_id=job.pk, name="book", kind="step", number=1, attempt=1)
            step.started_at = step.recorded_at = job.enqueued_at
            step.save(force_insert=True)
        self.before = read_everything()

    def address(self, model: str, name: str | None) -> str:
        """Return the address of a view, for a row that the view can change."""
        jobs = {
            "run_now": self.scheduled, "reschedule": self.queued, "change_queue": self.queued,
            "change_priority": self.queued, "discard": self.queued, "cancel": self.running, "run_again": self.done,
            "progress": self.bulk, "edit": self.done, "signal": self.queued, "run_again_from": self.done,
        }  # fmt: skip
        job = jobs.get(name or "", self.failed)
        pk = {
            "job": job.pk, "queue": "mail", "worker": self.worker.pk, "schedule": self.schedule.pk,
            "jobbatch": self.batch.pk,
        }[model]  # fmt: skip
        if model == "schedule" and name == "resume":
            pk = self.paused.pk
        if model == "queue" and name in ("pause", "resume", "limit", "rate"):
            return reverse(f"admin:django_skipqueue_queue_{name}", query={"queue": pk})
        if name is None:
            return f"/admin/django_skipqueue/{model}/{pk}/"
        if model == "worker" and name in ("restart", "stop"):
            return reverse(f"admin:django_skipqueue_worker_{name}", query={"worker": pk})
        args = [] if name in VIEWS_WITHOUT_ID else [pk]
        query = cause_query(BAD_VALUE) if name in ("cause", "acknowledge") else ""
        return f"{reverse(f'admin:django_skipqueue_{model}_{name}', args=args)}?{query}".removesuffix("?")

    def are_unchanged(self) -> bool:
        """Whether no row has changed, and the admin log has no new entry."""
        return read_everything() == self.before


def read_everything() -> list[Any]:
    """Return all rows that the admin can change."""
    models: tuple[Any, ...] = (FailureRollUp, Job, JobBatch, JobSignal, JobStep, Queue, Schedule, Worker, LogEntry)
    selects = [f"SELECT to_jsonb(row_of_table)::text FROM {model._meta.db_table} AS row_of_table" for model in models]
    with connection.cursor() as cursor:
        cursor.execute(f"{' UNION ALL '.join(selects)} ORDER BY 1")
        rows: list[Any] = cursor.fetchall()
    return rows


@pytest.fixture
def rows(db: None, settings: Any) -> Rows:
    """Make jobs, a worker and other rows."""
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"  # spares each request a query
    return Rows()


def log_in_as(person: str, **options: Any) -> Client:
    client = Client(**options)
    if person != "anonymous":
        user = User.objects.create_user(person, is_staff=True, is_superuser=person == "boss")
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_skipqueue", codename__in=PEOPLE[person])
        )
        client.force_login(user)
    return client


def registered_views() -> Iterator[tuple[str, str | None]]:
    """Yield the model and the name of every view of the admin."""
    for model in (Job, JobBatch, Queue, Schedule, Worker):
        name = str(model._meta.model_name)
        for pattern in admin.site.get_model_admin(model).get_urls():
            yield name, pattern.name and pattern.name.removeprefix(f"django_skipqueue_{name}_")


def test_the_table_has_every_view_of_the_admin() -> None:
    assert sorted(registered_views(), key=str) == sorted(VIEWS, key=str)


def test_the_table_has_every_action_of_the_admin() -> None:
    assert set(verbs_by_action()) == set(ACTIONS)
    assert not admin.site.get_model_admin(Worker).actions


@pytest.mark.parametrize("person", PEOPLE)
class TestViews:
    def test_a_get_shows_a_view_to_its_readers_and_changes_nothing(self, rows: Rows, case: Case, person: str) -> None:
        client = log_in_as(person)
        for (model, name), view in VIEWS.items():
            with case(model=model, name=name):
                for method in (client.get, client.head):
                    response = method(rows.address(model, name))
                    if person == "anonymous":
                        assert response.headers["Location"].startswith("/admin/login/?next=/admin/")
                    elif view.is_post:
                        assert response.status_code == 405
                    elif person not in view.readers:
                        assert response.status_code == 403
                    else:
                        assert response.status_code == (200 if name else 302)
                    if response.status_code == 200 and person != "boss":
                        break  # HEAD renders the page again, so only the superuser tries both
                assert rows.are_unchanged()

    def test_a_post_changes_what_the_table_says(self, rows: Rows, case: Case, person: str) -> None:
        client = log_in_as(person)
        for (model, name), view in VIEWS.items():
            with case(model=model, name=name):
                response = client.post(
                    rows.address(model, name),
                    {"post": "yes", "confirmed": "yes", **ANSWERS, "status": "completed", "queue": "mail"},
                )
                assert rows.are_unchanged() == (person not in view.writers)
                if person != "anonymous" and view.is_post:
                    assert response.status_code == (302 if person in view.writers else 403)


@pytest.mark.parametrize("person", PEOPLE)
class TestActions:
    def data(self, action: str, rows: Rows) -> dict[str, Any]:
        selected_ids = [rows.failed.pk, rows.queued.pk, rows.running.pk, rows.done.pk, rows.scheduled.pk]
        return {"action": action, "_selected_action": selected_ids, "confirmed": "yes", **ANSWERS}

    def test_a_post_changes_what_the_table_says(self, rows: Rows, case: Case, person: str) -> None:
        client = log_in_as(person)
        for action, select_across in product(ACTIONS, ["0", "1"]):
            with case(action=action, select_across=select_across):
                client.post(LIST, self.data(action, rows) | {"select_across": select_across})
                assert rows.are_unchanged() == (person not in ACTIONS[action])

    def test_a_get_changes_nothing(self, rows: Rows, case: Case, person: str) -> None:
        client = log_in_as(person)
        for action in ACTIONS:
            with case(action):
                client.get(LIST, self.data(action, rows))
                client.head(LIST, self.data(action, rows))
                assert rows.are_unchanged()


class TestForgeryAndRedirects:
    def test_a_post_without_the_csrf_token_is_refused(self, rows: Rows, case: Case) -> None:
        client = log_in_as("boss", enforce_csrf_checks=True)
        for model, name in VIEWS:
            with case(model=model, name=name):
                for action in (None, *ACTIONS):
                    data = {"action": action, "_selected_action": rows.failed.pk, "confirmed": "yes"} if action else {}
                    assert client.post(rows.address(model, name), data).status_code == 403
                assert rows.are_unchanged()

    def test_no_view_redirects_to_another_site(self, rows: Rows, case: Case) -> None:
        client = log_in_as("boss")
        for model, name in VIEWS:
            with case(model=model, name=name):
                for send in (client.get, client.post):
                    location = send(f"{rows.address(model, name)}?{EVIL_QUERY}").headers.get("Location", "")
                    assert urlsplit(location)[:2] == ("", "")
                    assert not location.startswith("//")


def test_a_post_with_the_csrf_token_is_accepted(rows: Rows) -> None:
    client = log_in_as("boss", enforce_csrf_checks=True)
    client.get(rows.address("job", "change"))
    data = {"csrfmiddlewaretoken": client.cookies["csrftoken"].value}
    assert client.post(rows.address("job", "retry"), data).status_code == 302
    assert Job.objects.get(pk=rows.failed.pk).status == "queued"


INVALID_IDS = ["", "x", "-1", "0", "1.0", "1e3", "²", "٣", " 7", str(10**30), str(2**63), "1 OR 1=1", "<b>", "\0"]
INVALID_IDS_IN_ADDRESSES = ["0", str(2**63 - 1), str(2**63), str(10**30), "9" * 4_400, "x", "-1", "%3Cb%3E", "1%00"]
PAGES_OF_A_JOB = [
    "change", "history", "delete", "retry", "run-now", "reschedule", "change-queue", "change-priority", "discard",
    "cancel", "run-again", "signal", "retry-from", "run-again-from",
]  # fmt: skip


@pytest.mark.slow  # the test tries each action and each page with each invalid id
class TestForeignIds:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_an_action_on_an_invalid_id_changes_nothing(self, rows: Rows, case: Case, action: str) -> None:
        client = log_in_as("boss")
        for invalid_id in INVALID_IDS:
            with case(id=invalid_id):
                for confirmed in ("yes", ""):
                    data = {"action": action, "_selected_action": [invalid_id], "confirmed": confirmed}
                    response = client.post(LIST, data)
                    assert response.status_code == 200 or response.headers["Location"] == LIST
                assert client.get(LIST).status_code == 200, "the list shows the messages of the responses"
                assert rows.are_unchanged()

    def test_an_action_on_ids_of_another_model_changes_nothing(self, rows: Rows, case: Case) -> None:
        client = log_in_as("boss")
        for action in ACTIONS:
            with case(action):
                entry = LogEntry.objects.create(
                    pk=max(Job.objects.values_list("pk", flat=True)) + 1000,
                    user_id=client.session["_auth_user_id"],
                    action_flag=1,
                )
                before = read_everything()
                data = {"action": action, "_selected_action": [entry.pk, rows.worker.pk], "confirmed": "yes"}
                assert client.post(LIST, data, follow=True).status_code == 200
                assert read_everything() == before

    def test_an_action_on_all_matching_jobs_ignores_the_selected_ids(self, rows: Rows) -> None:
        client = log_in_as("boss")
        data = {"action": "delete_selected", "_selected_action": [rows.failed.pk], "confirmed": "yes"}
        client.post(f"{LIST}?status=completed", data | {"select_across": "1"})
        assert set(Job.objects.all()) == {rows.failed, rows.queued, rows.running, rows.scheduled, rows.bulk}

    def test_the_page_of_an_invalid_job_id_is_no_error(self, rows: Rows, case: Case) -> None:
        client = log_in_as("boss")
        for name, invalid_id in product(PAGES_OF_A_JOB, INVALID_IDS_IN_ADDRESSES):
            with case(name=name, id=invalid_id):
                for send in (client.get, client.post):
                    assert send(f"{LIST}{invalid_id}/{name}/").status_code in (302, 404, 405)
                assert rows.are_unchanged()


@pytest.mark.parametrize("model", ["job", "queue", "worker", "schedule", "jobbatch"])
@pytest.mark.parametrize("name", ["change", "history", "delete"])
def test_an_id_with_a_nul_is_not_found(model: str, name: str) -> None:
    assert log_in_as("boss").get(f"/admin/django_skipqueue/{model}/a%00b/{name}/").status_code == 404

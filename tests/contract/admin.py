"""Tests what each kind of user may do in the admin: the response of each address, and the offered actions."""

import logging
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, urlencode

from django.contrib import admin
from django.contrib.auth import get_user
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import transaction
from django.db.models.functions import Now
from django.template.response import SimpleTemplateResponse
from django.test import Client, RequestFactory, override_settings

from django_skipqueue.models import JobBatch, Queue, Schedule

from ..app.rows import make_job, make_worker

PEOPLE = {
    "anonymous": "",
    "staff": "",
    "view": "view",
    "add": "view add",
    "change": "view change",
    "delete": "view delete",
    "retry": "view retry",
    "discard": "view discard",
    "run": "view run",
    "not_view": "add delete retry discard run",
    "superuser": "",
}
"""Kinds of users, and their permissions on all models. In Django, the permission to change includes that to view."""

SETTINGS = {"ARCHIVE": None, "QUEUES": {"mail": {"concurrency": None, "rate": None}}}
FORM_VALUES = {
    "args": "[]", "catch_up": "latest", "confirmed": "yes", "cron": "", "interval": "00:05:00", "jitter": "0",
    "delay": "5", "kwargs": "{}", "limit": "none", "over": "5", "name": "x", "overlap": "allow", "post": "yes",
    "priority": "7", "queue": "mail", "queue_name": "mail", "rate": "none", "run_after": "2100-01-01T00:00",
    "status": "completed", "task": "tests.app.jobs.noop", "timezone": "UTC",
}  # fmt: skip
"""Values for the fields of all forms: each POST sends all of these."""

BULK = {"action": "retry_selected", "query": "", "site": "admin", "user_id": 0, "user": "x", "number": 3}
"""The arguments of a bulk action."""


def permissions() -> Iterator[str]:
    """Yield the lines of a table: a column for each kind of user, a line for each address and method, and each action.

    The cell `login` means a redirect to the login page.
    """
    # Rendering takes long, and no status depends on it. The logger would write a traceback for each refused request.
    with (
        override_settings(SKIPQUEUE=SETTINGS, SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies"),
        patch.object(SimpleTemplateResponse, "rendered_content", ""),
        patch.object(logging.getLogger("django.request"), "disabled", True),
    ):
        clients = [_client(*person_and_kinds) for person_and_kinds in PEOPLE.items()]
        ids, query_parameters = _make_rows()
        yield _table_line("", PEOPLE)
        yield _table_line(
            "metrics.view GET", [_response_status(client, "get", "/metrics/skipqueue") for client in clients]
        )
        for model, model_admin in admin.site._registry.items():
            name = str(model._meta.model_name)
            if model._meta.app_label != "django_skipqueue":
                continue
            for pattern in model_admin.get_urls():
                path, url_name = f"{name}/{pattern.pattern}", str(pattern.name).removeprefix("django_skipqueue_")
                row_id = quote(str(ids.get(url_name, ids[name])))
                query = urlencode(query_parameters.get(url_name, {}))
                address = f"/admin/django_skipqueue/{re.sub('<.*>', row_id, path)}?{query}"
                for method in ("get", "post"):
                    yield _table_line(
                        f"{path} {method.upper()}", [_response_status(client, method, address) for client in clients]
                    )
            allowed = [_actions(model_admin, client) for client in clients]
            for action in set().union(*allowed):
                yield _table_line(f"{name} {action}", ["yes" if action in actions else "no" for actions in allowed])


def _client(person: str, kinds: str) -> Client:
    client = Client()
    if person != "anonymous":
        user = User.objects.create_user(person, is_staff=True, is_superuser=person == "superuser")
        permissions = Permission.objects.filter(content_type__app_label="django_skipqueue")
        user.user_permissions.set(
            permission for permission in permissions if permission.codename.partition("_")[0] in kinds.split()
        )
        client.force_login(user)
    return client


def _make_rows() -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Make rows. Returns their ids, by model or URL name, and the query parameters of addresses, by URL name."""
    archived_id, worker_id = make_job("failed", finished_at=timedelta(days=-100)).pk, make_worker().pk
    call_command("prunejobs", stdout=StringIO())
    Queue.pause("mail")
    Queue.limit("mail", 4)
    Queue.rate("mail", "4/s")
    cause = {"task": "shop.jobs.send", "exception": "builtins.ValueError", "place": "shop.jobs.post"}
    schedule_columns = {"task": FORM_VALUES["task"], "interval": timedelta(minutes=5)}
    queued_id, running_id, completed_id = make_job("queued").pk, make_job("running").pk, make_job("completed").pk
    ids = {
        "archivedjob": archived_id,
        "job": make_job("failed").pk,
        "job_cancel": running_id,
        "job_progress": make_job("running", task="django_skipqueue.apply_to_all", kwargs=BULK).pk,
        "job_run_now": make_job("scheduled").pk,
        "jobbatch": JobBatch.objects.create(name="b").pk,
        "queue": "mail",
        "schedule": Schedule.objects.create(name="s", **schedule_columns).pk,
        "schedule_resume": Schedule.objects.create(name="paused", paused_at=Now(), **schedule_columns).pk,
        "worker": worker_id,
        **dict.fromkeys(("job_change_priority", "job_change_queue", "job_discard", "job_reschedule"), queued_id),
        **dict.fromkeys(("job_edit", "job_run_again"), completed_id),
    }
    query_parameters = {
        "job_cause": {"task": cause["task"], "cause": f"{cause['exception']} in {cause['place']}"},
        **{f"queue_{verb}": {"queue": "mail"} for verb in ("limit", "pause", "rate", "resume")},
        **{f"worker_{verb}": {"worker": worker_id} for verb in ("restart", "stop")},
    }
    return ids, query_parameters


def _response_status(client: Client, method: str, address: str) -> str:
    """Send a request, roll its changes back, and return the status of the response."""
    with transaction.atomic():
        response = getattr(client, method)(address, FORM_VALUES if method == "post" else None)
        transaction.set_rollback(True)
    return "login" if response.headers.get("Location", "").startswith("/admin/login/") else str(response.status_code)


def _actions(model_admin: admin.ModelAdmin, client: Client) -> set[str]:
    request = RequestFactory().get("/")
    request.user = get_user(client)
    return set(model_admin.get_actions(request))


def _table_line(name: str, cells: Iterable[str]) -> str:
    return f"{name:42}" + "".join(f" {cell:>{len(person)}}" for cell, person in zip(cells, PEOPLE, strict=True))

"""Fixtures and functions for the tests of the admin: users with permissions, and the addresses of pages."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_skipqueue.console.admin import notices
from django_skipqueue.console.rules.verdict import Verdict

from .browser import chromium, complaints, open_admin, server, shared_chromium  # noqa: F401 (fixtures)
from .pictures import picture  # noqa: F401 (a fixture)

LIST = "/admin/django_skipqueue/job/"
QUEUES = "/admin/django_skipqueue/queue/"
WORKERS = "/admin/django_skipqueue/worker/"


def page(name: str, job_id: int) -> str:
    """Return the address of a page of one job, such as `change`, `retry`, `run_again`, `delete` or `history`."""
    return reverse(f"admin:django_skipqueue_job_{name}", args=[job_id])


def task_page(task: str) -> str:
    """Return the address of the page of a task."""
    return f"{LIST}task/?task={task}"


WITHOUT_NOTICES = {
    "bulk", "job_page", "jobs", "queues", "verbs", "archive", "batches", "history", "limits", "schedules",
}  # fmt: skip
"""Folders whose tests do not read the notices."""


@pytest.fixture(autouse=True)
def _fresh_notices(request: pytest.FixtureRequest) -> None:
    """Forget the problems that the process caches for a few seconds. Where no test reads them, cache that all is well.

    Otherwise the first page of each test would apply all rules, which takes longer than the page.
    """
    notices.notices_cache.clear()
    if {request.path.parent.name, request.path.parent.parent.name} & WITHOUT_NOTICES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(notices, "Verdict", SimpleNamespace(now=lambda _: Verdict(())))
            notices.notices_cache.get()


@pytest.fixture
def log_in(db: None) -> Callable[..., Client]:
    """Return a function that makes a test client of a user with these permissions; `*` makes a superuser."""

    def log_in_user(*codenames: str) -> Client:
        user = User.objects.create_user("ann", password="secret", is_staff=True, is_superuser="*" in codenames)
        permissions = Permission.objects.filter(content_type__app_label="django_skipqueue", codename__in=codenames)
        assert "*" in codenames or permissions.count() == len(codenames)
        user.user_permissions.set(permissions)
        client = Client()
        client.force_login(user)
        return client

    return log_in_user


@pytest.fixture
def operator(log_in: Callable[..., Client]) -> Client:
    """Return the test client of a superuser."""
    return log_in("*")


def messages_of(response: Any) -> list[str]:
    """Return the messages on the page to which the response was redirected."""
    return [str(message) for message in response.context["messages"]]


def listed(client: Client, address: str = "") -> list[int]:
    """Return the ids of the jobs on the first page of the job list."""
    return [job.pk for job in client.get(LIST + address).context["cl"].result_list]

"""What the tests of the admin share: people with permissions, and the addresses of pages."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_skipqueue.console.admin.notices import notices_cache

from .browser import chromium, complaints, open_admin, server, shared_chromium  # noqa: F401 (fixtures)
from .pictures import picture  # noqa: F401 (a fixture)

LIST = "/admin/django_skipqueue/job/"
QUEUES = "/admin/django_skipqueue/queue/"
WORKERS = "/admin/django_skipqueue/worker/"


def page(name: str, job_id: int) -> str:
    """The address of a page of one job, by its name: `change`, `retry`, `discard`, `run_again`, `delete`, `history`."""
    return reverse(f"admin:django_skipqueue_job_{name}", args=[job_id])


def task_page(task: str) -> str:
    """The address of the page of a task."""
    return f"{LIST}task/?task={task}"


@pytest.fixture(autouse=True)
def _fresh_notices() -> None:
    """Forget the problems that the process has found and caches for some seconds."""
    notices_cache.clear()


@pytest.fixture
def log_in(db: None) -> Callable[..., Client]:
    """Logs a user with these permissions into a test client; `*` makes a superuser."""

    def make(*codenames: str) -> Client:
        user = User.objects.create_user("ann", password="secret", is_staff=True, is_superuser="*" in codenames)
        known = Permission.objects.filter(content_type__app_label="django_skipqueue", codename__in=codenames)
        assert "*" in codenames or known.count() == len(codenames)
        user.user_permissions.set(known)
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def operator(log_in: Callable[..., Client]) -> Client:
    """The test client of a superuser."""
    return log_in("*")


def messages_of(response: Any) -> list[str]:
    """The messages on the page to which the response was redirected."""
    return [str(message) for message in response.context["messages"]]


def listed(client: Client, address: str = "") -> list[int]:
    """The ids on the first page of the list of jobs."""
    return [job.pk for job in client.get(LIST + address).context["cl"].result_list]

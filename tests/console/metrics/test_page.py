"""Who may read the metrics, and how they are served."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

ADDRESS = "/metrics/skipqueue"
ADMIN_ADDRESS = "/admin/django_skipqueue/job/metrics/"
TOKEN = "s3cr3t-s3cr3t-s3cr3t"

pytestmark = pytest.mark.django_db

LogIn = Callable[..., Client]


@pytest.fixture
def log_in() -> LogIn:
    """Return a function that logs in a user with these permissions and returns the user's client."""

    def log_in_user(*codenames: str, is_staff: bool = True, is_superuser: bool = False) -> Client:
        user = User.objects.create_user("ann", password="secret", is_staff=is_staff, is_superuser=is_superuser)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_skipqueue", codename__in=codenames)
        )
        client = Client()
        client.force_login(user)
        return client

    return log_in_user


def authorization(token: str, scheme: str = "Bearer") -> dict[str, Any]:
    return {"headers": {"Authorization": f"{scheme} {token}"}}


def test_prometheus_reads_the_metrics_with_the_token(client: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    response = client.get(ADDRESS, **authorization(TOKEN))
    assert response.status_code == 200
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "no-store" in response["Cache-Control"]
    assert len(list(text_string_to_metric_families(response.content.decode()))) > 20
    assert client.head(ADDRESS, **authorization(TOKEN, "bearer")).status_code == 200
    assert client.post(ADDRESS, **authorization(TOKEN)).status_code == 405


@pytest.mark.parametrize(
    "request_headers",
    [
        {},
        authorization("wrong-wrong-wrong-wrong"),
        authorization(""),
        authorization(TOKEN, "Basic"),
        authorization("\xe9" * 20),
    ],
)
def test_without_the_right_token_the_metrics_are_refused(client: Client, settings: Any, request_headers: Any) -> None:
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    response = client.get(ADDRESS, **request_headers)
    assert response.status_code == 403
    assert b"skipqueue_" not in response.content
    assert TOKEN.encode() not in response.content


@pytest.mark.parametrize("token", ["", "None"])
def test_without_a_token_in_the_settings_every_token_is_refused(client: Client, token: str) -> None:
    assert client.get(ADDRESS, **authorization(token)).status_code == 403


@pytest.mark.parametrize("codename", ["view_job", "change_job"])
def test_staff_who_may_view_jobs_read_the_metrics(log_in: LogIn, codename: str) -> None:
    client = log_in(codename)
    assert b"skipqueue_workers" in client.get(ADDRESS).content
    assert b"skipqueue_workers" in client.get(ADMIN_ADDRESS).content


@pytest.mark.parametrize(("codenames", "is_staff"), [((), True), (("view_job",), False), (("view_worker",), True)])
def test_users_who_may_not_view_jobs_do_not_get_the_metrics(
    log_in: LogIn, codenames: tuple[str, ...], is_staff: bool
) -> None:
    client = log_in(*codenames, is_staff=is_staff)
    assert client.get(ADDRESS).status_code == 403
    assert client.get(ADMIN_ADDRESS).status_code == (403 if is_staff else 302)


def test_the_token_does_not_open_the_metrics_page_of_the_admin(client: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    assert client.get(ADMIN_ADDRESS, **authorization(TOKEN)).status_code == 302


def test_the_token_is_enough_where_every_page_needs_a_login(client: Client, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    assert client.get(ADDRESS, **authorization(TOKEN)).status_code == 200
    assert client.get(ADDRESS).status_code == 403


def test_a_project_without_sessions_uses_the_token(client: Client, settings: Any) -> None:
    settings.MIDDLEWARE = []
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    assert client.get(ADDRESS).status_code == 403
    assert client.get(ADDRESS, **authorization(TOKEN)).status_code == 200

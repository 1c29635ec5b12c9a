"""Who may read the metrics, and how they are served."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

ADDRESS = "/metrics/skipqueue"
IN_THE_ADMIN = "/admin/django_skipqueue/job/metrics/"
TOKEN = "s3cr3t-s3cr3t-s3cr3t"

pytestmark = pytest.mark.django_db

LogIn = Callable[..., Client]


@pytest.fixture
def log_in() -> LogIn:
    """Logs a user in who has these permissions. Returns the client of the user."""

    def make(*codenames: str, is_staff: bool = True, is_superuser: bool = False) -> Client:
        user = User.objects.create_user("ann", password="secret", is_staff=is_staff, is_superuser=is_superuser)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_skipqueue", codename__in=codenames)
        )
        client = Client()
        client.force_login(user)
        return client

    return make


def with_token(token: str, scheme: str = "Bearer") -> dict[str, Any]:
    return {"headers": {"Authorization": f"{scheme} {token}"}}


def test_with_the_token_prometheus_reads_them(client: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    response = client.get(ADDRESS, **with_token(TOKEN))
    assert response.status_code == 200
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "no-store" in response["Cache-Control"]
    assert len(list(text_string_to_metric_families(response.content.decode()))) > 20
    assert client.head(ADDRESS, **with_token(TOKEN, "bearer")).status_code == 200
    assert client.post(ADDRESS, **with_token(TOKEN)).status_code == 405


@pytest.mark.parametrize(
    "given",
    [{}, with_token("wrong-wrong-wrong-wrong"), with_token(""), with_token(TOKEN, "Basic"), with_token("\xe9" * 20)],
)
def test_without_the_token_nobody_does(client: Client, settings: Any, given: Any) -> None:
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    response = client.get(ADDRESS, **given)
    assert response.status_code == 403
    assert b"skipqueue_" not in response.content
    assert TOKEN.encode() not in response.content


@pytest.mark.parametrize("token", ["", "None"])
def test_where_no_token_is_set_none_is_right(client: Client, token: str) -> None:
    assert client.get(ADDRESS, **with_token(token)).status_code == 403


@pytest.mark.parametrize("codename", ["view_job", "change_job"])
def test_staff_who_may_view_jobs_read_them(log_in: LogIn, codename: str) -> None:
    client = log_in(codename)
    assert b"skipqueue_workers" in client.get(ADDRESS).content
    assert b"skipqueue_workers" in client.get(IN_THE_ADMIN).content


@pytest.mark.parametrize(("codenames", "is_staff"), [((), True), (("view_job",), False), (("view_worker",), True)])
def test_who_may_not_view_jobs_does_not_get_the_page(log_in: LogIn, codenames: tuple[str, ...], is_staff: bool) -> None:
    client = log_in(*codenames, is_staff=is_staff)
    assert client.get(ADDRESS).status_code == 403
    assert client.get(IN_THE_ADMIN).status_code == (403 if is_staff else 302)


def test_in_the_admin_a_token_is_no_login(client: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    assert client.get(IN_THE_ADMIN, **with_token(TOKEN)).status_code == 302


def test_it_has_rules_of_its_own_where_every_page_needs_a_login(client: Client, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    assert client.get(ADDRESS, **with_token(TOKEN)).status_code == 200
    assert client.get(ADDRESS).status_code == 403


def test_a_project_without_sessions_uses_the_token(client: Client, settings: Any) -> None:
    settings.MIDDLEWARE = []
    settings.SKIPQUEUE = {"METRICS_TOKEN": TOKEN}
    assert client.get(ADDRESS).status_code == 403
    assert client.get(ADDRESS, **with_token(TOKEN)).status_code == 200

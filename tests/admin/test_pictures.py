"""The pictures of the admin in the documentation: `make pictures` takes them anew."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page

from ..app.rows import make_worker
from . import scene
from .pictures import DESKTOP

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def boss(transactional_db: None) -> User:
    """Somebody who may do everything."""
    return User.objects.create_superuser("ann")


def test_a_failed_job(boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]) -> None:
    job = scene.make_failed_job(make_worker(name="web-1/1"))
    page = open_admin(boss, f"django_skipqueue/job/{job.pk}/change/", viewport=DESKTOP)
    picture(page, "job-failed")


def test_a_running_job(boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]) -> None:
    job = scene.make_running_job(make_worker(name="web-1/1"))
    page = open_admin(boss, f"django_skipqueue/job/{job.pk}/change/", viewport=DESKTOP | {"height": 700})
    picture(page, "job-running")


def test_workers(boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]) -> None:
    busy, other, *_ = scene.make_workers()
    scene.make_jammed(busy)
    scene.make_running_job(other)
    picture(open_admin(boss, "django_skipqueue/worker/", viewport=DESKTOP | {"height": 560}), "workers")

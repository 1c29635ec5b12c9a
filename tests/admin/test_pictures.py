"""The pictures of the admin in the documentation: `make pictures` takes them anew."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_skipqueue.models import Queue
from django_skipqueue.tasks.registry import Registry

from ..app.failing import make_broken_release
from ..app.rows import make_job, make_worker
from . import scene
from .pictures import DESKTOP, PHONE

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


def test_failures(boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]) -> None:
    make_broken_release()
    page = open_admin(boss, "django_skipqueue/job/failures/", viewport=DESKTOP | {"height": 560})
    picture(page, "failures")


def test_queues(boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]) -> None:
    scene.make_jobs(scene.make_workers())
    Queue.pause("payments", for_=timedelta(minutes=45), by="ann", reason="psp.example.com cannot be reached")
    make_job(queue_name="payments", run_after=scene.at(700))
    picture(open_admin(boss, "django_skipqueue/queue/", viewport=DESKTOP | {"height": 560}), "queues")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_schedules(
    boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None], scheme: str
) -> None:
    scene.make_workers()
    scene.make_schedules()
    viewport = DESKTOP | {"height": 520}
    page = open_admin(boss, "django_skipqueue/schedule/", viewport=viewport, color_scheme=scheme)
    picture(page, f"schedules-{scheme}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_limits(boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None], scheme: str) -> None:
    scene.make_workers()
    scene.make_limits()
    viewport = DESKTOP | {"height": 720}
    picture(
        open_admin(boss, "django_skipqueue/job/limits/", viewport=viewport, color_scheme=scheme), f"limits-{scheme}"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_batch(
    boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None], scheme: str
) -> None:
    make_worker(name="web-1/1")
    address = f"django_skipqueue/jobbatch/{scene.make_batches().id}/change/"
    page = open_admin(boss, address, viewport=DESKTOP | {"height": 820}, color_scheme=scheme)
    expect(page.locator(".skipqueue-graph svg")).to_be_visible()
    picture(page, f"batch-{scheme}")


def test_the_doctor(boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]) -> None:
    *_, dead = scene.make_workers()
    make_job("running", task="payments.jobs.send_receipt", locked_by=dead.pk, locked_at=scene.at(710))
    make_job("completed", finished_at=scene.at(86_400 + 9_000))
    picture(open_admin(boss, "django_skipqueue/job/doctor/", viewport=DESKTOP | {"height": 760}), "doctor")


@pytest.fixture
def jobs(transactional_db: None, registry: Registry) -> None:
    """What a busy shop has in its queue."""
    scene.make_jobs(scene.make_workers())


@pytest.mark.usefixtures("jobs")
class TestTheList:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_on_a_laptop(
        self, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None], scheme: str
    ) -> None:
        page = open_admin(boss, "django_skipqueue/job/", viewport=DESKTOP, color_scheme=scheme)
        picture(page, f"jobs-{scheme}")

    def test_on_a_phone(
        self, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]
    ) -> None:
        picture(open_admin(boss, "django_skipqueue/job/?status=retrying", viewport=PHONE), "jobs-phone")

    def test_the_question_before_a_retry(
        self, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]
    ) -> None:
        page = open_admin(boss, "django_skipqueue/job/", viewport=DESKTOP | {"height": 560})
        page.locator("#action-toggle").check()
        page.locator("select[name=action]").select_option("run_now_selected")
        page.locator("button[name=index]").click()
        expect(page.locator("h1")).to_have_text("Run 8 of 20 jobs now?")
        picture(page, "jobs-question")


@pytest.mark.usefixtures("jobs")
class TestTheDashboard:
    @pytest.fixture(autouse=True)
    def _rollups(self) -> None:
        scene.make_rollups()
        scene.make_limits()
        scene.make_schedules()
        scene.make_batches()
        make_broken_release()
        for number in range(36):
            make_job(task="payments.jobs.send_receipt", queue_name="emails", run_after=scene.at(1_100 - 20 * number))

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_on_a_laptop(
        self, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None], scheme: str
    ) -> None:
        address = "django_skipqueue/job/dashboard/?range=6h"
        page = open_admin(boss, address, viewport=DESKTOP | {"height": 2780}, color_scheme=scheme)
        expect(page.locator("[data-age]")).to_contain_text("updated")
        picture(page, f"dashboard-{scheme}")

    def test_on_a_phone(
        self, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]
    ) -> None:
        picture(open_admin(boss, "django_skipqueue/job/dashboard/", viewport=PHONE), "dashboard-phone")

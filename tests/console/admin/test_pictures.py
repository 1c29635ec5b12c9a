"""The pictures of the admin in the documentation: `make pictures` takes them again.

Other tests also open these pages, so without SKIPQUEUE_PICTURES, the tests here only run with SKIPQUEUE_ALL_WIDTHS.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from django_skipqueue import job as register
from django_skipqueue.jobs.registry import Registry, registry
from django_skipqueue.models import Job, Queue
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ...app.rows import make_job, make_worker
from ...harness.partitions import drop_partitions
from ...harness.parts import modules_of_parts
from . import scene
from .browser import skip_by_default
from .pictures import DESKTOP, PHONE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
if "SKIPQUEUE_PICTURES" not in os.environ:
    pytestmark.append(skip_by_default)


@pytest.fixture
def boss(transactional_db: None) -> User:
    """Make a superuser."""
    return User.objects.create_superuser("ann")


def _task() -> None:
    """A task that is registered, but not run."""


def register_tasks() -> None:
    """Register the tasks of all jobs, so that no notice says that they are unknown."""
    for name in {*Job.objects.values_list("task", flat=True)} - {task.name for task in registry}:
        register(name=name)(_task)


@pytest.fixture(params=["light", "dark"])
def take(
    request: pytest.FixtureRequest, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]
) -> Callable[..., None]:
    """Return a function that opens a page in the light or the dark scheme, calls `then`, and takes a picture."""
    request.getfixturevalue("registry")

    def take_picture(
        name: str, address: str, *, height: int = 1000, then: Callable[[Page], None] | None = None
    ) -> None:
        if name not in ("job-failed", "job-running", "task"):  # these pages would show the signature of the task
            register_tasks()
        viewport = DESKTOP | {"height": height}
        page = open_admin(boss, f"django_skipqueue/{address}", viewport=viewport, color_scheme=request.param)
        if then:
            then(page)
        picture(page, f"{name}-{request.param}")

    return take_picture


def test_a_failed_job(take: Callable[..., None]) -> None:
    job = scene.make_failed_job(make_worker(name="web-1/1"))
    take("job-failed", f"job/{job.pk}/change/")


def test_a_running_job(take: Callable[..., None]) -> None:
    job = scene.make_running_job(make_worker(name="web-1/1"))
    take("job-running", f"job/{job.pk}/change/", height=700)


def test_workers(take: Callable[..., None]) -> None:
    jammed_worker, working_worker, *_ = scene.make_workers()
    scene.make_jammed(jammed_worker)
    scene.make_running_job(working_worker)
    take("workers", "worker/", height=560)


def test_the_archive(take: Callable[..., None], settings: Any) -> None:
    settings.SKIPQUEUE = {"ARCHIVE": None}
    jobs = scene.make_jobs(scene.make_workers())
    for number, job in enumerate(jobs):
        if job.status in ("completed", "failed", "discarded"):
            Job.objects.filter(pk=job.pk).update(finished_at=Now() - timedelta(days=40 + 3 * number))
    pruner = Pruner(Store.default())
    pruner.batch()
    try:
        take("archive", "archivedjob/", height=620)
    finally:
        drop_partitions()


def test_queues(take: Callable[..., None]) -> None:
    scene.make_jobs(scene.make_workers())
    Queue.pause("payments", for_=timedelta(minutes=45), by="ann", reason="psp.example.com cannot be reached")
    make_job(queue_name="payments", run_after=scene.seconds_ago(700))
    take("queues", "queue/", height=560)


def test_schedules(take: Callable[..., None]) -> None:
    scene.make_workers()
    scene.make_schedules()
    take("schedules", "schedule/", height=520)


def test_limits(take: Callable[..., None]) -> None:
    scene.make_workers()
    scene.make_limits()
    take("limits", "job/limits/", height=720)


def test_a_batch(take: Callable[..., None]) -> None:
    make_worker(name="web-1/1")
    address = f"jobbatch/{scene.make_batches().id}/change/"

    def wait(page: Page) -> None:
        expect(page.locator(".skipqueue-graph svg")).to_be_visible()

    take("batch", address, height=820, then=wait)


def test_the_doctor(take: Callable[..., None]) -> None:
    *_, dead_worker = scene.make_workers()
    make_job("running", task="payments.jobs.send_receipt", locked_by=dead_worker.pk, locked_at=scene.seconds_ago(710))
    make_job("completed", finished_at=scene.seconds_ago(86_400 + 9_000))
    take("doctor", "job/doctor/", height=760)


@pytest.fixture
def jobs(transactional_db: None, registry: Registry) -> None:
    """Make the jobs of a busy shop."""
    scene.make_jobs(scene.make_workers())


@pytest.mark.usefixtures("jobs")
class TestTheList:
    def test_on_a_laptop(self, take: Callable[..., None]) -> None:
        take("jobs", "job/")

    def test_on_a_phone(
        self, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]
    ) -> None:
        register_tasks()
        picture(open_admin(boss, "django_skipqueue/job/?status=retrying", viewport=PHONE), "jobs-phone")

    def test_the_question_before_a_retry(self, take: Callable[..., None]) -> None:
        def choose(page: Page) -> None:
            page.locator("#action-toggle").check()
            page.locator("select[name=action]").select_option("run_now_selected")
            page.locator("button[name=index]").click()
            expect(page.locator("h1")).to_have_text("Run 8 of 20 jobs now?")

        take("jobs-question", "job/", height=560, then=choose)


@pytest.mark.usefixtures("jobs")
class TestTheDashboard:
    @pytest.fixture(autouse=True)
    def _rollups(self) -> None:
        for part in modules_of_parts("admin_pages"):
            part.make_evening()
        scene.make_limits()
        scene.make_schedules()
        scene.make_batches()
        for number in range(36):
            make_job(
                task="payments.jobs.send_receipt", queue_name="emails", run_after=scene.seconds_ago(1_100 - 20 * number)
            )

    def test_on_a_laptop(self, take: Callable[..., None]) -> None:
        def wait(page: Page) -> None:
            expect(page.locator("[data-age]")).to_contain_text("updated")

        take("dashboard", "job/dashboard/?range=6h", height=2780, then=wait)

    def test_on_a_phone(
        self, boss: User, open_admin: Callable[..., Page], picture: Callable[[Page, str], None]
    ) -> None:
        register_tasks()
        picture(open_admin(boss, "django_skipqueue/job/dashboard/", viewport=PHONE), "dashboard-phone")

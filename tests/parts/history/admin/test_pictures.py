"""The pictures of the pages of failures."""

from collections.abc import Callable

from django_skipqueue.console.search import cause_query

from ....console.admin import scene
from ....console.admin.pages import CAUSE
from ....console.admin.test_pictures import boss, pytestmark, take
from ..admin_pages import make_broken_release, make_evening
from ..failing import record_failures

__all__ = ["boss", "pytestmark", "take"]


def test_picture_of_the_page_of_failures(take: Callable[..., None]) -> None:
    make_broken_release()
    take("failures", "job/failures/", height=720)


def test_picture_of_the_page_of_a_cause(take: Callable[..., None]) -> None:
    worker, *_ = scene.make_workers()
    make_broken_release()
    jobs = [scene.make_failed_job(worker, kwargs={"payment_id": 1187 + number}) for number in range(3)]
    for job in jobs:
        job.errors = [{**entry, "place": CAUSE.place, "line": 17} for entry in job.errors]
        job.save(update_fields=["errors"])
    record_failures(CAUSE, job_id=jobs[-1].pk, line=17)
    take("cause", f"job/failures/cause/?{cause_query(CAUSE)}", height=1100)


def test_picture_of_the_page_of_a_task(take: Callable[..., None]) -> None:
    scene.make_workers()
    make_evening(hours=30)
    take("task", f"job/task/?task={CAUSE.task}", height=1500)

"""Who waits for whom, as docs/explanation/deadlocks.md says: one has an open transaction, another calls."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.models import Job

from ..app import jobs
from ..app.rows import make_job
from ..app.sessions import Session

pytestmark = pytest.mark.django_db(transaction=True)


def task(**options: Any) -> Any:
    return jobs.add.using(unique_key="k", **options)


def enqueue() -> None:
    task().defer(1)


def replace() -> None:
    assert task(on_conflict="replace").defer(1).replaced


def change() -> None:
    assert Job.objects.get().reschedule(timedelta(hours=2))


def find() -> None:
    assert not task().defer(1).created


def find_until_started() -> None:
    assert not task(until="started").defer(1).created


def retry() -> None:
    assert Job.objects.filter(status="failed").earliest("pk").retry()


def retry_another() -> None:
    Job.objects.filter(status="failed").latest("pk").retry()


def skip() -> None:
    task().defer(2)


def raise_() -> None:
    task(on_conflict="raise").defer(2)


def skip_many() -> None:
    task().defer_many([(2,)])


def plain() -> None:
    jobs.add.defer(2)


def claim() -> None:
    Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")


def cancel() -> None:
    Job.objects.all().cancel()


WAITS = [
    ("nothing", enqueue, [skip, skip_many, raise_, replace, find_until_started]),
    ("waiting", replace, [skip, skip_many, replace, find_until_started]),
    ("waiting", change, [skip, replace]),
    ("started", find_until_started, [replace]),
    ("failed", retry, [skip, replace, retry_another]),
]

GOES_ON = [
    ("nothing", enqueue, [plain, claim, cancel]),
    ("waiting", replace, [plain, claim, cancel]),
    ("waiting", find, [find, replace, find_until_started, claim]),
    ("started", find_until_started, [find_until_started, find, claim, cancel, plain]),
    ("failed", retry, [plain, claim, cancel]),
]


def scene(name: str) -> None:
    if name == "waiting":
        task().defer(1)
    elif name == "started":
        task(until="started").defer(1)
    elif name == "failed":
        make_job("failed", unique_key="k")
        make_job("failed", unique_key="k")


def cases(table: list[Any]) -> list[Any]:
    return [
        pytest.param(at, one, other, id=f"{at}-{one.__name__}-{other.__name__}")
        for at, one, others in table
        for other in others
    ]


@pytest.mark.parametrize(("at", "one", "other"), cases(WAITS))
def test_it_waits_until_the_commit(
    at: str, one: Callable[[], None], other: Callable[[], None], session: Callable[[], Session]
) -> None:
    scene(at)
    first, second = session(), session()
    first.begin()
    first(one)
    called = second.start(other)
    second.wait_until_blocked()
    first.commit()
    called.exception(20)
    assert called.done()


@pytest.mark.parametrize(("at", "one", "other"), cases(GOES_ON))
def test_it_does_not_wait(
    at: str, one: Callable[[], None], other: Callable[[], None], session: Callable[[], Session]
) -> None:
    scene(at)
    first, second = session(), session()
    first.begin()
    first(one)
    second.start(other).result(20)
    first.commit()

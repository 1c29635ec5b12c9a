"""Jobs cannot run in pools of Celery that use greenlets."""

from types import SimpleNamespace
from typing import Any

import pytest

from django_skipqueue.contrib.celery.task import note_worker, run

CARRIERS = {"CARRIERS": {"celery": {"APP": "tests.app.celery_app.app", "QUEUES": {"carried": "pdf"}}}}


class Greenlets:
    __module__ = "celery.concurrency.gevent"


def make_celery_worker(pool: Any, *queues: str) -> Any:
    """Return a stand-in for Celery's worker before it makes its pool."""
    app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=dict.fromkeys(queues))))
    return SimpleNamespace(pool_cls=pool, app=app, time_limit=1, soft_time_limit=None)


@pytest.fixture(autouse=True)
def _forget_the_worker(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    for name in ("worker_of_celery", "main_process"):
        monkeypatch.setattr(f"django_skipqueue.contrib.celery.task.{name}", None)
    settings.SKIPQUEUE = CARRIERS


@pytest.mark.parametrize("pool", ["gevent", "eventlet", "celery.concurrency.gevent:TaskPool", Greenlets])
def test_a_celery_worker_whose_pool_has_greenlets_refuses_to_start(pool: Any) -> None:
    with pytest.raises(
        SystemExit, match=r"The queues 'pdf' contain jobs of django_skipqueue.*--pool prefork, threads or solo"
    ):
        note_worker(make_celery_worker(pool, "celery", "pdf"))


@pytest.mark.parametrize("pool", ["gevent", Greenlets])
def test_a_worker_with_greenlets_may_serve_queues_that_are_not_carried(pool: Any) -> None:
    note_worker(make_celery_worker(pool, "celery", "mail"))


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "processes"])
def test_pools_without_greenlets_serve_carried_queues(pool: str) -> None:
    note_worker(make_celery_worker(pool, "pdf"))
    assert run.acks_late

"""Carriers for tests: the setting, and rows as relays write them."""

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from django_skipqueue.contrib.celery.carrier import carrier_id
from django_skipqueue.contrib.celery.models import WorkerOfCelery
from django_skipqueue.models import Job, Worker

from .rows import make_job, make_worker

CARRIERS = {"CARRIERS": {"celery": {"APP": "tests.app.celery_app.app", "QUEUES": {"pdf": "pdf"}, "WAIT": 600}}}
"""For `SKIPQUEUE`: the queue `pdf` is carried by `celery`."""

CELERY = carrier_id("celery")

NOW = timedelta(0)


def make_carrier(**fields: Any) -> Worker:
    """The row of the carrier `celery`, which a relay has just written, with its connection open."""
    given = {"id": CELERY, "name": "celery", "hostname": "", "pid": 0, "queues": ["pdf"], "concurrency": 2_000}
    return _make(**{**given, "is_external": True, "reached_at": NOW, **fields})


def make_relay(**fields: Any) -> Worker:
    """The row of a relay of `celery`."""
    return _make(**{"name": "relay/1", "queues": ["pdf"], "concurrency": 0, "relay_of": "celery", **fields})


def _make(**fields: Any) -> Worker:
    """A worker's row, and the one beside it."""
    beside = {name: fields.pop(name) for name in ("relay_of", "reached_at", "refused") if name in fields}
    worker = make_worker(**fields)
    beside = {name: Now() + value if isinstance(value, timedelta) else value for name, value in beside.items()}
    WorkerOfCelery.objects.using(worker._state.db).create(worker_id=worker.pk, **beside)
    return worker


def make_carried(**fields: Any) -> Job:
    """A job that `celery` has."""
    return make_job("running", **{"queue_name": "pdf", "locked_by": CELERY, **fields})

"""Carriers for tests: the setting, and rows as relays write them."""

from datetime import timedelta
from typing import Any

from django_skipqueue.contrib.celery.carrier import carrier_id
from django_skipqueue.models import Job, Worker

from .rows import make_job, make_worker

CARRIERS = {"CARRIERS": {"celery": {"APP": "tests.app.celery_app.app", "QUEUES": {"pdf": "pdf"}, "WAIT": 600}}}
"""For `SKIPQUEUE`: the queue `pdf` is carried by `celery`."""

CELERY = carrier_id("celery")

NOW = timedelta(0)


def make_carrier(**fields: Any) -> Worker:
    """The row of the carrier `celery`, which a relay has just written, with its connection open."""
    given = {"id": CELERY, "name": "celery", "hostname": "", "pid": 0, "queues": ["pdf"], "concurrency": 2_000}
    return make_worker(**{**given, "is_carrier": True, "reached_at": NOW, **fields})


def make_relay(**fields: Any) -> Worker:
    """The row of a relay of `celery`."""
    return make_worker(**{"name": "relay/1", "queues": ["pdf"], "relay_of": "celery", **fields})


def make_carried(**fields: Any) -> Job:
    """A job that `celery` has."""
    return make_job("running", **{"queue_name": "pdf", "locked_by": CELERY, **fields})

"""A carrier for tests: its setting, and rows of workers and jobs as relays write them.

A carrier, here Celery, runs jobs for the queue. A relay is a process that hands jobs over to Celery.
"""

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from django_skipqueue.contrib.celery.carrier import carrier_id
from django_skipqueue.contrib.celery.models import WorkerOfCelery
from django_skipqueue.models import Job, Worker

from .rows import make_job, make_worker

CARRIERS = {"CARRIERS": {"celery": {"APP": "tests.app.celery_app.app", "QUEUES": {"pdf": "pdf"}, "WAIT": 600}}}
"""The setting SKIPQUEUE: the carrier `celery` runs the jobs of the queue `pdf`."""

CELERY = carrier_id("celery")

NOW = timedelta(0)


def make_carrier(**fields: Any) -> Worker:
    """Make the row of the carrier `celery`, as a relay writes it while it is connected to the broker."""
    defaults = {"id": CELERY, "name": "celery", "hostname": "", "pid": 0, "queues": ["pdf"], "concurrency": 2_000}
    return _make(**{**defaults, "is_external": True, "reached_at": NOW, **fields})


def make_relay(**fields: Any) -> Worker:
    """Make the row of a relay of the carrier `celery`."""
    return _make(**{"name": "relay/1", "queues": ["pdf"], "concurrency": 0, "relay_of": "celery", **fields})


def _make(**fields: Any) -> Worker:
    """Make the row of a worker, and its row in the table of Celery's workers."""
    celery_fields = {name: fields.pop(name) for name in ("relay_of", "reached_at", "refused") if name in fields}
    worker = make_worker(**fields)
    celery_fields = {
        name: Now() + value if isinstance(value, timedelta) else value for name, value in celery_fields.items()
    }
    WorkerOfCelery.objects.using(worker._state.db).create(worker_id=worker.pk, **celery_fields)
    return worker


def make_carried(**fields: Any) -> Job:
    """Make a job that was handed over to the carrier `celery`."""
    return make_job("running", **{"queue_name": "pdf", "locked_by": CELERY, **fields})

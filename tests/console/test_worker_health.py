"""Which workers are alive, and which queues they serve."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.queues_and_workers import Workforce

from ..app.rows import make_worker

pytestmark = pytest.mark.django_db

CARRIERS = {"CARRIERS": {"celery": {"APP": "tests.app.celery_app.app", "QUEUES": {"pdf": "pdf"}}}}


def test_a_worker_of_all_queues_does_not_serve_queues_of_carriers(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS
    worker_of_all_queues, relay = make_worker(queues=[]), make_worker(queues=["pdf"])
    workforce = Workforce.now()
    assert [worker.id for worker in workforce.serving("mail")] == [worker_of_all_queues.pk]
    assert [worker.id for worker in workforce.serving("pdf")] == [relay.pk]


def test_a_carrier_counts_neither_as_a_live_nor_as_a_dead_worker() -> None:
    make_worker(is_external=True)
    make_worker(heartbeat=timedelta(days=-1), is_external=True)
    worker = make_worker()
    assert [counted_worker.id for counted_worker in Workforce.now().workers] == [worker.pk]

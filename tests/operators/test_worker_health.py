"""Which workers are alive, and which queues they serve."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.queues_and_workers import Workforce

from ..app.rows import make_worker

pytestmark = pytest.mark.django_db

CARRIERS = {"CARRIERS": {"celery": {"APP": "tests.app.celery_app.app", "QUEUES": {"pdf": "pdf"}}}}


def test_a_worker_without_queues_serves_all_but_the_carried_ones(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS
    of_all, relay = make_worker(queues=[]), make_worker(queues=["pdf"])
    workforce = Workforce.now()
    assert [each.id for each in workforce.serving("mail")] == [of_all.pk]
    assert [each.id for each in workforce.serving("pdf")] == [relay.pk]


def test_a_carrier_is_no_worker_neither_a_live_one_nor_a_dead_one() -> None:
    make_worker(is_external=True)
    make_worker(heartbeat=timedelta(days=-1), is_external=True)
    worker = make_worker()
    assert [each.id for each in Workforce.now().workers] == [worker.pk]

"""A relay hands over only jobs that the message broker has confirmed, and takes back jobs although a row is locked."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from django_skipqueue.contrib.celery.rows import TakeBack
from django_skipqueue.contrib.celery.window import CarriedJobs
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ..app.rows import lease_of, make_job, state
from ..app.sessions import Session
from ..app.waiting import wait_until, within
from ..contrib.celery.relay.fake_carrier import FakeCarrier
from ..contrib.celery.relay.test_relay import (  # noqa: F401 (fixtures)
    RELAY,
    StartRelay,
    carried_noop,
    carrier,
    carrier_settings,
    holder_by_job,
    start_relay,
)

pytestmark = pytest.mark.django_db(transaction=True)


def has_published(carrier: FakeCarrier, count: int) -> bool:  # noqa: F811
    return len(carrier.published) == count


def test_a_job_that_is_not_confirmed_is_not_handed_over(carrier: FakeCarrier, start_relay: StartRelay) -> None:  # noqa: F811
    carrier.confirms_at_once = False
    start_relay()
    for count in (1, 2, 3):  # the relay would have handed the first one over before it publishes the last one
        carried_noop.defer()
        wait_until(partial(has_published, carrier, count))
    assert set(holder_by_job().values()) == {RELAY}


def test_a_locked_row_keeps_no_other_job_from_being_taken_back(session: Callable[[], Session]) -> None:
    locked_job, free_job = make_job("running"), make_job("running")
    carried_jobs = CarriedJobs()
    carried_jobs.release(map(lease_of, (locked_job, free_job)))
    closed_connection: Any = SimpleNamespace(is_open=False, acknowledge=lambda _: None)
    locker = session()
    locker.begin()
    locker(lambda: list(Job.objects.select_for_update().filter(pk=locked_job.pk)))
    with within(10):
        TakeBack(Store("default"), carried_jobs, closed_connection, who="r").run(0.0)
    locker.rollback()
    assert (state(free_job)["status"], list(carried_jobs.to_release)) == ("queued", [lease_of(locked_job)])

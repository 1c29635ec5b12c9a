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


def has_published(carrier: FakeCarrier, number: int) -> bool:  # noqa: F811
    return len(carrier.published) == number


def test_a_job_that_is_not_confirmed_is_not_handed_over(carrier: FakeCarrier, start_relay: StartRelay) -> None:  # noqa: F811
    carrier.confirms_at_once = False
    start_relay()
    for number in (1, 2, 3):  # the relay would have handed the first one over before it publishes the last one
        carried_noop.defer()
        wait_until(partial(has_published, carrier, number))
    assert set(holder_by_job().values()) == {RELAY}


def test_a_locked_row_keeps_no_other_job_from_being_taken_back(session: Callable[[], Session]) -> None:
    locked, free = make_job("running"), make_job("running")
    jobs = CarriedJobs()
    jobs.release(map(lease_of, (locked, free)))
    disconnected: Any = SimpleNamespace(is_open=False, acknowledge=lambda _: None)
    locker = session()
    locker.begin()
    locker(lambda: list(Job.objects.select_for_update().filter(pk=locked.pk)))
    with within(10):
        TakeBack(Store("default"), jobs, disconnected, who="r").run(0.0)
    locker.rollback()
    assert (state(free)["status"], list(jobs.to_release)) == ("queued", [lease_of(locked)])

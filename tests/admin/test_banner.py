"""`banner`: it says so when jobs wait for a worker that nobody has started."""

from datetime import timedelta

import pytest
from django.test import Client

from django_skipqueue.admin.banner import Banner

from ..app.rows import make_job, make_worker
from .conftest import LIST

pytestmark = pytest.mark.django_db

LONG_AGO = timedelta(minutes=-5)


def test_it_is_not_there_while_nothing_waits() -> None:
    for status in ("scheduled", "running", "completed", "failed", "discarded"):
        make_job(status)
    assert Banner.now() is None


def test_jobs_that_wait_without_a_live_worker_bring_it_up() -> None:
    make_job()
    make_worker(heartbeat=LONG_AGO)
    banner = Banner.now()
    assert banner == Banner(())
    assert banner.command == "python manage.py runworker"


def test_so_does_a_scheduled_job_that_is_overdue() -> None:
    make_job("scheduled", run_after=LONG_AGO)
    assert Banner.now() == Banner(())
    make_worker()
    assert Banner.now() is None


def test_a_live_worker_for_all_queues_is_enough() -> None:
    make_job(queue_name="mail")
    make_worker(queues=["default"])
    make_worker(queues=[])
    assert Banner.now() is None


def test_a_queue_that_no_live_worker_serves_is_named() -> None:
    make_job(queue_name="default")
    make_job(queue_name="mail")
    make_job(queue_name="it's")
    make_worker(queues=["default"])
    make_worker(queues=["mail"], heartbeat=LONG_AGO)
    banner = Banner.now()
    assert banner == Banner(("it's", "mail"))
    assert banner.command == """python manage.py runworker --queues 'it'"'"'s,mail'"""


def test_the_list_shows_it(operator: Client) -> None:
    assert "skipqueue-banner" not in operator.get(LIST).text
    make_job()
    assert "<code>python manage.py runworker</code>" in operator.get(LIST).text

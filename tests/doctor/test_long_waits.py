"""Jobs that have waited for long: of which queue, how many, since when, and what for."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.rules import jobs_and_workers, sql
from django_skipqueue.models import Job, Queue

from ..app.rows import make_job, make_worker
from .conftest import STORE, Found

LONG_AGO = timedelta(minutes=-6)

pytestmark = pytest.mark.core


def test_the_slots_are_taken_and_the_task_that_takes_most_is_named(found: Found) -> None:
    worker = make_worker(concurrency=2)
    for task in ("shop.jobs.push", "shop.jobs.push", "shop.jobs.send"):
        make_job("running", task=task, locked_by=worker.id)
    first = make_job(queue_name="mail", run_after=LONG_AGO, priority=-5)
    make_job(queue_name="mail")
    (finding,) = found("long-wait")
    assert finding.severity == "critical"
    assert finding.title.startswith("Jobs of queue mail wait since ")
    assert finding.title.endswith(": the 2 slots are taken, mostly by shop.jobs.push")
    assert finding.found == f"The oldest job is {first.pk}. It has been due for 6 min. Slots of the workers: 2."
    assert finding.command == "python manage.py runworker --queues mail"
    assert (finding.subject, finding.since) == ("mail", first.run_after)
    assert finding.link is not None
    assert finding.link.query == {"status": "queued", "queue": "mail"}


def test_postgresql_is_slow(found: Found, monkeypatch: pytest.MonkeyPatch, connect: Any) -> None:
    make_worker()
    make_job(run_after=LONG_AGO)
    (finding,) = found("long-wait")
    assert finding.title.endswith(", although slots are free")
    monkeypatch.setattr(sql, "SLOW_STATEMENTS", sql.SLOW_STATEMENTS.replace("interval '1 second'", "interval '0'"))
    worker = connect(autocommit=True, application_name="skipqueue:0123456789ab")
    worker.pgconn.send_query(b"SELECT pg_sleep(30), 'skipqueue_job'")
    (finding,) = found("long-wait")
    assert finding.title.endswith(": PostgreSQL is slow, 1 statements of workers take more than a second")
    worker.cancel()
    worker.close()


@pytest.mark.parametrize(
    "arrange",
    [
        lambda: Queue.pause("default"),
        lambda: Job.objects.update(run_after=Job.objects.get().run_after + timedelta(minutes=2)),
    ],
    ids=["paused", "not long"],
)
def test_what_waits_on_purpose_or_elsewhere_is_not_told(found: Found, arrange: Callable[[], object]) -> None:
    make_worker()
    make_job(run_after=LONG_AGO)
    assert len(found("long-wait")) == 1
    arrange()
    assert found("long-wait") == []


def test_without_a_worker_another_rule_tells(found: Found) -> None:
    make_worker(queues=["mail"])
    make_job(run_after=LONG_AGO)
    assert found("long-wait") == []
    assert len(found("queue-without-worker")) == 1


def test_a_job_that_is_claimed_at_once_has_waited_for_another_job(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_worker()
    make_job(run_after=LONG_AGO)
    monkeypatch.setattr(time, "sleep", lambda _: Job.objects.all().delete())
    assert list(jobs_and_workers.long_waits(STORE)) == []


def test_the_threshold_is_a_setting_of_each_queue(found: Found, settings: Any) -> None:
    make_worker()
    make_job(run_after=LONG_AGO, queue_name="mail")
    make_job(run_after=LONG_AGO, queue_name="nightly")
    for rules, expected in (
        ({"long-wait": {"nightly": None}}, ["mail"]),
        ({"long-wait": {"*": 3600, "nightly": 60}}, ["nightly"]),
        ({"long-wait": {"*": None}}, []),
    ):
        settings.SKIPQUEUE = {"RULES": rules}
        assert [each.subject for each in found("long-wait")] == expected


def test_what_is_usual_at_this_hour_is_not_told(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    make_worker()
    make_job(run_after=LONG_AGO)
    for usual, expected in ((200.0, 1), (250.0, 0)):
        monkeypatch.setattr(jobs_and_workers, "usual_waits", lambda store, names, usual=usual: {"default": usual})
        assert len(found("long-wait")) == expected

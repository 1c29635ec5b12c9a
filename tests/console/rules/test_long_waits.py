"""`long-wait`: queues whose jobs have waited for long, and what the jobs wait for."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue.console.rules import jobs_and_workers
from django_skipqueue.models import Job, Queue, Worker

from ...app.rows import make_job, make_worker
from ...app.waiting import wait_until
from .conftest import FindingsOf

LONG_AGO = timedelta(minutes=-6)

pytestmark = pytest.mark.core


def is_asleep(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", [pid])
        return cursor.fetchone() is not None


def write_heartbeats() -> None:
    """Write a new heartbeat of each worker, as if each worker had had time to claim the jobs."""
    Worker.objects.update(heartbeat_at=Now())


def test_a_long_wait_for_slots_names_the_task_that_takes_most_of_them(findings_of: FindingsOf) -> None:
    worker = make_worker(concurrency=2)
    for task in ("shop.jobs.push", "shop.jobs.push", "shop.jobs.send"):
        make_job("running", task=task, locked_by=worker.id)
    oldest_job = make_job(queue_name="mail", run_after=LONG_AGO, priority=-5)
    make_job(queue_name="mail")
    write_heartbeats()
    (finding,) = findings_of("long-wait")
    assert finding.severity == "critical"
    assert finding.title.startswith("Jobs of queue mail have waited since ")
    assert re.search(
        r": the 2 slots are taken, for the longest time by shop\.jobs\.push: its 2 running jobs have run for up to ",
        finding.title,
    )
    assert finding.found == f"The oldest job is {oldest_job.pk}. It has been due for 6 min. Slots of the workers: 2."
    assert finding.command == "python manage.py runworker --queues mail"
    assert (finding.subject, finding.since) == ("mail", oldest_job.run_after)
    assert finding.link is not None
    assert finding.link.query == {"status": "queued", "queue": "mail"}


def test_a_long_wait_is_explained_by_slow_statements(
    findings_of: FindingsOf, monkeypatch: pytest.MonkeyPatch, connect: Any
) -> None:
    make_job(run_after=LONG_AGO)
    make_worker()
    (finding,) = findings_of("long-wait")
    assert finding.title.endswith(", although slots are free")
    any_statement_is_slow = jobs_and_workers.SLOW_STATEMENTS.replace("interval '1 second'", "interval '0'")
    monkeypatch.setattr(jobs_and_workers, "SLOW_STATEMENTS", any_statement_is_slow)
    worker = connect(autocommit=True, application_name="skipqueue:0123456789ab")
    worker.pgconn.send_query(b"SELECT pg_sleep(30), 'skipqueue_job'")
    wait_until(lambda: is_asleep(worker.info.backend_pid), "PostgreSQL has begun the statement")
    (finding,) = findings_of("long-wait")
    assert finding.title.endswith(": PostgreSQL is slow, 1 statements of workers take more than a second")
    worker.cancel()
    worker.close()


def test_a_job_that_is_claimed_within_the_check_is_no_long_wait(
    findings_of: FindingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's transaction began six minutes ago and has only now committed, so the job has hardly waited."""
    make_job(run_after=LONG_AGO)
    make_worker()
    monkeypatch.setattr("time.sleep", lambda _: Job.objects.update(status="running", started_at=Now(), locked_at=Now()))
    assert findings_of("long-wait") == []


@pytest.mark.parametrize(
    "arrange",
    [
        lambda: Queue.pause("default"),
        lambda: Job.objects.update(run_after=Job.objects.get().run_after + timedelta(minutes=2)),
    ],
    ids=["paused", "not long"],
)
def test_a_paused_queue_and_a_short_wait_are_no_long_waits(
    findings_of: FindingsOf, arrange: Callable[[], object]
) -> None:
    make_job(run_after=LONG_AGO)
    make_worker()
    assert len(findings_of("long-wait")) == 1
    arrange()
    write_heartbeats()
    assert findings_of("long-wait") == []


def test_a_queue_without_a_worker_is_no_long_wait_but_a_finding_of_another_rule(
    findings_of: FindingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(run_after=LONG_AGO)
    make_worker(queues=["mail"])
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("there is nothing to look at a second time"))
    assert findings_of("long-wait") == []
    assert len(findings_of("queue-without-worker")) == 1


def test_a_long_wait_is_found_once_every_live_worker_has_written_a_new_heartbeat(findings_of: FindingsOf) -> None:
    """The due time does not tell how long a job has waited: a gate, a release or a recovery may have just queued it."""
    make_worker(name="dead", heartbeat=timedelta(hours=-1))
    for name in ("w1", "w2"):
        make_worker(name=name)
    make_job(run_after=LONG_AGO)
    assert findings_of("long-wait") == []
    Worker.objects.filter(name="w1").update(heartbeat_at=Now())
    assert findings_of("long-wait") == []
    Worker.objects.filter(name="w2").update(heartbeat_at=Now())
    assert len(findings_of("long-wait")) == 1


def test_a_queue_reported_by_no_free_slot_is_not_reported_as_a_long_wait(
    findings_of: FindingsOf, settings: Any
) -> None:
    """`no-free-slot` names the task, so `long-wait` does not name the queue again."""
    worker = make_worker(concurrency=1, queues=["mail"])
    make_worker(name="w2", queues=["default"])
    make_job("running", task="shop.hang", locked_by=worker.id, locked_at=LONG_AGO)
    for queue_name in ("default", "mail"):
        make_job(queue_name=queue_name, run_after=LONG_AGO)
    write_heartbeats()
    assert [finding.subject for finding in findings_of("no-free-slot")] == ["mail"]
    assert [finding.subject for finding in findings_of("long-wait")] == ["default"]
    settings.SKIPQUEUE = {"RULES": {"no-free-slot": None}}
    assert [finding.subject for finding in findings_of("long-wait")] == ["default", "mail"]


def test_the_threshold_of_long_waits_can_be_set_for_each_queue(findings_of: FindingsOf, settings: Any) -> None:
    make_job(run_after=LONG_AGO, queue_name="mail")
    make_job(run_after=LONG_AGO, queue_name="nightly")
    make_worker()
    for rules, expected in (
        ({"long-wait": {"nightly": None}}, ["mail"]),
        ({"long-wait": {"*": 3600, "nightly": 60}}, ["nightly"]),
        ({"long-wait": {"*": None}}, []),
    ):
        settings.SKIPQUEUE = {"RULES": rules}
        assert [finding.subject for finding in findings_of("long-wait")] == expected


def test_a_wait_that_is_usual_at_this_hour_is_no_long_wait(
    findings_of: FindingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(run_after=LONG_AGO)
    make_worker()
    for usual_seconds, expected in ((200.0, 1), (250.0, 0)):
        monkeypatch.setattr(
            jobs_and_workers, "usual_waits", lambda store, names, usual=usual_seconds: {"default": usual}
        )
        assert len(findings_of("long-wait")) == expected

"""The services: what each does when it is due, and when it is due again."""

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError
from django.test import override_settings

from django_skipqueue.models import Job
from django_skipqueue.parts.alerts.models import Incident
from django_skipqueue.queue.notify import QUEUES_PAYLOAD, SCHEDULED_PAYLOAD, WORKERS_PAYLOAD
from django_skipqueue.queue.parameters import BATCH_ROWS
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor import services
from django_skipqueue.supervisor.liveness import Heartbeat
from django_skipqueue.supervisor.services import (
    DUE_CHECK,
    LEAST_DUE_CHECK,
    PRUNE_JOBS_SECONDS,
    UNSCHEDULED_CHECK,
    Admit,
    PruneJobs,
)
from django_skipqueue.values.part import installed_parts
from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.loop import LONGEST_RETRY_DELAY, Periodic

from ..app import jobs
from ..app.rows import FINISHED, make_job, make_worker
from ..app.sessions import Session
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, statuses, wait_for_statuses, workers

pytestmark = pytest.mark.django_db(transaction=True)


def run(service: Periodic) -> float:
    """Run the service once. Returns the seconds until it is due again."""
    now = time.monotonic()
    with mock.patch("time.monotonic", return_value=now):  # so that a busy machine changes no time
        service.run(now)
        service.succeeded()
    return max(0.0, service.due_at - now)


class Noop(Periodic):
    name = "test"

    def run(self, now: float) -> None:
        self.run_again_in(3600)


def test_a_service_is_due_at_first_and_then_after_its_interval() -> None:
    service = Noop()
    assert service.due_at <= time.monotonic()
    assert run(service) == about(3600)


def about(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.5)


def test_a_refused_service_waits_longer_and_longer_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    service = Noop()
    delays = []
    for _ in range(12):
        with mock.patch("time.monotonic", return_value=0.0):
            service.refused(OperationalError("there is no such table"))
        delays.append(service.due_at)
    assert 0.9 < delays[0] <= 2
    assert all(later > 0.99 * earlier for earlier, later in itertools.pairwise(delays[:5]))
    assert all(LONGEST_RETRY_DELAY / 2 - 1 < delay <= LONGEST_RETRY_DELAY for delay in delays[7:])
    assert [record.event for record in caplog.records] == ["service_failed"] * 12  # type: ignore[attr-defined]
    run(service)
    run(service)
    assert [record.event for record in caplog.records[12:]] == ["service_back"]  # type: ignore[attr-defined]


# The heartbeat


def test_a_request_makes_the_heartbeat_due_at_once() -> None:
    worker = make_worker()
    row = {"id": worker.pk, "name": "w", "hostname": "h", "pid": 1, "queues": [], "concurrency": 4}
    requests: list[Any] = []
    heartbeat = Heartbeat(
        Store("default"), workers=lambda: [row], interval=600, written=lambda _: None, requested=requests.append
    )
    heartbeat.due_at = NEVER
    heartbeat.notified([WORKERS_PAYLOAD])
    assert heartbeat.due_at == NEVER, "there are no workers yet"
    assert run(heartbeat) == about(600)
    heartbeat.notified([SCHEDULED_PAYLOAD, QUEUES_PAYLOAD])
    assert heartbeat.due_at - time.monotonic() == about(600)
    assert requests == []
    worker.restart()
    heartbeat.notified([WORKERS_PAYLOAD])
    assert heartbeat.due_at <= time.monotonic()
    run(heartbeat)
    assert requests == [{worker.pk: "restart"}]
    heartbeat.refused(OperationalError("no"))
    heartbeat.notified([WORKERS_PAYLOAD])
    assert heartbeat.due_at > time.monotonic(), "an error delays it"


# Admit


def test_with_nothing_scheduled_it_looks_again_soon() -> None:
    assert run(Admit(Store("default"))) == about(UNSCHEDULED_CHECK)


def test_it_hurries_when_a_job_is_scheduled_but_not_without_a_pause() -> None:
    service = Admit(Store("default"))
    run(service)
    assert service.due_at > time.monotonic() + LEAST_DUE_CHECK
    service.notified({""})
    assert service.due_at <= time.monotonic() + LEAST_DUE_CHECK
    service.refused(OperationalError("refused"))
    service.notified({""})
    assert service.due_at > time.monotonic() + LEAST_DUE_CHECK, "a failure has its own time"


def test_what_is_due_is_admitted_and_there_may_be_more() -> None:
    make_job("scheduled", run_after=timedelta(seconds=-1))
    assert run(Admit(Store("default"))) == 0
    assert statuses() == {"queued": 1}


@pytest.mark.parametrize(("seconds", "most"), [(50, 50), (3600, 100)])
def test_it_wakes_for_the_next_one_that_is_due(seconds: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "DUE_CHECK", 100.0)
    make_job("scheduled", run_after=timedelta(seconds=seconds))
    assert 0 < round(run(Admit(Store("default"))), 6) <= most
    assert statuses() == {"scheduled": 1}


def test_it_does_not_spin_on_a_due_job_that_somebody_has_locked(session: Any) -> None:
    make_job("scheduled", run_after=timedelta(seconds=-1))
    other: Session = session()
    other.begin()
    other(lambda: list(Job.objects.select_for_update()))
    assert run(Admit(Store("default"))) == about(DUE_CHECK)
    other.rollback()


# PruneJobs


def test_each_status_is_kept_as_long_as_the_settings_say() -> None:
    for status in FINISHED:
        for days in (0.5, 2, 10, 40):
            make_job(status, finished_at=timedelta(days=-days))
    make_job("queued")
    assert run(PruneJobs(Store("default"))) == about(PRUNE_JOBS_SECONDS)
    assert statuses() == {"completed": 1, "discarded": 2, "failed": 3, "queued": 1}


@pytest.mark.parametrize(
    ("retention", "left", "interval"),
    [
        ({"completed": 0}, {"failed": 2}, 1.0),
        ({"completed": None}, {"completed": 2, "failed": 2}, PRUNE_JOBS_SECONDS),
        ({"completed": None, "failed": timedelta(days=50), "discarded": None}, {"completed": 2, "failed": 2}, 30),
        ({"completed": 60.0, "failed": 0.5}, {"completed": 1}, 1.0),
    ],
)
def test_retention_may_be_nothing_for_ever_or_a_time(
    retention: dict[str, Any], left: dict[str, int], interval: float
) -> None:
    grace = max(part.prune_grace for part in installed_parts())
    for status in ("completed", "failed"):
        make_job(status, finished_at=timedelta(seconds=-grace - 1))
        make_job(status, finished_at=timedelta(days=-20))
    with override_settings(SKIPQUEUE={"RETENTION": retention}):
        assert run(PruneJobs(Store("default"))) == about(interval)
    assert statuses() == left


def test_a_full_batch_says_that_there_may_be_more() -> None:
    Job.objects.bulk_create(
        Job(queue_name="q", task="t", status="completed", finished_at="2020-01-01T00:00Z")
        for _ in range(BATCH_ROWS + 1)
    )
    service = PruneJobs(Store("default"))
    assert run(service) == 0
    assert run(service) == about(PRUNE_JOBS_SECONDS)
    assert not Job.objects.exists()


# Jobs that are due before the next check

SELDOM = """
    from django_skipqueue import Retry, job
    from django_skipqueue.parts.alerts import watch
    from django_skipqueue.supervisor import services

    services.DUE_CHECK = services.UNSCHEDULED_CHECK = 3600.0
    watch.FIRST_ALERT_CHECK = 0.0


    @job(takes_context=True)
    def come_back(context):
        if context.attempt == 1:
            raise Retry(after=0.2)
"""


@pytest.fixture
def seldom(runworker: Callable[..., ManagePy]) -> ManagePy:
    """A worker whose supervisor checks for scheduled jobs once an hour, and has just checked."""
    process = runworker("--poll-interval", "3600", jobs=SELDOM)
    workers()
    wait_until(is_listened_to)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    return process


def is_listened_to() -> bool:
    """Whether a supervisor has listened and then checked for scheduled jobs: its last service has run."""
    return Incident.objects.filter(rule="").exists()


@pytest.mark.parametrize(
    "defer",
    [
        lambda: jobs.noop.using(run_after=timedelta(seconds=0.2)).defer(),
        lambda: jobs.noop.using(run_after=timedelta(seconds=0.2)).defer_many([()]),
        lambda: jobs.noop.using(run_after=timedelta(seconds=0.2), unique_key="k").defer(),
        lambda: Job.objects.enqueue("extra.jobs.come_back"),
    ],
    ids=["defer", "defer_many", "with a key", "a retry"],
)
def test_who_schedules_a_job_that_is_due_soon_wakes_the_supervisor(seldom: ManagePy, defer: Callable[[], Any]) -> None:
    assert seldom.process.poll() is None
    for number in (2, 3):  # each job is the only scheduled job
        defer()
        wait_for_statuses(completed=number)


# A service whose statement the database refuses


def test_a_service_that_the_database_refuses_fails_alone(
    runworker: Callable[..., ManagePy], refuse: Callable[[str], Callable[[], None]]
) -> None:
    allow = refuse("OLD.status = 'scheduled'")
    make_job("scheduled", run_after=timedelta(seconds=-1))
    make_job("completed", finished_at=timedelta(days=-100))
    process = runworker("--poll-interval", "3600")
    process.wait_for("service failed service=admit", times=2)
    wait_for_statuses(scheduled=1)
    assert "database lost" not in process.log
    allow()
    wait_for_statuses(completed=1)
    process.wait_for("service back service=admit")

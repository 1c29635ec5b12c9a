"""The services of a supervisor: their effects when they are due, and the times of their next runs."""

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


def run_once(service: Periodic) -> float:
    """Run the service once. Return the seconds until its next run is due."""
    now = time.monotonic()
    with mock.patch("time.monotonic", return_value=now):  # so that a busy machine changes no time
        service.run(now)
        service.succeeded()
    return max(0.0, service.due_at - now)


class HourlyService(Periodic):
    name = "test"

    def run(self, now: float) -> None:
        self.run_again_in(3600)


def test_a_service_is_due_at_first_and_then_after_its_interval() -> None:
    service = HourlyService()
    assert service.due_at <= time.monotonic()
    assert run_once(service) == roughly(3600)


def roughly(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.5)


def test_a_refused_service_waits_longer_after_each_refusal_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    service = HourlyService()
    delays = []
    for _ in range(12):
        with mock.patch("time.monotonic", return_value=0.0):
            service.refused(OperationalError("there is no such table"))
        delays.append(service.due_at)
    assert 0.9 < delays[0] <= 2
    assert all(later > 0.99 * earlier for earlier, later in itertools.pairwise(delays[:5]))
    assert all(LONGEST_RETRY_DELAY / 2 - 1 < delay <= LONGEST_RETRY_DELAY for delay in delays[7:])  # they grow no more
    assert [record.event for record in caplog.records] == ["service_failed"] * 12  # type: ignore[attr-defined]
    run_once(service)
    run_once(service)
    assert [record.event for record in caplog.records[12:]] == ["service_back"]  # type: ignore[attr-defined]


# The service `Heartbeat`


def test_a_request_makes_the_heartbeat_due_at_once() -> None:
    worker = make_worker()
    row = {"id": worker.pk, "name": "w", "hostname": "h", "pid": 1, "queues": [], "concurrency": 4}
    requests: list[Any] = []
    heartbeat = Heartbeat(
        Store("default"), workers=lambda: [row], interval=600, on_written=lambda _: None, on_requests=requests.append
    )
    heartbeat.due_at = NEVER
    heartbeat.notified([WORKERS_PAYLOAD])
    assert heartbeat.due_at == NEVER, "there are no workers yet"
    assert run_once(heartbeat) == roughly(600)
    heartbeat.notified([SCHEDULED_PAYLOAD, QUEUES_PAYLOAD])
    assert heartbeat.due_at - time.monotonic() == roughly(600)
    assert requests == []
    worker.restart()
    heartbeat.notified([WORKERS_PAYLOAD])
    assert heartbeat.due_at <= time.monotonic()
    run_once(heartbeat)
    assert requests == [{worker.pk: "restart"}]
    heartbeat.refused(OperationalError("no"))
    heartbeat.notified([WORKERS_PAYLOAD])
    assert heartbeat.due_at > time.monotonic(), "after an error a notification does not make the heartbeat due"


# The service `Admit`: admits scheduled jobs


def test_without_scheduled_jobs_admit_looks_again_after_a_while() -> None:
    assert run_once(Admit(Store("default"))) == roughly(UNSCHEDULED_CHECK)


def test_a_notification_makes_admit_due_soon_but_not_at_once() -> None:
    service = Admit(Store("default"))
    run_once(service)
    assert service.due_at > time.monotonic() + LEAST_DUE_CHECK
    service.notified({""})
    assert service.due_at <= time.monotonic() + LEAST_DUE_CHECK
    service.refused(OperationalError("refused"))
    service.notified({""})
    assert service.due_at > time.monotonic() + LEAST_DUE_CHECK, (
        "after an error a notification does not make the service due"
    )


def test_a_due_job_is_admitted_and_admit_is_due_again_at_once() -> None:
    make_job("scheduled", run_after=timedelta(seconds=-1))
    assert run_once(Admit(Store("default"))) == 0
    assert statuses() == {"queued": 1}


@pytest.mark.parametrize(("seconds", "longest_wait"), [(50, 50), (3600, 100)])
def test_admit_is_due_when_the_next_scheduled_job_is_due(
    seconds: float, longest_wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "DUE_CHECK", 100.0)
    make_job("scheduled", run_after=timedelta(seconds=seconds))
    assert 0 < round(run_once(Admit(Store("default"))), 6) <= longest_wait
    assert statuses() == {"scheduled": 1}


def test_admit_does_not_spin_while_a_due_job_is_locked(session: Any) -> None:
    make_job("scheduled", run_after=timedelta(seconds=-1))
    other_session: Session = session()
    other_session.begin()
    other_session(lambda: list(Job.objects.select_for_update()))
    assert run_once(Admit(Store("default"))) == roughly(DUE_CHECK)
    other_session.rollback()


# The service `PruneJobs`


def test_jobs_of_each_status_are_kept_for_their_retention() -> None:
    for status in FINISHED:
        for days in (0.5, 2, 10, 40):
            make_job(status, finished_at=timedelta(days=-days))
    make_job("queued")
    assert run_once(PruneJobs(Store("default"))) == roughly(PRUNE_JOBS_SECONDS)
    assert statuses() == {"completed": 1, "discarded": 2, "failed": 3, "queued": 1}


@pytest.mark.parametrize(
    ("retention", "statuses_left", "interval"),
    [
        ({"completed": 0}, {"failed": 2}, 1.0),
        ({"completed": None}, {"completed": 2, "failed": 2}, PRUNE_JOBS_SECONDS),
        ({"completed": None, "failed": timedelta(days=50), "discarded": None}, {"completed": 2, "failed": 2}, 30),
        ({"completed": 60.0, "failed": 0.5}, {"completed": 1}, 1.0),
    ],
)
def test_the_retention_may_be_zero_none_or_a_time(
    retention: dict[str, Any], statuses_left: dict[str, int], interval: float
) -> None:
    grace = max(part.prune_grace for part in installed_parts())
    for status in ("completed", "failed"):
        make_job(status, finished_at=timedelta(seconds=-grace - 1))
        make_job(status, finished_at=timedelta(days=-20))
    with override_settings(SKIPQUEUE={"RETENTION": retention}):
        assert run_once(PruneJobs(Store("default"))) == roughly(interval)
    assert statuses() == statuses_left


def test_after_a_full_batch_prune_jobs_is_due_at_once() -> None:
    Job.objects.bulk_create(
        Job(queue_name="q", task="t", status="completed", finished_at="2020-01-01T00:00Z")
        for _ in range(BATCH_ROWS + 1)
    )
    service = PruneJobs(Store("default"))
    assert run_once(service) == 0
    assert run_once(service) == roughly(PRUNE_JOBS_SECONDS)
    assert not Job.objects.exists()


# Jobs that are due before the next check

RARE_CHECKS_SOURCE = """
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
def worker_with_rare_checks(runworker: Callable[..., ManagePy]) -> ManagePy:
    """A worker whose supervisor checks for scheduled jobs once an hour, and has just checked."""
    process = runworker("--poll-interval", "3600", jobs=RARE_CHECKS_SOURCE)
    workers()
    wait_until(supervisor_has_checked)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    return process


def supervisor_has_checked() -> bool:
    """Whether a supervisor has listened, and then run all its services. The last service writes this incident."""
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
def test_scheduling_a_job_that_is_due_soon_wakes_the_supervisor(
    worker_with_rare_checks: ManagePy, defer: Callable[[], Any]
) -> None:
    assert worker_with_rare_checks.process.poll() is None
    for number in (2, 3):  # each job is the only scheduled job
        defer()
        wait_for_statuses(completed=number)


# A service whose statement the database refuses


def test_a_refused_service_does_not_stop_other_services(
    runworker: Callable[..., ManagePy], refuse: Callable[[str], Callable[[], None]]
) -> None:
    stop_refusing = refuse("OLD.status = 'scheduled'")
    make_job("scheduled", run_after=timedelta(seconds=-1))
    make_job("completed", finished_at=timedelta(days=-100))
    process = runworker("--poll-interval", "3600")
    process.wait_for("service failed service=admit", times=2)
    wait_for_statuses(scheduled=1)
    assert "database lost" not in process.log
    stop_refusing()
    wait_for_statuses(completed=1)
    process.wait_for("service back service=admit")

"""The chores: what each does when it is due, and when it is due again."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.test import override_settings

from django_skipqueue.managers import BATCH
from django_skipqueue.models import Job, Worker
from django_skipqueue.records import RecoveredJob
from django_skipqueue.worker.maintenance import (
    DUE_CHECK,
    FORGET_INTERVAL,
    PRUNE_INTERVAL,
    UNSCHEDULED_CHECK,
    Chore,
    Forget,
    Promote,
    Prune,
    Recover,
)

from ..app.rows import FINISHED, make_job, make_worker
from ..app.sessions import Session
from .processes import statuses

pytestmark = pytest.mark.django_db(transaction=True)


class Counted(Chore):
    """A chore that counts its runs."""

    def __init__(self, interval: float) -> None:
        super().__init__("default")
        self.interval = interval
        self.runs = 0

    def run(self) -> float:
        self.runs += 1
        return self.interval


def test_a_chore_is_due_at_first_and_then_after_its_interval() -> None:
    for interval, is_due_again in ((3600, False), (0, True)):
        chore = Counted(interval)
        assert chore.is_due
        chore.do()
        assert chore.is_due is is_due_again


def test_a_chore_that_failed_is_still_due() -> None:
    class Failing(Counted):
        def run(self) -> float:
            raise OperationalError("no server")

    chore = Failing(3600)
    with pytest.raises(OperationalError):
        chore.do()
    assert chore.is_due


# Promote


def test_with_nothing_scheduled_it_looks_again_soon() -> None:
    assert Promote("default").run() == UNSCHEDULED_CHECK


def test_what_is_due_is_promoted_and_there_may_be_more() -> None:
    make_job("scheduled", run_after=timedelta(seconds=-1))
    assert Promote("default").run() == 0
    assert statuses() == {"queued": 1}


@pytest.mark.parametrize(("seconds", "most"), [(0.5, 0.5), (3600, DUE_CHECK)])
def test_it_wakes_for_the_next_one_that_is_due(seconds: float, most: float) -> None:
    make_job("scheduled", run_after=timedelta(seconds=seconds))
    assert 0 < Promote("default").run() <= most
    assert statuses() == {"scheduled": 1}


def test_it_does_not_spin_on_a_due_job_that_somebody_has_locked(session: Any) -> None:
    make_job("scheduled", run_after=timedelta(seconds=-1))
    other: Session = session()
    other.begin()
    other(lambda: list(Job.objects.select_for_update()))
    assert Promote("default").run() == DUE_CHECK
    other.rollback()


# Recover


def test_only_jobs_of_workers_unheard_of_for_a_lease_are_recovered_and_told() -> None:
    dead, live = make_worker(heartbeat=timedelta(seconds=-20)), make_worker(heartbeat=timedelta(seconds=-5))
    lost = make_job("running", locked_by=str(dead.pk), locked_at=timedelta(seconds=-15))
    make_job("running", locked_by=str(live.pk), locked_at=timedelta(hours=-15))
    make_job("running", locked_by=str(dead.pk), locked_at=timedelta(seconds=-5))
    told: list[RecoveredJob] = []
    assert 0 < Recover("default", lease=10, tell=told.extend).run() <= 2.5
    assert [job.id for job in told] == [lost.pk]
    assert statuses() == {"queued": 1, "running": 2}


def test_after_a_full_batch_it_goes_on_at_once() -> None:
    Job.objects.bulk_create(
        Job(queue_name="q", task="t", status="running", locked_by="gone", locked_at="2020-01-01T00:00Z")
        for _ in range(BATCH + 1)
    )
    chore = Recover("default", lease=10, tell=lambda _: None)
    assert chore.run() == 0
    assert chore.run() > 0
    assert statuses() == {"queued": BATCH + 1}


def test_who_was_silent_while_the_database_was_gone_has_a_lease_to_be_heard_in(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("django_skipqueue.worker.maintenance.time.monotonic", lambda: now)
    silent = make_worker(heartbeat=timedelta(seconds=-20))
    make_job("running", locked_by=str(silent.pk), locked_at=timedelta(seconds=-15))
    chore = Recover("default", lease=10, tell=lambda _: None)
    now += 6  # it could not look for that long
    for _ in range(4):
        assert chore.run() == 2.5
        assert statuses() == {"running": 1}
        now += 2.5
    chore.run()
    assert statuses() == {"queued": 1}


# Forget


def test_the_rows_of_dead_workers_stay_for_an_hour_and_as_long_as_they_hold_a_job() -> None:
    make_worker(heartbeat=timedelta(hours=-2))
    recent = make_worker(heartbeat=timedelta(minutes=-50))
    chore = Forget("default", lease=10)
    assert chore.run() == FORGET_INTERVAL
    assert list(Worker.objects.all()) == [recent]
    holding = make_worker(heartbeat=timedelta(hours=-2))
    make_job("running", locked_by=str(holding.pk))
    chore.run()
    assert set(Worker.objects.all()) == {recent, holding}


def test_with_a_long_lease_dead_workers_are_remembered_as_long() -> None:
    worker = make_worker(heartbeat=timedelta(hours=-2))
    Forget("default", lease=3 * 3600).run()
    assert list(Worker.objects.all()) == [worker]


# Prune


def test_each_status_is_kept_as_long_as_the_settings_say() -> None:
    for status in FINISHED:
        for days in (0.5, 2, 10, 40):
            make_job(status, finished_at=timedelta(days=-days))
    make_job("queued")
    assert Prune("default").run() == PRUNE_INTERVAL
    assert statuses() == {"completed": 1, "discarded": 2, "failed": 3, "queued": 1}


@pytest.mark.parametrize(
    ("retention", "left", "interval"),
    [
        ({"completed": 0}, {"failed": 2}, 1.0),
        ({"completed": None}, {"completed": 2, "failed": 2}, PRUNE_INTERVAL),
        ({"completed": None, "failed": timedelta(days=50), "discarded": None}, {"completed": 2, "failed": 2}, 30),
        ({"completed": 60.0, "failed": 0.5}, {"completed": 1}, 1.0),
    ],
)
def test_retention_may_be_nothing_for_ever_or_a_time(
    retention: dict[str, Any], left: dict[str, int], interval: float
) -> None:
    for status in ("completed", "failed"):
        make_job(status, finished_at=timedelta(seconds=-1))
        make_job(status, finished_at=timedelta(days=-20))
    with override_settings(SKIPQUEUE={"RETENTION": retention}):
        assert Prune("default").run() == interval
    assert statuses() == left


def test_a_full_batch_says_that_there_may_be_more() -> None:
    Job.objects.bulk_create(
        Job(queue_name="q", task="t", status="completed", finished_at="2020-01-01T00:00Z") for _ in range(BATCH + 1)
    )
    chore = Prune("default")
    assert chore.run() == 0
    assert chore.run() == PRUNE_INTERVAL
    assert not Job.objects.exists()

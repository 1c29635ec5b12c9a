"""`DeadWorkers`: a supervisor finds dead workers by its observations and its own clock alone."""

import itertools
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.db.models import F

from django_skipqueue.events.events import Event, JobsRecovered
from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.parameters import BATCH_ROWS
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.liveness import PRUNE_WORKERS_SECONDS, DeadWorkers, Heartbeat, PruneWorkers
from django_skipqueue.supervisor.recover import Recover
from django_skipqueue.values.records import RecoveredJob

from ..app.rows import make_job, make_worker
from ..harness.processes import statuses

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

TIMEOUT = 10.0
ONE_HOUR = timedelta(hours=1)


class Clock:
    """The monotonic clock of the observing supervisor."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    supervisor_clock = Clock()
    monkeypatch.setattr("django_skipqueue.supervisor.liveness.time.monotonic", supervisor_clock)
    return supervisor_clock


class SupervisorUnderTest:
    """The services with which a supervisor finds dead workers and recovers their jobs."""

    def __init__(self, clock: Clock, *own: str) -> None:
        self.clock = clock
        self.recovered: list[RecoveredJob] = []
        self.dead = DeadWorkers(store, timeout=TIMEOUT, own=lambda: own, seen=lambda _: None)
        self.heartbeat = Heartbeat(
            store, workers=list, interval=1.0, on_written=lambda _: None, on_requests=lambda _: None
        )
        reporting_store = Store("default", send=self._record_recovered_jobs)
        self.recover = Recover(reporting_store, dead=self.dead, timeout=TIMEOUT, heartbeat=self.heartbeat)

    def _record_recovered_jobs(self, event: Event) -> None:
        assert isinstance(event, JobsRecovered)
        self.recovered += event.jobs

    def run(self) -> float:
        """Run the service once. Returns the seconds until its next run."""
        self.recover.run(self.clock.now)
        return self.recover.due_at - self.clock.now

    def run_for(self, seconds: float) -> None:
        """Run the service as often as a supervisor does, for this many seconds."""
        end = self.clock.now + seconds
        while self.clock.now <= end:
            self.clock.now += max(self.run(), 0.001)


def test_a_worker_with_an_unchanged_heartbeat_for_a_whole_timeout_is_dead(clock: Clock) -> None:
    dead_worker, live_worker = make_worker(), make_worker()
    lost_job = make_job("running", locked_by=dead_worker.pk)
    make_job("running", locked_by=live_worker.pk, locked_at=-ONE_HOUR)
    supervisor = SupervisorUnderTest(clock)
    for _ in range(2):
        supervisor.run_for(TIMEOUT / 2 - 0.5)
        store.heartbeat_worker(live_worker.pk)
        assert statuses() == {"running": 2}
    supervisor.run_for(TIMEOUT / 4)
    assert [job.id for job in supervisor.recovered] == [lost_job.pk]
    assert statuses() == {"queued": 1, "running": 1}


def test_a_worker_with_an_old_heartbeat_is_watched_for_a_timeout_first(clock: Clock) -> None:
    """After a jump of the database's clock, all heartbeats look old at once."""
    worker = make_worker(heartbeat=-ONE_HOUR)
    make_job("running", locked_by=worker.pk, locked_at=-ONE_HOUR)
    make_job("running", locked_by="by hand", locked_at=-ONE_HOUR)
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(TIMEOUT - 0.1)
    assert statuses() == {"running": 2}
    supervisor.run_for(TIMEOUT / 4 + 0.2)
    assert statuses() == {"queued": 2}


def test_a_worker_with_a_heartbeat_in_the_future_can_be_dead(clock: Clock) -> None:
    """After the database's clock was set back, old heartbeats lie in the future."""
    worker = make_worker(heartbeat=ONE_HOUR)
    make_job("running", locked_by=worker.pk, locked_at=ONE_HOUR)
    SupervisorUnderTest(clock).run_for(TIMEOUT + TIMEOUT / 4)
    assert statuses() == {"queued": 1}


def test_a_supervisor_never_declares_its_own_processes_dead(clock: Clock) -> None:
    worker = make_worker(heartbeat=-ONE_HOUR)
    make_job("running", locked_by=worker.pk, locked_at=-ONE_HOUR)
    SupervisorUnderTest(clock, worker.pk).run_for(3 * TIMEOUT)
    assert statuses() == {"running": 1}


def test_after_a_gap_a_supervisor_watches_for_a_whole_timeout_again(clock: Clock) -> None:
    worker = make_worker()
    make_job("running", locked_by=worker.pk)
    make_job("running", locked_by="by hand")
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(TIMEOUT - 1)
    clock.now += TIMEOUT / 2 + 0.1  # the supervisor reads no heartbeats for too long
    supervisor.run_for(TIMEOUT - 1)
    assert statuses() == {"running": 2}
    supervisor.run_for(1 + TIMEOUT / 4)
    assert statuses() == {"queued": 2}


def test_a_worker_that_comes_back_keeps_the_jobs_that_it_claims_then(clock: Clock) -> None:
    worker = make_worker()
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(2 * TIMEOUT)
    assert supervisor.dead.ids == [worker.pk]
    store.heartbeat_worker(worker.pk)
    make_job("running", locked_by=worker.pk)
    supervisor.run_for(TIMEOUT / 2)
    assert supervisor.dead.ids == []
    assert statuses() == {"running": 1}


def test_a_process_without_a_row_keeps_its_jobs_by_their_heartbeats(clock: Clock) -> None:
    kept_job, lost_job = (make_job("running", locked_by="by hand") for _ in range(2))
    supervisor = SupervisorUnderTest(clock)
    for _ in range(8):
        assert store.heartbeat_job((kept_job.pk, kept_job.lease))
        supervisor.run_for(TIMEOUT / 4)
    assert [job.id for job in supervisor.recovered] == [lost_job.pk]


def test_after_the_clock_was_set_back_processes_without_a_row_are_watched_again(clock: Clock) -> None:
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(2 * TIMEOUT)
    assert supervisor.dead.locked_before is not None
    last_time = supervisor.dead.times[-1]
    supervisor.dead.times[-1] = (last_time[0], last_time[1] + ONE_HOUR)  # an hour ahead of the clock as it is now
    clock.now += 1
    supervisor.run()
    assert supervisor.dead.locked_before is None


def test_after_a_full_batch_of_recovered_jobs_the_service_is_due_at_once(clock: Clock) -> None:
    worker = make_worker()
    Job.objects.bulk_create(
        Job(queue_name="q", task="t", status="running", locked_by=worker.pk, locked_at="2020-01-01T00:00Z")
        for _ in range(BATCH_ROWS + 1)
    )
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(TIMEOUT - 0.1)
    # The seconds until the next run, after each run that leaves running jobs.
    intervals = itertools.takewhile(lambda _: statuses().get("running"), iter(supervisor.run, None))
    clock.now += 1
    assert list(intervals) == [0.0]
    assert statuses() == {"queued": BATCH_ROWS + 1}


def test_locked_jobs_of_a_dead_worker_are_recovered_later(clock: Clock, session: object) -> None:
    worker = make_worker()
    make_job("running", locked_by=worker.pk)
    supervisor = SupervisorUnderTest(clock)
    other_session = session()  # type: ignore[operator]
    other_session.begin()
    other_session(lambda: list(Job.objects.select_for_update()))
    supervisor.run_for(2 * TIMEOUT)
    assert statuses() == {"running": 1}
    other_session.rollback()
    supervisor.run_for(2 * TIMEOUT)
    assert statuses() == {"queued": 1}


def test_the_row_of_a_dead_worker_stays_for_an_hour_and_while_it_holds_a_job(clock: Clock) -> None:
    dead_worker, recently_dead = make_worker(heartbeat=-2 * ONE_HOUR), make_worker(heartbeat=-ONE_HOUR * 5 / 6)
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(TIMEOUT - 1)
    prune_workers = PruneWorkers(Store("default"), dead=supervisor.dead, timeout=TIMEOUT)
    prune_workers.run(clock.now)
    assert prune_workers.due_at == clock.now + PRUNE_WORKERS_SECONDS
    assert Worker.objects.count() == 2, "the workers may be alive: the supervisor has not watched them for a timeout"
    supervisor.run_for(TIMEOUT)
    job_of_dead_worker = make_job("running", locked_by=dead_worker.pk)
    prune_workers.run(clock.now)
    assert Worker.objects.count() == 2
    Job.objects.filter(pk=job_of_dead_worker.pk).update(locked_by=F("queue_name"))  # not by the dead worker any more
    prune_workers.run(clock.now)
    assert list(Worker.objects.all()) == [recently_dead]


def test_a_carrier_is_never_declared_dead(clock: Clock) -> None:
    """All relays may be gone for a day, while Celery's workers run the jobs that the relays handed on."""
    carrier, dead_worker = (
        make_worker(heartbeat=-2 * ONE_HOUR, is_external=is_external) for is_external in (True, False)
    )
    kept_job, lost_job = (
        make_job("running", locked_by=holder.pk, locked_at=-2 * ONE_HOUR) for holder in (carrier, dead_worker)
    )
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(2 * TIMEOUT)
    assert supervisor.dead.ids == [dead_worker.pk]
    assert [job.id for job in supervisor.recovered] == [lost_job.pk]
    Job.objects.filter(pk=kept_job.pk).update(status="queued")
    PruneWorkers(Store("default"), dead=supervisor.dead, timeout=TIMEOUT).run(clock.now)
    assert list(Worker.objects.all()) == [carrier]


def test_the_row_of_a_dead_worker_stays_at_least_for_the_worker_timeout(clock: Clock) -> None:
    worker = make_worker(heartbeat=-2 * ONE_HOUR)
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(2 * TIMEOUT)
    PruneWorkers(Store("default"), dead=supervisor.dead, timeout=3 * 3600).run(clock.now)
    assert list(Worker.objects.all()) == [worker]


def test_a_supervisor_that_cannot_write_heartbeats_declares_no_worker_dead(clock: Clock) -> None:
    """The cause, such as a lock on the table, may also keep other supervisors from writing heartbeats."""
    worker = make_worker()
    make_job("running", locked_by=worker.pk)
    supervisor = SupervisorUnderTest(clock)
    supervisor.run_for(TIMEOUT * 0.9)
    supervisor.heartbeat.refused(OperationalError("no"))
    supervisor.run_for(TIMEOUT * 3)
    supervisor.heartbeat.run(clock.now)
    supervisor.heartbeat.succeeded()
    supervisor.run_for(TIMEOUT * 0.9)
    assert statuses() == {"running": 1}
    supervisor.run_for(TIMEOUT * 0.3)
    assert statuses() == {"queued": 1}

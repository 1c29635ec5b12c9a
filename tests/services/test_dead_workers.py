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
HOUR = timedelta(hours=1)


class Clock:
    """The monotonic clock of the observing supervisor."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("django_skipqueue.supervisor.liveness.time.monotonic", made)
    return made


class Observer:
    """The services with which a supervisor finds dead workers and recovers their jobs."""

    def __init__(self, clock: Clock, *own: str) -> None:
        self.clock = clock
        self.recovered: list[RecoveredJob] = []
        self.dead = DeadWorkers(store, timeout=TIMEOUT, own=lambda: own, seen=lambda _: None)
        self.heartbeat = Heartbeat(store, workers=list, interval=1.0, written=lambda _: None, requested=lambda _: None)
        reporting = Store("default", send=self._note)
        self.recover = Recover(reporting, dead=self.dead, timeout=TIMEOUT, heartbeat=self.heartbeat)

    def _note(self, event: Event) -> None:
        assert isinstance(event, JobsRecovered)
        self.recovered += event.jobs

    def run(self) -> float:
        """Run the service once. Returns the seconds until its next run."""
        self.recover.run(self.clock.now)
        return self.recover.due_at - self.clock.now

    def look_for(self, seconds: float) -> None:
        """Run the service as often as a supervisor does, for this many seconds."""
        end = self.clock.now + seconds
        while self.clock.now <= end:
            self.clock.now += max(self.run(), 0.001)


def test_who_has_the_same_heartbeat_for_a_whole_timeout_is_dead_and_loses_its_jobs(clock: Clock) -> None:
    dead, live = make_worker(), make_worker()
    lost = make_job("running", locked_by=dead.pk)
    make_job("running", locked_by=live.pk, locked_at=-HOUR)
    observer = Observer(clock)
    for _ in range(2):
        observer.look_for(TIMEOUT / 2 - 0.5)
        store.heartbeat_worker(live.pk)
        assert statuses() == {"running": 2}
    observer.look_for(TIMEOUT / 4)
    assert [job.id for job in observer.recovered] == [lost.pk]
    assert statuses() == {"queued": 1, "running": 1}


def test_an_old_heartbeat_says_nothing_before_it_was_watched_for_a_timeout(clock: Clock) -> None:
    """After a jump of the database's clock, all heartbeats look old at once."""
    worker = make_worker(heartbeat=-HOUR)
    make_job("running", locked_by=worker.pk, locked_at=-HOUR)
    make_job("running", locked_by="by hand", locked_at=-HOUR)
    observer = Observer(clock)
    observer.look_for(TIMEOUT - 0.1)
    assert statuses() == {"running": 2}
    observer.look_for(TIMEOUT / 4 + 0.2)
    assert statuses() == {"queued": 2}


def test_a_heartbeat_from_the_future_does_not_keep_the_dead_alive(clock: Clock) -> None:
    """After the database's clock was set back, old heartbeats lie in the future."""
    worker = make_worker(heartbeat=HOUR)
    make_job("running", locked_by=worker.pk, locked_at=HOUR)
    Observer(clock).look_for(TIMEOUT + TIMEOUT / 4)
    assert statuses() == {"queued": 1}


def test_its_own_live_processes_are_not_for_it_to_judge(clock: Clock) -> None:
    worker = make_worker(heartbeat=-HOUR)
    make_job("running", locked_by=worker.pk, locked_at=-HOUR)
    Observer(clock, worker.pk).look_for(3 * TIMEOUT)
    assert statuses() == {"running": 1}


def test_who_could_not_look_for_a_while_watches_for_a_whole_timeout_again(clock: Clock) -> None:
    worker = make_worker()
    make_job("running", locked_by=worker.pk)
    make_job("running", locked_by="by hand")
    observer = Observer(clock)
    observer.look_for(TIMEOUT - 1)
    clock.now += TIMEOUT / 2 + 0.1
    observer.look_for(TIMEOUT - 1)
    assert statuses() == {"running": 2}
    observer.look_for(1 + TIMEOUT / 4)
    assert statuses() == {"queued": 2}


def test_who_comes_back_keeps_what_it_claims_from_then_on(clock: Clock) -> None:
    worker = make_worker()
    observer = Observer(clock)
    observer.look_for(2 * TIMEOUT)
    assert observer.dead.ids == [worker.pk]
    store.heartbeat_worker(worker.pk)
    make_job("running", locked_by=worker.pk)
    observer.look_for(TIMEOUT / 2)
    assert observer.dead.ids == []
    assert statuses() == {"running": 1}


def test_a_holder_without_a_row_lives_by_the_heartbeats_of_its_jobs(clock: Clock) -> None:
    kept, lost = (make_job("running", locked_by="by hand") for _ in range(2))
    observer = Observer(clock)
    for _ in range(8):
        assert store.heartbeat_job((kept.pk, kept.lease))
        observer.look_for(TIMEOUT / 4)
    assert [job.id for job in observer.recovered] == [lost.pk]


def test_when_the_clock_is_set_back_holders_without_a_row_are_watched_again(clock: Clock) -> None:
    observer = Observer(clock)
    observer.look_for(2 * TIMEOUT)
    assert observer.dead.locked_before is not None
    read = observer.dead._times[-1]
    observer.dead._times[-1] = (read[0], read[1] + HOUR)  # what was read before is an hour ahead of the clock now
    clock.now += 1
    observer.run()
    assert observer.dead.locked_before is None


def test_after_a_full_batch_it_goes_on_at_once(clock: Clock) -> None:
    worker = make_worker()
    Job.objects.bulk_create(
        Job(queue_name="q", task="t", status="running", locked_by=worker.pk, locked_at="2020-01-01T00:00Z")
        for _ in range(BATCH_ROWS + 1)
    )
    observer = Observer(clock)
    observer.look_for(TIMEOUT - 0.1)
    intervals = itertools.takewhile(lambda _: statuses().get("running"), iter(observer.run, None))
    clock.now += 1
    assert list(intervals) == [0.0]
    assert statuses() == {"queued": BATCH_ROWS + 1}


def test_what_of_the_dead_is_locked_is_recovered_later(clock: Clock, session: object) -> None:
    worker = make_worker()
    make_job("running", locked_by=worker.pk)
    observer = Observer(clock)
    other = session()  # type: ignore[operator]
    other.begin()
    other(lambda: list(Job.objects.select_for_update()))
    observer.look_for(2 * TIMEOUT)
    assert statuses() == {"running": 1}
    other.rollback()
    observer.look_for(2 * TIMEOUT)
    assert statuses() == {"queued": 1}


def test_the_rows_of_the_dead_stay_for_an_hour_and_as_long_as_they_hold_a_job(clock: Clock) -> None:
    dead, recent = make_worker(heartbeat=-2 * HOUR), make_worker(heartbeat=-HOUR * 5 / 6)
    observer = Observer(clock)
    observer.look_for(TIMEOUT - 1)
    forget = PruneWorkers(Store("default"), dead=observer.dead, timeout=TIMEOUT)
    forget.run(clock.now)
    assert forget.due_at == clock.now + PRUNE_WORKERS_SECONDS
    assert Worker.objects.count() == 2, "they may be alive: it has not watched them for a timeout"
    observer.look_for(TIMEOUT)
    holding = make_job("running", locked_by=dead.pk)
    forget.run(clock.now)
    assert Worker.objects.count() == 2
    Job.objects.filter(pk=holding.pk).update(locked_by=F("queue_name"))
    forget.run(clock.now)
    assert list(Worker.objects.all()) == [recent]


def test_a_carrier_is_never_dead_keeps_its_jobs_and_its_row(clock: Clock) -> None:
    """All relays may be gone for a day, while Celery's workers run the jobs that the relays handed on."""
    carrier, dead = (make_worker(heartbeat=-2 * HOUR, is_external=is_external) for is_external in (True, False))
    kept, lost = (make_job("running", locked_by=holder.pk, locked_at=-2 * HOUR) for holder in (carrier, dead))
    observer = Observer(clock)
    observer.look_for(2 * TIMEOUT)
    assert observer.dead.ids == [dead.pk]
    assert [job.id for job in observer.recovered] == [lost.pk]
    Job.objects.filter(pk=kept.pk).update(status="queued")
    PruneWorkers(Store("default"), dead=observer.dead, timeout=TIMEOUT).run(clock.now)
    assert list(Worker.objects.all()) == [carrier]


def test_with_a_long_timeout_dead_workers_are_remembered_as_long(clock: Clock) -> None:
    worker = make_worker(heartbeat=-2 * HOUR)
    observer = Observer(clock)
    observer.look_for(2 * TIMEOUT)
    PruneWorkers(Store("default"), dead=observer.dead, timeout=3 * 3600).run(clock.now)
    assert list(Worker.objects.all()) == [worker]


def test_a_supervisor_that_cannot_write_heartbeats_declares_no_worker_dead(clock: Clock) -> None:
    """The cause, such as a lock on the table, may also keep other supervisors from writing heartbeats."""
    worker = make_worker()
    make_job("running", locked_by=worker.pk)
    observer = Observer(clock)
    observer.look_for(TIMEOUT * 0.9)
    observer.heartbeat.refused(OperationalError("no"))
    observer.look_for(TIMEOUT * 3)
    observer.heartbeat.run(clock.now)
    observer.heartbeat.succeeded()
    observer.look_for(TIMEOUT * 0.9)
    assert statuses() == {"running": 1}
    observer.look_for(TIMEOUT * 0.3)
    assert statuses() == {"queued": 1}

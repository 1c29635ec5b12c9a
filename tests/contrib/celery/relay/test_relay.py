"""A relay with a carrier in memory: who holds a job at each instant, and what the relay writes to PostgreSQL."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now

from django_skipqueue.contrib.celery import rows
from django_skipqueue.contrib.celery.carrier import alias_of, carrier_id, home_of
from django_skipqueue.contrib.celery.models import WorkerOfCelery
from django_skipqueue.contrib.celery.rows import Reclaim
from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.loop import Service
from django_skipqueue.worker.protocol import EXIT_CLEAN

from ....app import jobs
from ....app.sessions import connect
from ....app.waiting import wait_until
from .fake_carrier import FakeCarrier
from .relays import RelayThread

pytestmark = pytest.mark.django_db(transaction=True)

CARRIER = carrier_id("celery")
WINDOW = 50
"""The largest number of jobs that the carrier may have at once."""
RELAY = "r:0123456789ab"
FAILED = Outcome(
    "failed", last_error="ValueError: no", error={"exception": "ValueError", "message": "no", "traceback": ""}
)

carried_noop = jobs.noop.using(queue_name="carried")

StartRelay = Callable[..., RelayThread]


@pytest.fixture(autouse=True)
def carrier_settings(settings: Any) -> None:
    settings.SKIPQUEUE = {
        "CARRIERS": {"celery": {"APP": "shop.celery.app", "QUEUES": {"carried": "of_celery"}, "WINDOW": WINDOW}}
    }


@pytest.fixture
def carrier() -> Iterator[FakeCarrier]:
    carrier = FakeCarrier()
    yield carrier
    carrier.end()


@pytest.fixture
def start_relay(carrier: FakeCarrier) -> Iterator[StartRelay]:
    started: list[RelayThread] = []

    def start_relay(**options: Any) -> RelayThread:
        started.append(RelayThread(carrier, **options))
        return started[-1]

    yield start_relay
    for relay in started:
        relay.end()


def holder_by_job() -> dict[int, str]:
    """Return the holder of each running job, by the id of the job."""
    return dict(Job.objects.running().values_list("pk", "locked_by"))


def wait_for_a_run(service: Service) -> None:
    """Wait until a run of this service has begun and ended."""
    for _ in range(2):  # the first change may end a run that had already begun
        due_at = service.due_at
        wait_until(lambda: service.due_at > due_at)  # noqa: B023


def has_acknowledged(carrier: FakeCarrier, count: int) -> bool:
    return len(carrier.acknowledged_deliveries) == count


def test_a_job_goes_to_the_carrier_and_its_outcome_comes_back(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    (carried_job,) = carrier.jobs.values()
    assert (carried_job.id, carried_job.task, carried_job.attempt) == (job.pk, job.task, 1)
    carrier.finish(outcome=Outcome("completed", result="42"))
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    job.refresh_from_db()
    assert (job.status, job.result, job.attempts) == ("completed", 42, 1)


def test_the_carrier_has_a_row_of_its_own(start_relay: StartRelay) -> None:
    relay = start_relay()
    wait_until(lambda: WorkerOfCelery.objects.count() == 2)
    row_of_carrier = Worker.objects.get(pk=CARRIER)
    assert (row_of_carrier.name, row_of_carrier.queues) == ("celery", ["carried"])
    assert (row_of_carrier.concurrency, row_of_carrier.is_external) == (WINDOW, True)
    row_of_relay = Worker.objects.get(pk=RELAY)
    assert (row_of_relay.is_external, row_of_relay.concurrency) == (False, 0)
    assert WorkerOfCelery.objects.get(pk=RELAY).relay_of == "celery"
    relay.stop()
    assert list(Worker.objects.values_list("pk", flat=True)) == [CARRIER]


def test_the_row_of_the_carrier_says_whether_the_carrier_is_reached(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    carrier.is_down = True
    start_relay(worker_timeout=4_000.0, heartbeat_interval=1_000.0)
    wait_until(lambda: WorkerOfCelery.objects.filter(pk=CARRIER).exists())
    assert WorkerOfCelery.objects.get(pk=CARRIER).reached_at is None
    carrier.is_down = False
    wait_until(lambda: WorkerOfCelery.objects.get(pk=CARRIER).reached_at is not None)


def test_the_row_of_the_carrier_counts_the_jobs_that_it_has_refused(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    carrier.refuses = True
    for _ in range(3):
        carried_noop.defer()
    relay = start_relay()
    wait_until(lambda: len(carrier.published) >= 3)
    wait_until(lambda: Job.objects.queued().count() == 3)
    relay.stop()
    assert WorkerOfCelery.objects.get(pk=CARRIER).refused == len(carrier.published)


def test_relays_of_other_databases_do_not_take_outcomes_of_this_database(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    """Two projects may share a broker. The time in the carrier's row, which no relay deletes, tells them apart."""
    first_thread = start_relay()
    wait_until(lambda: first_thread.relay.connection.is_open)
    first_thread.stop()
    home, started_at = carrier.home, Worker.objects.get(pk=CARRIER).started_at
    assert home == home_of("default", started_at)
    assert alias_of(home) == "default"
    second_thread = start_relay(id="r:000000000000")
    wait_until(lambda: second_thread.relay.connection.is_open)
    assert carrier.home == home, "the next relay of the database takes the outcomes that wait"
    second_thread.stop()
    Worker.objects.filter(pk=CARRIER).delete()  # as in a database where no relay has run yet
    thread_of_other_database = start_relay(id="r:111111111111")
    wait_until(lambda: thread_of_other_database.relay.connection.is_open)
    assert carrier.home != home


def test_the_row_names_the_relay_until_the_carrier_has_confirmed_the_job(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    carrier.confirms_at_once = False
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: bool(carrier.published))
    assert holder_by_job() == {job.pk: RELAY}
    carrier.confirm()
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})


def test_an_outcome_that_comes_before_the_confirm_is_written(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    carrier.confirms_at_once = False
    job = carried_noop.defer()
    relay_thread = start_relay()
    wait_until(lambda: bool(carrier.published))
    (carried_job,) = carrier.unconfirmed
    carrier.finish(carried_job)
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    carrier.confirm()
    wait_until(lambda: not relay_thread.relay.jobs.unconfirmed and not relay_thread.relay.jobs.confirmed)
    job.refresh_from_db()
    assert job.status == "completed"


def test_failures_and_retries_of_carried_jobs_are_written_to_postgresql(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    failing, retried = carried_noop.defer(), carried_noop.defer()
    start_relay()
    wait_until(lambda: len(carrier.jobs) == 2)
    carried_job_by_id = {job.id: job for job in carrier.jobs.values()}
    carrier.finish(carried_job_by_id[failing.pk], outcome=FAILED)
    carrier.finish(carried_job_by_id[retried.pk], outcome=Outcome("scheduled", delay=60.0, last_error="later"))
    wait_until(lambda: len(carrier.acknowledged_deliveries) == 2)
    failing.refresh_from_db()
    retried.refresh_from_db()
    assert (failing.status, failing.last_error, failing.errors[-1]["message"]) == ("failed", "ValueError: no", "no")
    assert (retried.status, retried.last_error) == ("scheduled", "later")


def test_the_carrier_has_no_more_jobs_than_the_window(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    carried_noop.defer_many([()] * 120)
    start_relay()
    wait_until(lambda: list(holder_by_job().values()) == [CARRIER] * WINDOW)
    assert Job.objects.queued().count() == 120 - WINDOW
    carrier.finish()
    wait_until(lambda: len(carrier.jobs) == WINDOW)
    assert Job.objects.queued().count() == 120 - 2 * WINDOW
    carrier.finish()
    wait_until(lambda: len(carrier.jobs) == 120 - 2 * WINDOW)
    carrier.finish()
    wait_until(lambda: Job.objects.completed().count() == 120)
    assert len(carrier.published) == 120, "each job was sent once"


def test_jobs_that_another_relay_handed_over_count_for_the_window(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    carried_noop.defer_many([()] * 60)
    first_thread = start_relay()
    wait_until(lambda: list(holder_by_job().values()) == [CARRIER] * WINDOW)
    first_thread.stop()
    second_thread = start_relay(id="r:000000000000")
    wait_until(lambda: second_thread.relay.window.due_at > 0.0)
    wait_until(lambda: second_thread.relay.jobs.with_carrier == WINDOW)
    assert len(carrier.published) == WINDOW


def test_four_relays_share_the_window(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    """While jobs wait and no worker runs them, each relay uses a quarter of the window."""
    relays = [start_relay(id=f"r:00000000000{number}", shutdown_timeout=0.1).relay for number in range(4)]
    wait_until(lambda: WorkerOfCelery.objects.filter(relay_of="celery").count() == 4)
    for relay in relays:
        wait_for_a_run(relay.window)
    carried_noop.defer_many([()] * 400)
    wait_until(lambda: len(carrier.jobs) >= WINDOW)
    for relay in relays:
        wait_for_a_run(relay.window)
    # Up to three late relays may still use the share of their last count, which is at most a quarter of 50 each.
    assert len(carrier.published) <= WINDOW + 3 * 13, "without the shared window the relays would publish 200 jobs"


def test_jobs_that_the_carrier_refuses_are_released_and_tried_later(
    carrier: FakeCarrier, start_relay: StartRelay, caplog: pytest.LogCaptureFixture
) -> None:
    carrier.refuses = True
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: bool(carrier.published) and Job.objects.queued().count() == 1)
    wait_until(lambda: "carrier refused" in caplog.text)
    assert len(carrier.published) == 1
    carrier.refuses = False
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    job.refresh_from_db()
    assert job.attempts == 1, "the refusal has cost no attempt"


def test_a_job_that_is_too_large_for_the_carrier_fails_and_smaller_jobs_go_on(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    carrier.longest_arguments = 100
    large, small = (jobs.echo.using(queue_name="carried").defer("x" * size) for size in (200, 10))
    relay = start_relay().relay
    wait_until(lambda: Job.objects.failed().count() == 1)
    large.refresh_from_db()
    assert (large.attempts, len(large.errors)) == (1, 1), "the job fails at once, whatever its number of attempts"
    assert large.last_error.startswith("MessageTooLarge: The job needs a message of 204 bytes, but the carrier celery")
    assert "MAX_MESSAGE_SIZE" in large.errors[0]["message"]
    wait_until(lambda: holder_by_job() == {small.pk: CARRIER})
    wait_until(lambda: relay.jobs.held_ids == [])
    assert (carrier.published, relay.jobs.with_carrier) == ([(small.pk, 1)], 1), "only the small job was sent"
    carrier.finish()
    wait_until(lambda: Job.objects.completed().count() == 1)


def test_a_lost_window_is_reported_with_the_repair_command(
    carrier: FakeCarrier, start_relay: StartRelay, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LOST_WINDOW_INTERVAL", 0.05)
    carried_noop.defer_many([()] * 60)
    relay = start_relay().relay
    wait_until(lambda: list(holder_by_job().values()) == [CARRIER] * WINDOW)
    carrier.jobs.clear()  # as `rabbitmqctl purge_queue` does
    all_but_one = Job.objects.running().order_by("pk")[: WINDOW - 1].values("pk")
    Job.objects.filter(pk__in=all_but_one).update(locked_at=Now() - timedelta(days=1))
    wait_until(lambda: relay.window.is_full)
    wait_for_a_run(relay.lost_window)
    assert "carrier window lost" not in caplog.text, "one job is young, and may still run"
    Job.objects.running().update(locked_at=Now() - timedelta(days=1))
    wait_until(lambda: "carrier window lost" in caplog.text)
    wait_for_a_run(relay.lost_window)
    [warning] = [line for line in caplog.messages if line.startswith("carrier window lost")]
    assert f" carrier=celery count={WINDOW} " in warning
    assert "python manage.py runrelay --reclaim celery" in warning
    list(Reclaim.begin(Store.default(), "celery").run())
    wait_until(lambda: len(carrier.jobs) == WINDOW, "jobs are handed over again")


@pytest.mark.parametrize("reason", ["expired", "maxlen"])
def test_jobs_that_the_broker_drops_are_released(
    reason: str, carrier: FakeCarrier, start_relay: StartRelay, caplog: pytest.LogCaptureFixture
) -> None:
    job = carried_noop.defer()
    relay = start_relay().relay
    wait_until(lambda: CARRIER in holder_by_job().values())
    (carried_job,) = carrier.jobs.values()
    carrier.give_back(carried_job, reason)
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    assert f"carried jobs returned worker=r carrier=celery count=1 reason={reason}" in caplog.text
    assert ("carrier refused" in caplog.text) is (reason == "maxlen"), (
        "after maxlen the relay waits before it publishes again"
    )
    assert relay.window.jobs_refused == (reason == "maxlen")
    wait_until(lambda: len(carrier.published) == 2)
    job.refresh_from_db()
    assert (job.attempts, job.last_error, job.errors) == (1, "", [])


def test_no_job_is_claimed_while_the_carrier_is_blocked(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    carrier.is_blocked = True
    relay_thread = start_relay()
    wait_until(lambda: relay_thread.relay.window.is_blocked)
    job = carried_noop.defer()
    wait_until(lambda: relay_thread.relay.row.is_written and relay_thread.relay.window.is_counted)
    assert holder_by_job() == {}
    carrier.is_blocked = False
    carrier._wake_relay()
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})


def test_an_expired_job_is_released_and_runs_later(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: len(carrier.jobs) == 1)
    (carried_job,) = carrier.jobs.values()
    carrier.give_back(carried_job, "expired")
    wait_until(lambda: len(carrier.published) == 2)
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    # The release and the next claim have each raised the lease.
    assert carrier.published[1] == (job.pk, carried_job.lease + 2)
    job.refresh_from_db()
    assert job.attempts == 1


def test_the_job_of_an_unreadable_message_is_released_by_the_id_of_the_message(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    carried_noop.defer()
    start_relay()
    wait_until(lambda: len(carrier.jobs) == 1)
    (carried_job,) = carrier.jobs.values()
    carrier.give_back(carried_job, "rejected", is_readable=False)
    wait_until(lambda: len(carrier.published) == 2)


def test_a_job_whose_workers_die_is_recovered_and_fails_at_the_third_time(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    job = carried_noop.defer()
    start_relay()
    for attempt in (1, 2):
        wait_until(lambda: len(carrier.jobs) == 1)
        (carried_job,) = carrier.jobs.values()
        assert carried_job.attempt == attempt
        carrier.begin_again(carried_job)
        carrier.give_back(carried_job, "delivery_limit", is_readable=attempt == 1)
        wait_until(partial(has_acknowledged, carrier, 2 * attempt))  # for each attempt, a note and the returned job
        job.refresh_from_db()
        assert job.last_error == "WorkerDied: each worker of the carrier that got the job has died"
    assert (job.status, job.deaths) == ("scheduled", [CARRIER, CARRIER]), "the next attempt starts within 30 s"
    Job.objects.filter(pk=job.pk).run_now()
    wait_until(lambda: len(carrier.jobs) == 1)
    (carried_job,) = carrier.jobs.values()
    carrier.begin_again(carried_job)
    carrier.give_back(carried_job, "delivery_limit")
    wait_until(lambda: Job.objects.failed().count() == 1)
    job.refresh_from_db()
    assert "three workers in a row died" in job.last_error
    assert [entry["worker"] for entry in job.errors] == ["celery"] * 3


def test_a_job_that_no_worker_has_begun_is_released_however_many_workers_die(
    carrier: FakeCarrier, start_relay: StartRelay, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery's workers are in a crash loop: they die after they have received jobs, before they begin any of them."""
    job = carried_noop.defer()
    start_relay()
    for count in range(1, 11):
        wait_until(lambda: len(carrier.jobs) == 1)
        (carried_job,) = carrier.jobs.values()
        carrier.give_back(carried_job, "delivery_limit")
        wait_until(partial(has_acknowledged, carrier, count))
    wait_until(lambda: len(carrier.jobs) == 1)
    job.refresh_from_db()
    assert (job.status, job.attempts, job.errors, job.deaths) == ("running", 1, [], None)
    assert "carried jobs not begun worker=r carrier=celery count=1" in caplog.text


def test_a_begun_attempt_counts_even_if_another_relay_takes_the_job_back(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    """The job's row says that the job has begun, so no relay needs to remember it."""
    job = carried_noop.defer()
    first_thread = start_relay()
    wait_until(lambda: set(holder_by_job().values()) == {CARRIER})
    (carried_job,) = carrier.jobs.values()
    for note_count in (1, 2):
        carrier.begin_again(carried_job)
        wait_until(partial(has_acknowledged, carrier, note_count))
    first_thread.stop()
    start_relay(id="r:000000000000")
    carrier.give_back(carried_job, "delivery_limit")
    wait_until(partial(has_acknowledged, carrier, 3))
    job.refresh_from_db()
    assert (len(job.errors), job.deaths) == (1, [CARRIER])


def test_an_old_message_of_dead_workers_does_not_take_back_a_job_that_was_claimed_again(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    """An operator reclaimed the job, and a relay claimed it again, before the message came back."""
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: len(carrier.jobs) == 1)
    (first_claim,) = carrier.jobs.values()
    Store.default().release([first_claim.ref])
    wait_until(lambda: len(carrier.jobs) == 2)
    [second_claim] = [carried_job for carried_job in carrier.jobs.values() if carried_job.ref != first_claim.ref]
    carrier.begin_again(second_claim)
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    carrier.give_back(first_claim, "delivery_limit")
    wait_until(lambda: carrier.acknowledged_deliveries == [1, 2])
    assert holder_by_job() == {job.pk: CARRIER}


def test_a_job_that_is_locked_when_it_comes_back_is_taken_back_later(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    two_jobs = [carried_noop.defer(), carried_noop.defer()]
    start_relay()
    wait_until(lambda: len(carrier.jobs) == 2 and set(holder_by_job().values()) == {CARRIER})
    with connect() as locking_session, locking_session.transaction():
        locking_session.execute("SELECT FROM skipqueue_job FOR UPDATE")
        for carried_job, reason in zip(tuple(carrier.jobs.values()), ("delivery_limit", "expired"), strict=True):
            carrier.give_back(carried_job, reason)
        wait_until(lambda: len(carrier.unacknowledged) == 2)
        assert carrier.acknowledged_deliveries == []
    wait_until(lambda: len(carrier.acknowledged_deliveries) == 2)
    wait_until(lambda: sorted(holder_by_job()) == sorted(job.pk for job in two_jobs))


@pytest.mark.parametrize("reason", ["expired", "delivery_limit", "rejected"])
def test_two_dead_letters_of_one_job_are_both_acknowledged(
    reason: str, carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    carried_noop.defer()
    start_relay()
    wait_until(lambda: CARRIER in holder_by_job().values())
    (carried_job,) = carrier.jobs.values()
    with carrier.lock:  # the relay reads both messages in one `take`
        for _ in range(2):
            carrier.give_back(carried_job, reason)
    wait_until(lambda: sorted(carrier.acknowledged_deliveries) == [1, 2])
    assert not carrier.unacknowledged


def test_a_refused_job_waits_and_costs_no_attempt(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: len(carrier.jobs) == 1)
    (carried_job,) = carrier.jobs.values()
    carrier.give_back(carried_job, "rejected")
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    job.refresh_from_db()
    assert (job.status, job.attempts) == ("scheduled", 0)
    assert "another version" in job.last_error


def test_the_second_of_two_outcomes_is_dropped(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    """The carrier delivered the job twice, because its first worker died after it had sent the outcome."""
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: len(carrier.jobs) == 1)
    (carried_job,) = carrier.jobs.values()
    carrier.finish(carried_job, outcome=Outcome("completed", result="1"))
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    carrier.finish(carried_job, outcome=Outcome("completed", result="2"))
    wait_until(lambda: carrier.acknowledged_deliveries == [1, 2])
    job.refresh_from_db()
    assert job.result == 1


def test_the_outcome_of_a_job_that_was_cancelled_meanwhile_is_dropped(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    Job.objects.get(pk=job.pk).cancel(reason="no")
    carrier.finish()
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    job.refresh_from_db()
    assert job.status == "discarded"


def test_the_carrier_is_asked_not_to_begin_a_cancelled_job(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    cancelled, not_cancelled = carried_noop.defer(), carried_noop.defer()
    start_relay()
    wait_until(lambda: len(holder_by_job()) == 2 and set(holder_by_job().values()) == {CARRIER})
    Job.objects.get(pk=cancelled.pk).cancel(reason="no")
    wait_until(lambda: [id for id, _ in carrier.jobs] == [not_cancelled.pk])


def test_an_outcome_that_cannot_be_read_at_all_fails_its_job(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    (carried_job,) = carrier.jobs.values()
    carrier.give_back(carried_job, "unreadable", is_readable=False)
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    job.refresh_from_db()
    assert (job.status, job.last_error.split(":")[0]) == ("failed", "UnreadableOutcome")


def test_an_outcome_that_the_task_itself_has_written_is_only_counted(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    job = carried_noop.defer()
    relay_thread = start_relay()
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    (carried_job,) = carrier.jobs.values()
    Store.default().settle([Settlement(*carried_job.ref, COMPLETED)])
    carrier.finish(carried_job, is_written=True)
    wait_until(lambda: carrier.acknowledged_deliveries == [1])
    assert relay_thread.relay.jobs_done == 1


def test_after_a_lost_connection_unconfirmed_jobs_are_released(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    carrier.confirms_at_once = False
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: bool(carrier.published))
    carrier.confirms_at_once = True
    carrier.lose_connection()
    wait_until(lambda: len(carrier.published) == 2)
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    job.refresh_from_db()
    assert job.attempts == 1


def test_after_a_lost_connection_confirmed_jobs_stay_with_the_carrier(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    carrier.lose_connection()
    carrier.finish()
    wait_until(lambda: Job.objects.completed().count() == 1)
    assert carrier.published == [(job.pk, 1)]
    wait_until(lambda: not carrier.unacknowledged)


def test_the_first_connection_is_logged_once(
    carrier: FakeCarrier, start_relay: StartRelay, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue.worker")
    start_relay()
    wait_until(lambda: "carrier reached" in caplog.text)
    carrier.lose_connection()
    wait_until(lambda: "carrier back" in caplog.text)
    assert caplog.text.count("carrier reached") == 1


def test_a_relay_waits_for_a_carrier_that_is_down_at_the_start(
    carrier: FakeCarrier, start_relay: StartRelay, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue.worker")
    carrier.is_down = True
    job = carried_noop.defer()
    start_relay()
    wait_until(lambda: "carrier lost" in caplog.text)
    assert holder_by_job() == {}
    carrier.is_down = False
    wait_until(lambda: holder_by_job() == {job.pk: CARRIER})
    assert "carrier back" in caplog.text


def test_a_relay_that_stops_releases_unconfirmed_jobs(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    carrier.confirms_at_once = False
    job = carried_noop.defer()
    relay = start_relay(shutdown_timeout=0.1)
    wait_until(lambda: bool(carrier.published))
    assert relay.stop() == EXIT_CLEAN
    job.refresh_from_db()
    assert (job.status, job.attempts) == ("queued", 0)


def test_a_relay_that_stops_waits_for_the_confirms(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    carrier.confirms_at_once = False
    job = carried_noop.defer()
    relay_thread = start_relay()
    wait_until(lambda: bool(carrier.published))
    stopping = threading.Thread(target=relay_thread.stop)
    stopping.start()
    wait_until(lambda: relay_thread.relay.stopping)
    carrier.confirm()
    stopping.join()
    assert holder_by_job() == {job.pk: CARRIER}


def test_a_relay_that_stops_hands_over_all_confirmed_jobs(
    carrier: FakeCarrier, start_relay: StartRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.contrib.celery.rows.RELAY_BATCH", 1)
    carrier.confirms_at_once = False
    carried_noop.defer_many([()] * 5)
    relay_thread = start_relay()
    wait_until(lambda: len(carrier.published) == 5)
    stopping = threading.Thread(target=relay_thread.stop)
    stopping.start()
    wait_until(lambda: relay_thread.relay.stopping)
    carrier.confirm()
    stopping.join()
    assert list(holder_by_job().values()) == [CARRIER] * 5, "if the relay released a job, the job would run twice"


def test_a_job_whose_outcome_waits_is_not_released_when_the_connection_breaks(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    """The outcome came before the confirm, and another transaction has locked the row."""
    carrier.confirms_at_once = False
    job = carried_noop.defer()
    relay = start_relay().relay
    wait_until(lambda: bool(carrier.published))
    (carried_job,) = carrier.unconfirmed
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        carrier.finish(carried_job)
        wait_until(lambda: relay.exchanges.pending.next_check != NEVER, "the outcome is set aside")
        carrier.lose_connection()
        wait_until(lambda: not relay.jobs.unconfirmed)
        assert carried_job.ref not in relay.jobs.to_release
        assert relay.jobs.held_ids == [job.pk], "the relay still counts the job as its own"
    wait_until(lambda: not carrier.unacknowledged)
    job.refresh_from_db()
    assert (job.status, job.attempts, len(carrier.published)) == ("completed", 1, 1)


def test_an_outcome_is_written_for_a_job_that_was_about_to_be_released(
    carrier: FakeCarrier, start_relay: StartRelay
) -> None:
    """The carrier had the job, and the relay had not released it yet."""
    carrier.confirms_at_once = False
    job = carried_noop.defer()
    relay = start_relay().relay
    wait_until(lambda: bool(carrier.published))
    (carried_job,) = carrier.unconfirmed
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        carrier.lose_connection()
        wait_until(lambda: carried_job.ref in relay.jobs.to_release)
        carrier.finish(carried_job)
        wait_until(lambda: carried_job.ref not in relay.jobs.to_release)
    wait_until(lambda: not carrier.unacknowledged)
    job.refresh_from_db()
    assert (job.status, job.attempts, len(carrier.published)) == ("completed", 1, 1)


def test_a_relay_that_stops_publishes_no_more(carrier: FakeCarrier, start_relay: StartRelay) -> None:
    """Outcomes make room in the window while the relay waits for the last confirms."""
    carrier.confirms_at_once = False
    carried_noop.defer_many([()] * 60)
    relay_thread = start_relay()
    wait_until(lambda: len(carrier.published) == WINDOW)
    stopping = threading.Thread(target=relay_thread.stop)
    stopping.start()
    wait_until(lambda: relay_thread.relay.stopping)
    carrier.confirm(40)
    wait_until(lambda: relay_thread.relay.jobs.with_carrier == 40)
    carrier.finish()
    wait_until(lambda: len(carrier.acknowledged_deliveries) == 40)
    carrier.confirm()
    stopping.join()
    assert len(carrier.published) == WINDOW, "the other jobs stay in their queue"
    assert Job.objects.queued().count() == 60 - WINDOW

"""The SQL statements of a relay. They write the carrier into the rows of its jobs, and count these rows."""

from collections.abc import Iterable
from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.functions import Now

from django_skipqueue.contrib.celery import rows as relay_sql
from django_skipqueue.contrib.celery import window
from django_skipqueue.contrib.celery.carrier import carrier_id
from django_skipqueue.contrib.celery.models import WorkerOfCelery
from django_skipqueue.contrib.celery.rows import recover_returned
from django_skipqueue.models import Job
from django_skipqueue.queue.parameters import leases_as_values
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import LeaseRef, Noted

from ....app.carriers import make_relay
from ....app.rows import lease_of, make_job, make_worker, state

store = Store("default")

pytestmark = pytest.mark.django_db

CELERY = carrier_id("celery")
RELAY = "relay/1:0123456789ab"

carried_store = Store("default")
carried_store.guards, carried_store.holder = relay_sql.GUARDS, {"carrier": "celery", "carrier_id": CELERY}


def hand_over(*leases: LeaseRef) -> set[LeaseRef]:
    rows = store.rows(relay_sql.HAND_OVER, {**leases_as_values(leases), "carrier_id": CELERY})
    return {(id, lease) for id, lease in rows}


def note_begun(leases: Iterable[LeaseRef]) -> None:
    carried_store.rows(relay_sql.NOTE_BEGUN, {**leases_as_values(leases), **carried_store.holder})


def send_heartbeat(*, relay_id: str | None = None, is_reached: bool = False, refused: int = 0) -> None:
    values = {"carrier": "celery", "carrier_id": CELERY, "relay_id": relay_id}
    store.execute(relay_sql.HEARTBEAT, {**values, "is_reached": is_reached, "refused": refused})


def count_carried_jobs() -> int:
    return counts_of_window()[0]


def counts_of_window() -> tuple[int, int, int]:
    """Return how many jobs the carrier holds, how many jobs its relays hold, and how many relays are alive."""
    (row,) = store.rows(window.CARRIED_COUNT, {**carried_store.holder, "worker_timeout": 60.0})
    return row


def test_a_job_that_is_handed_over_belongs_to_the_carrier_and_keeps_its_lease() -> None:
    job = make_job("running", locked_by=RELAY, lease=7)
    before = state(job)
    assert hand_over(lease_of(job)) == {(job.pk, 7)}
    assert state(job) == before | {"locked_by": CELERY}
    assert count_carried_jobs() == 1


def test_a_job_that_is_already_settled_is_not_handed_over() -> None:
    settled, running = (make_job("running", locked_by=RELAY) for _ in range(2))
    store.settle([Settlement(*lease_of(settled), COMPLETED)])
    before = state(settled)
    handed_over = hand_over(*(lease_of(job) for job in (settled, running)))
    assert handed_over == {lease_of(running)}
    assert state(settled) == before


def test_a_job_that_has_changed_hands_is_not_handed_over() -> None:
    job = make_job("running", locked_by="another:0123456789ab", lease=3)
    assert hand_over((job.pk, 2)) == set()
    assert state(job)["locked_by"] == "another:0123456789ab"


def test_only_the_jobs_that_the_carrier_holds_are_counted() -> None:
    make_job("running", locked_by=RELAY)
    make_job("completed", locked_by=CELERY)
    assert count_carried_jobs() == 0
    for _ in range(3):
        make_job("running", locked_by=CELERY)
    assert count_carried_jobs() == 3


def test_jobs_that_relays_of_the_carrier_hold_are_counted_separately() -> None:
    alive, dead = (make_relay(heartbeat=timedelta(seconds=-age)) for age in (0, 61))
    relay_of_other_carrier = make_relay(relay_of="another")
    for holder in (alive, dead, dead, relay_of_other_carrier):
        make_job("running", locked_by=holder.pk)
    make_job("running", locked_by=CELERY)
    assert counts_of_window() == (1, 3, 1), "the dead relay's two jobs count, but the dead relay does not"


def test_all_jobs_of_a_carrier_can_be_released() -> None:
    """`runrelay --reclaim` releases the jobs of a carrier with this statement."""
    job = make_job("running", locked_by=RELAY, attempts=2)
    hand_over(lease_of(job))
    assert store.release_orphans(CELERY, known=[]) == {job.pk}
    assert count_carried_jobs() == 0
    assert (state(job)["status"], state(job)["attempts"]) == ("queued", 1)
    assert not Job.objects.filter(locked_by=CELERY).exists()


RETRY = Outcome("scheduled", delay=60.0, last_error="no", error={"message": "no"})
SNOOZE = Outcome("scheduled", delay=60.0, refund=1)


def make_jobs_of_carrier() -> list[Job]:
    """Make a job that the carrier holds, and a job that its relay has not yet handed over."""
    relay = make_relay(name="relay")
    return [make_job("running", locked_by=holder) for holder in (CELERY, relay.pk)]


def make_jobs_of_others() -> list[Job]:
    """Make running jobs that workers or relays of other carriers hold, a queued job, and a completed job."""
    worker, relay_of_other_carrier = make_worker(name="w"), make_relay(name="x", relay_of="another")
    running = [make_job("running", locked_by=holder) for holder in (worker.pk, relay_of_other_carrier.pk, RELAY)]
    return [*running, make_job("queued", lease=0), make_job("completed", lease=3, locked_by=worker.pk)]


@pytest.mark.parametrize("outcome", [COMPLETED, RETRY, SNOOZE])
def test_an_outcome_from_a_broker_settles_only_jobs_that_the_carrier_holds(outcome: Outcome) -> None:
    carriers_jobs, jobs_of_others = make_jobs_of_carrier(), make_jobs_of_others()
    before = [state(job) for job in jobs_of_others]
    settlements = [Settlement(*lease_of(job), outcome) for job in (*carriers_jobs, *jobs_of_others)]
    assert carried_store.settle(settlements) == {job.pk for job in carriers_jobs}
    assert [state(job) for job in jobs_of_others] == before


def test_a_returned_job_is_released_only_if_the_carrier_holds_it() -> None:
    carriers_jobs, jobs_of_others = make_jobs_of_carrier(), make_jobs_of_others()
    before = [state(job) for job in jobs_of_others]
    assert carried_store.release(map(lease_of, [*carriers_jobs, *jobs_of_others])) == {job.pk for job in carriers_jobs}
    assert [state(job) for job in jobs_of_others] == before


def test_a_returned_job_is_recovered_only_if_it_has_begun() -> None:
    begun, not_begun = (make_job("running", locked_by=CELERY) for _ in range(2))
    note_begun([lease_of(begun)])
    recovered = recover_returned(carried_store, leases_of(begun, not_begun))
    assert [job.id for job in recovered] == [begun.pk]
    assert carried_store.release(leases_of(begun, not_begun)) == {not_begun.pk}


def leases_of(*jobs: Job) -> list[LeaseRef]:
    return [lease_of(job) for job in jobs]


def test_a_returned_job_is_recovered_only_if_the_carrier_holds_it() -> None:
    carriers_jobs, jobs_of_others = make_jobs_of_carrier(), make_jobs_of_others()
    note_begun(leases_of(*carriers_jobs, *jobs_of_others))
    Job.objects.filter(pk__in=[job.pk for job in jobs_of_others]).update(started_at=Now())
    before = [state(job) for job in jobs_of_others]
    recovered = recover_returned(carried_store, leases_of(*carriers_jobs, *jobs_of_others))
    assert {job.id for job in recovered} == {job.pk for job in carriers_jobs}
    assert [state(job) for job in jobs_of_others] == before


def test_a_note_from_a_broker_changes_only_jobs_of_the_carrier() -> None:
    carriers_jobs, jobs_of_others = make_jobs_of_carrier(), make_jobs_of_others()
    noted = [
        Noted(*lease_of(job), 0.0, '{"progress": {"lease": 1, "value": 0.5}}')
        for job in (*carriers_jobs, *jobs_of_others)
    ]
    assert carried_store.note_attempts(noted) == {job.pk for job in carriers_jobs}


def test_errors_from_a_broker_are_appended_to_the_carriers_cancelled_jobs() -> None:
    carriers_job = make_job("discarded", lease=2, locked_by=CELERY)
    jobs_of_others = [make_job("discarded", lease=2, locked_by=holder) for holder in ("w:0123456789ab", "")]
    cancelled = [Settlement(job.pk, 1, RETRY) for job in (carriers_job, *jobs_of_others)]
    assert carried_store.append_cancelled_errors(cancelled) == {carriers_job.pk}


def test_heartbeats_add_up_refused_jobs_and_keep_the_time_of_the_last_contact() -> None:
    send_heartbeat()
    assert WorkerOfCelery.objects.get().reached_at is None
    send_heartbeat(is_reached=True, refused=3)
    WorkerOfCelery.objects.update(reached_at=F("reached_at") - timedelta(hours=1))
    before = WorkerOfCelery.objects.get()
    send_heartbeat(refused=4)
    row_of_carrier = WorkerOfCelery.objects.get()
    assert (row_of_carrier.refused, row_of_carrier.reached_at) == (7, before.reached_at)
    send_heartbeat(is_reached=True)
    row_of_carrier = WorkerOfCelery.objects.get()
    assert row_of_carrier.reached_at is not None
    assert before.reached_at is not None
    assert (row_of_carrier.refused, row_of_carrier.reached_at > before.reached_at) == (7, True)


def test_a_relays_heartbeat_keeps_its_row_and_drops_the_rows_of_deleted_relays() -> None:
    old, own = make_relay(name="old"), make_worker(name="own", concurrency=0)
    send_heartbeat(relay_id=own.pk)
    assert dict(WorkerOfCelery.objects.values_list("pk", "relay_of")) == {
        CELERY: "",
        old.pk: "celery",
        own.pk: "celery",
    }
    store.delete_workers([old.pk])
    send_heartbeat(relay_id=own.pk)
    assert set(WorkerOfCelery.objects.values_list("pk", flat=True)) == {CELERY, own.pk}

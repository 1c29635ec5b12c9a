"""The statements of a relay: they name the carrier in the rows of its jobs, and count these rows."""

import pytest

from django_skipqueue.models import Job
from django_skipqueue.relay import sql
from django_skipqueue.relay.carrier import carrier_id
from django_skipqueue.store import Store
from django_skipqueue.store.parameters import leases_as_values
from django_skipqueue.values.outcomes import COMPLETED, Settlement
from django_skipqueue.values.records import LeaseRef

from ..app.rows import lease_of, make_job, state

store = Store("default")

pytestmark = pytest.mark.django_db

CELERY = carrier_id("celery")
RELAY = "relay/1:0123456789ab"


def hand_over(*leases: LeaseRef) -> set[LeaseRef]:
    rows = store.rows(sql.HAND_OVER, {**leases_as_values(leases), "carrier_id": CELERY})
    return {(id, lease) for id, lease in rows}


def carried() -> int:
    ((number,),) = store.rows(sql.CARRIED_COUNT, {"carrier_id": CELERY})
    return int(number)


def test_a_job_that_is_handed_over_belongs_to_the_carrier_under_the_same_lease() -> None:
    job = make_job("running", locked_by=RELAY, lease=7)
    before = state(job)
    assert hand_over(lease_of(job)) == {(job.pk, 7)}
    assert state(job) == before | {"locked_by": CELERY}
    assert carried() == 1


def test_a_job_whose_outcome_was_quicker_is_not_handed_over() -> None:
    settled, other = (make_job("running", locked_by=RELAY) for _ in range(2))
    store.settle([Settlement(*lease_of(settled), COMPLETED)])
    before = state(settled)
    handed_over = hand_over(*(lease_of(job) for job in (settled, other)))
    assert handed_over == {lease_of(other)}
    assert state(settled) == before


def test_a_job_that_has_changed_hands_is_not_handed_over() -> None:
    job = make_job("running", locked_by="another:0123456789ab", lease=3)
    assert hand_over((job.pk, 2)) == set()
    assert state(job)["locked_by"] == "another:0123456789ab"


def test_only_the_jobs_that_the_carrier_holds_are_counted() -> None:
    make_job("running", locked_by=RELAY)
    make_job("completed", locked_by=CELERY)
    assert carried() == 0
    for _ in range(3):
        make_job("running", locked_by=CELERY)
    assert carried() == 3


def test_what_the_carrier_held_is_released_as_the_jobs_of_a_worker_are() -> None:
    """As `runrelay --reclaim` does."""
    job = make_job("running", locked_by=RELAY, attempts=2)
    hand_over(lease_of(job))
    assert store.release_orphans(CELERY, known=[]) == {job.pk}
    assert carried() == 0
    assert (state(job)["status"], state(job)["attempts"]) == ("queued", 1)
    assert not Job.objects.filter(locked_by=CELERY).exists()

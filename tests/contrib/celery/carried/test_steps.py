"""Steps of jobs that Celery's workers run."""

from collections.abc import Callable
from contextlib import closing

import pytest

from django_skipqueue.models import Job, JobStep
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import ClaimedJob

from ....app.models import Ledger
from ....harness.processes import ManagePy
from .celery_worker import RelayDouble, start_worker

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

SOURCE_OF_APPROVE = """
from tests.app.models import Ledger

@job(takes_context=True, max_attempts=2)
def approve(context):
    context.step("book", lambda: Ledger.objects.create(entry="booked").pk, atomic=True)
    return context.wait("approved")
"""

store = Store("default")


def claim() -> ClaimedJob:
    (job,) = store.claim(queue_names=["carried"], limit=1, worker_id="r:0123456789ab")
    return job


def test_a_carried_job_does_not_repeat_a_finished_step_after_waiting_for_a_signal(
    manage: Callable[..., ManagePy], broker_url: str
) -> None:
    start_worker(manage, broker_url, "--pool", "prefork", "-c", "1", more_jobs=SOURCE_OF_APPROVE)
    job = Job.objects.enqueue("extra.jobs.approve", queue_name="carried")
    relay = RelayDouble(broker_url)
    with closing(relay.carrier):
        relay.publish(claim())
        attempt = relay.outcomes(1)[job.pk]
        assert attempt.outcome.is_held
        assert store.settle([attempt.settlement])
        job.refresh_from_db()
        assert (job.status, job.attempts) == ("blocked", 0)
        assert job.signal("approved", "yes")
        relay.publish(claim())
        attempt = relay.outcomes(1)[job.pk]
    assert (attempt.outcome.status, attempt.outcome.result) == ("completed", '"yes"')
    assert Ledger.objects.count() == 1
    assert list(JobStep.objects.order_by("number").values_list("name", flat=True)) == ["book", "approved"]

"""An attacker with access to the broker can change only jobs that the carrier or one of its relays holds."""

import json

import pytest

from django_skipqueue.contrib.celery import wire
from django_skipqueue.contrib.celery.carrier import carrier_id
from django_skipqueue.contrib.celery.relay import Relay
from django_skipqueue.models import Job
from django_skipqueue.parts.history.rollups import RollUpTally
from django_skipqueue.values.outcomes import Outcome, error_entry
from django_skipqueue.values.records import Attempt, ClaimedJob

from ....app.carriers import make_relay
from ....app.rows import make_job, make_worker, state
from ....app.waiting import wait_until
from .fake_carrier import FakeCarrier
from .relays import RelayThread
from .test_relay import StartRelay, carrier, carrier_settings, start_relay  # noqa: F401 (fixtures)
from .test_wire import JOB

pytestmark = pytest.mark.django_db(transaction=True)

ERROR = error_entry(ValueError("rewritten"), attempt=1, worker="celery@here", duration_ms=1.0)
FORGED_OUTCOMES = (
    Outcome("completed", result='"forged"'),
    Outcome("failed", last_error="rewritten", error=ERROR),
    Outcome("scheduled", delay=60.0, refund=1),
    Outcome("discarded", error=ERROR, notes='{"progress": {"lease": 1, "value": 0.5}}'),
)


@pytest.fixture
def jobs_of_others(start_relay: StartRelay) -> tuple[RelayThread, list[Job]]:  # noqa: F811
    """Start a relay, and make jobs that neither the relay nor its carrier holds. Return the relay and the jobs."""
    relay = start_relay()
    wait_until(lambda: relay.relay.connection.is_open)
    worker = make_worker(name="w")
    other_relay = make_relay(name="other", relay_of="another carrier")
    jobs = [
        make_job("running", locked_by=worker.pk, queue_name="mail"),
        make_job("running", locked_by=other_relay.pk),
        make_job("queued", lease=0, queue_name="mail"),
        make_job("completed", locked_by=worker.pk, lease=1),
        make_job("discarded", locked_by=worker.pk, lease=2, operations=[{"verb": "cancel", "at": "2026-01-01"}]),
    ]
    return relay, jobs


def roll_up_tally(relay: Relay) -> RollUpTally:
    [tally] = [observer for observer in relay.exchanges.observers.all if isinstance(observer, RollUpTally)]
    return tally


def as_claimed_job(job: Job, lease: int) -> ClaimedJob:
    return JOB._replace(id=job.pk, lease=lease, task=job.task, queue_name=job.queue_name)


def test_a_forged_outcome_changes_no_job_of_others(
    jobs_of_others: tuple[RelayThread, list[Job]],
    carrier: FakeCarrier,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay, jobs = jobs_of_others
    caplog.set_level("INFO", logger="django_skipqueue.worker")
    before = [state(job) for job in jobs]
    for job in jobs:
        for lease in (job.lease, job.lease - 1):  # the current lease, and an older lease
            for outcome in FORGED_OUTCOMES:
                attempt = Attempt(
                    as_claimed_job(job, max(lease, 0)), outcome, started=0.0, ended=0.1, worker="celery@here"
                )
                for is_written in (False, True):
                    part = wire.encode_outcome(attempt._replace(is_written=is_written), "default")
                    carrier.deliver(wire.join_outcomes([part]))
    wait_until(lambda: not carrier.unacknowledged)
    relay.stop()
    assert [state(job) for job in jobs] == before


def test_a_forged_outcome_is_logged_as_such_and_raises_no_alarm(
    jobs_of_others: tuple[RelayThread, list[Job]],
    carrier: FakeCarrier,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay, (job, *_) = jobs_of_others
    caplog.set_level("INFO", logger="django_skipqueue.worker")
    carrier.finish(as_claimed_job(job, job.lease))
    wait_until(lambda: "outcome dropped" in caplog.text)
    [log_record] = [record for record in caplog.records if record.__dict__.get("event") == "outcome_dropped"]
    assert log_record.levelname == "INFO"
    assert log_record.getMessage().endswith('not_written=completed reason="the carrier does not have the job"')
    assert "lease lost" not in caplog.text
    tally = roll_up_tally(relay.relay)
    assert tally.is_empty


@pytest.mark.parametrize("reason", ["expired", "delivery_limit", "rejected", "maxlen"])
def test_a_forged_return_changes_no_job_of_others(
    reason: str,
    jobs_of_others: tuple[RelayThread, list[Job]],
    carrier: FakeCarrier,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, jobs = jobs_of_others
    caplog.set_level("INFO", logger="django_skipqueue.worker")
    before = [state(job) for job in jobs]
    for job in jobs:
        ref = job.pk, job.lease
        body = json.dumps([[wire.job_to_wire(as_claimed_job(job, job.lease), "default")], {}, {}]).encode()
        carrier.deliver_back(body, id=wire.message_id("default", ref), headers={"x-death": [{"reason": reason}]})
    wait_until(lambda: not carrier.unacknowledged)
    assert [state(job) for job in jobs] == before
    assert ("outcome dropped" if reason == "rejected" else "carried returns dropped") in caplog.text


def test_an_outcome_of_a_job_that_another_relay_holds_is_written(carrier: FakeCarrier, start_relay: StartRelay) -> None:  # noqa: F811
    """The outcome came to this relay before the other relay had handed the job over to the carrier."""
    start_relay()
    holder = make_relay(name="second")
    jobs = [make_job("running", locked_by=holder.pk), make_job("running", locked_by=carrier_id("celery"))]
    for job in jobs:
        carrier.finish(as_claimed_job(job, job.lease))
    wait_until(lambda: Job.objects.completed().count() == 2)


def test_two_outcomes_of_one_attempt_raise_no_alarm(
    carrier: FakeCarrier,  # noqa: F811
    start_relay: StartRelay,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue.worker")
    relay = start_relay().relay
    job = make_job("running", locked_by=carrier_id("celery"))
    for outcome_count in (1, 2):
        carrier.finish(as_claimed_job(job, job.lease))
        wait_until(lambda: len(carrier.acknowledged_deliveries) == outcome_count)  # noqa: B023
    wait_until(lambda: "outcome dropped" in caplog.text)
    assert 'reason="an outcome of this attempt came before"' in caplog.text
    assert "lease lost" not in caplog.text
    tally = roll_up_tally(relay)
    rolled_up_rows, _ = tally.take()
    assert {(rolled_up_row["completed"], rolled_up_row["lost"]) for rolled_up_row in rolled_up_rows} == {(1, 0)}

"""`lost_leases`: how a lease has ended, as far as the job's row shows it."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from django.db import OperationalError

from django_skipqueue.models import Job
from django_skipqueue.queue.parameters import ExchangeResult
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, LostLease, Outcome, Settlement

from ..app.rows import make_job
from ..harness.table import Case

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

ERROR = {"message": "no", "attempt": 1, "worker": "w", "duration_ms": 1.5, "traceback": "line 1"}
OTHER_ERROR = ERROR | {"duration_ms": 2.5}
RETRY_LATER = Outcome("scheduled", delay=60, last_error="ValueError: no", error=ERROR)
RETRY_NOW = Outcome("scheduled", last_error="ValueError: no", error=ERROR)
SNOOZE = Outcome("scheduled", delay=60, refund=1)
UNKNOWN = Outcome("scheduled", delay=60, refund=1, last_error="UnknownTask: no", is_unknown=True)
FAILED = Outcome("failed", last_error="ValueError: no", error=ERROR)
DISCARDED = Outcome("discarded", last_error="not wanted", error=ERROR)
OUTCOMES = {
    "completed": COMPLETED,
    "retry later": RETRY_LATER,
    "retry now": RETRY_NOW,
    "snooze": SNOOZE,
    "unknown task": UNKNOWN,
    "failed": FAILED,
    "discarded": DISCARDED,
}
WAITING = {name: outcome for name, outcome in OUTCOMES.items() if outcome.status == "scheduled"}
WITH_ERROR = {name: outcome for name, outcome in OUTCOMES.items() if outcome.error}


def settlement(job: Job, outcome: Outcome = COMPLETED) -> Settlement:
    return Settlement(job.pk, job.lease, outcome, started=1.0, ended=2.0)


def lost_lease(job: Job, outcome: Outcome = COMPLETED) -> LostLease:
    """Check that settling writes nothing, and return how the lease ended, from the columns of the job's row."""
    assert store.settle([settlement(job, outcome)]) == set()
    return store.lost_leases([(job.pk, job.lease)])[job.pk, job.lease]


def written_status(job: Job, outcome: Outcome) -> str | None:
    """The status that was written with the outcome before the lease was lost. None if it was not written."""
    lost = lost_lease(job, outcome)
    assert lost.cancel_reason is None
    return lost.written_status(outcome)


def claim_again_by_other_worker() -> None:
    [job] = Job.objects.claim(queue_names=["default"], limit=1, worker_id="other")
    assert job.locked_by == "other"


DEATHS: list[Any] = [None, ["another:0123456789ab"]]
"""Values of the column `deaths`: no worker, or one worker, died while it ran the job."""


def test_a_written_outcome_is_recognized_after_the_lease_is_lost(case: Case) -> None:
    for (name, outcome), deaths in product(OUTCOMES.items(), DEATHS):
        with case(name, deaths=deaths):
            job = make_job("running", deaths=deaths)
            store.settle([settlement(job, outcome)])
            assert written_status(job, outcome) == outcome.status


def test_a_retry_that_was_run_now_or_postponed_is_recognized(case: Case) -> None:
    for name, outcome in WAITING.items():
        with case(name):
            job = make_job("running")
            store.settle([settlement(job, outcome)])
            if outcome.delay:
                store.run_now([job.pk])
            else:
                store.discard([job.pk])
            assert written_status(job, outcome) == "scheduled"


def test_an_outcome_with_an_error_is_recognized_after_the_next_attempt_has_begun(case: Case) -> None:
    for name, outcome in WITH_ERROR.items():
        with case(name):
            job = make_job("running")
            store.settle([settlement(job, outcome)])
            store.run_now([job.pk])
            store.retry([job.pk])
            claim_again_by_other_worker()
            assert written_status(job, outcome) == outcome.status


def test_a_snooze_cannot_be_recognized_after_the_next_attempt_has_begun() -> None:
    job = make_job("running")
    store.settle([settlement(job, SNOOZE)])
    store.run_now([job.pk])
    claim_again_by_other_worker()
    assert written_status(job, SNOOZE) is None


def test_a_lost_lease_names_the_cancel_that_ended_it_whatever_the_outcome(case: Case) -> None:
    for (name, outcome), is_error_kept in product(OUTCOMES.items(), [False, True]):
        with case(name, is_error_kept=is_error_kept):
            job = make_job("running")
            store.cancel([job.pk], reason="not wanted")
            if is_error_kept:
                store.append_cancelled_errors([settlement(job, outcome)])
            lost = lost_lease(job, outcome)
            assert (lost.cancel_reason, lost.written_status(outcome)) == ("not wanted", None)


def test_a_discard_by_the_task_is_recognized_after_a_cancel_and_a_retry() -> None:
    cancelled_job = make_job("queued")
    store.cancel([cancelled_job.pk], reason="not wanted")
    store.retry([cancelled_job.pk])
    [job] = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    store.settle([settlement(job, DISCARDED)])
    assert written_status(job, DISCARDED) == "discarded"


def test_malformed_operations_in_a_row_do_not_break_the_statement(case: Case) -> None:
    malformed_values: list[Any] = [[], [5], [{}], [{"verb": 5, "at": "soon"}], [{"verb": "retry", "at": "soon"}]]
    for operations in malformed_values:
        with case(operations=operations):
            discarded_job, cancelled_job = (make_job("running", operations=operations) for _ in range(2))
            store.settle([settlement(discarded_job, DISCARDED)])
            assert written_status(discarded_job, DISCARDED) == "discarded"
            store.cancel([cancelled_job.pk], reason="not wanted")
            assert lost_lease(cancelled_job).cancel_reason == "not wanted"


def take_by_recovery(job: Job) -> None:
    assert store.recover(worker_ids=[job.locked_by])


def take_by_release(job: Job) -> None:
    assert store.release([(job.pk, job.lease)])


def delete(job: Job) -> None:
    Job.objects.filter(pk=job.pk).delete()


def test_an_outcome_counts_as_lost_if_the_job_was_taken_from_its_worker(case: Case) -> None:
    takers = [take_by_recovery, take_by_release, delete]
    for (name, outcome), max_attempts, deaths, take_job in product(OUTCOMES.items(), [1, 2], DEATHS, takers):
        with case(name, max_attempts=max_attempts, deaths=deaths, take=take_job.__name__):
            job = make_job("running", max_attempts=max_attempts, deaths=deaths)
            take_job(job)
            assert written_status(job, outcome) is None
            if Job.objects.filter(status="queued").exists():
                claim_again_by_other_worker()
                assert written_status(job, outcome) is None


def test_the_error_of_another_attempt_is_not_taken_for_the_error_of_this_attempt(case: Case) -> None:
    for name, outcome in WITH_ERROR.items():
        with case(name):
            job = make_job("running", max_attempts=2, errors=[OTHER_ERROR])
            take_by_recovery(job)
            claim_again_by_other_worker()
            assert written_status(job, outcome) is None


def test_a_job_that_its_task_has_completed_is_completed_whatever_the_outcome() -> None:
    job = make_job("running")
    store.settle([settlement(job, Outcome("completed", result='{"a": 1}'))])
    assert lost_lease(job, RETRY_LATER).is_completed
    assert written_status(job, RETRY_LATER) == "completed"


def test_a_valid_lease_is_not_reported_as_lost() -> None:
    job = make_job("running")
    assert store.lost_leases([(job.pk, job.lease)]) == {}


def test_outcomes_written_before_a_claim_that_failed_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL refuses a batch, so it is written in parts, each committed. Then the claim loses the connection."""
    accepted_job, refused_job = make_job("running"), make_job("running")
    exchange = Store.exchange

    def lose_connection_in_the_claim(self: Store, settlements: Iterable[Settlement], **options: Any) -> ExchangeResult:
        batch = list(settlements)
        if not batch:
            raise OperationalError("the connection is gone")
        return exchange(self, batch, **options)

    monkeypatch.setattr(Store, "exchange", lose_connection_in_the_claim)
    outcome_with_malformed_json = Outcome("completed", result="{oops")
    with pytest.raises(OperationalError, match="the connection is gone"):
        store.exchange(
            [settlement(accepted_job), settlement(refused_job, outcome_with_malformed_json)],
            queue_names=["default"],
            limit=1,
            worker_id="worker",
        )
    assert written_status(accepted_job, COMPLETED) == "completed"
    assert written_status(refused_job, outcome_with_malformed_json) == "failed"

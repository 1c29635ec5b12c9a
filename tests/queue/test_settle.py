"""`settle`, `exchange`, `release`, `heartbeat`: only the holder of the lease writes the outcome of an attempt."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Job
from django_skipqueue.queue import settle as statements
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement, error_entry

from ..app import jobs
from ..app.rows import FINISHED, lease_of, make_job, settle_and_claim, state
from ..harness.table import Case

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

RETRY_LATER = Outcome("scheduled", delay=60, last_error="ValueError: no", error={"message": "no", "attempt": 1})
RETRY_NOW = Outcome("scheduled", last_error="ValueError: no", error={"message": "no", "attempt": 1})
SNOOZE = Outcome("scheduled", delay=60, refund=1)
FAILED = Outcome("failed", last_error="ValueError: no", error={"message": "no", "attempt": 1})
DISCARDED = Outcome("discarded", last_error="not wanted", error={"message": "not wanted", "attempt": 1})
OUTCOMES = {
    "completed": (COMPLETED, "completed"),
    "retry later": (RETRY_LATER, "scheduled"),
    "retry now": (RETRY_NOW, "queued"),
    "snooze": (SNOOZE, "scheduled"),
    "failed": (FAILED, "failed"),
    "discarded": (DISCARDED, "discarded"),
}


def settle(settlements: Iterable[Settlement]) -> set[int]:
    return store.settle(settlements)


def settle_beside_a_claim(settlements: Iterable[Settlement]) -> set[int]:
    settled_leases, claimed_jobs = settle_and_claim(settlements, queue_names=["no such"], limit=3, worker_id="w")
    assert claimed_jobs == []
    return {id for id, _ in settled_leases}


WITH_BOTH_WAYS_TO_SETTLE = pytest.mark.parametrize(
    "settle_jobs", [settle, settle_beside_a_claim], ids=["settle", "settle_and_claim"]
)
SettleFunction = Callable[[Iterable[Settlement]], set[int]]


def settlement(job: Job, outcome: Outcome = COMPLETED) -> Settlement:
    return Settlement(job.pk, job.lease, outcome)


def claim_new(count: int = 1, **fields: Any) -> list[Job]:
    for _ in range(count):
        make_job(**fields)
    return Job.objects.claim(queue_names=["default"], limit=count, worker_id="w")


class TestTransitions:
    @pytest.mark.core
    @WITH_BOTH_WAYS_TO_SETTLE
    def test_each_outcome_changes_the_row_as_expected(self, case: Case, settle_jobs: SettleFunction) -> None:
        for name, (outcome, status) in OUTCOMES.items():
            with case(name):
                (job,) = claim_new(max_attempts=5)
                assert settle_jobs([settlement(job, outcome)]) == {job.pk}
                stored = state(job)
                assert stored["status"] == status
                assert stored["lease"] == job.lease + 1, "settling ends the lease"
                assert stored["locked_at"] is None
                assert stored["locked_by"] == "w", "the row still names the last worker"
                assert (stored["finished_at"] is not None) == (status in FINISHED)
                assert stored["attempts"] == 1 - outcome.refund
                assert stored["last_error"] == (outcome.last_error or "")
                assert len(stored["errors"]) == (outcome.error is not None)

    @pytest.mark.core
    def test_a_delay_counts_from_the_databases_clock(self) -> None:
        (job,) = claim_new()
        settle([settlement(job, RETRY_LATER)])
        with connection.cursor() as cursor:
            cursor.execute("SELECT run_after - statement_timestamp() FROM skipqueue_job")
            (remaining_delay,) = cursor.fetchone()
        assert timedelta(seconds=55) < remaining_delay <= timedelta(seconds=60)

    def test_a_retry_without_a_delay_is_queued_behind_waiting_jobs(self) -> None:
        retried_job, waiting_job = claim_new(1)[0], make_job()
        settle([settlement(retried_job, RETRY_NOW)])
        claimed_ids = [job.pk for job in Job.objects.claim(queue_names=["default"], limit=2, worker_id="w")]
        assert claimed_ids == [waiting_job.pk, retried_job.pk]

    def test_a_finished_job_keeps_its_run_after(self) -> None:
        (job,) = claim_new()
        settle([settlement(job)])
        assert state(job)["run_after"] == job.run_after

    @pytest.mark.parametrize("attempts", [1, 5, 9])
    def test_a_snooze_never_uses_up_the_attempts(self, attempts: int) -> None:
        (job,) = claim_new(attempts=attempts - 1)
        for _ in range(3):
            settle([settlement(job, Outcome("scheduled", refund=1))])
            (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
            assert job.attempts == attempts

    @pytest.mark.core
    @WITH_BOTH_WAYS_TO_SETTLE
    def test_a_stored_result_equals_the_result_of_the_task(self, case: Case, settle_jobs: SettleFunction) -> None:
        for result in ("null", "1", '"Łódź 🐘"', '{"a": [1, null, {"b": 1.5}]}', "[]", "false"):
            with case(result):
                (job,) = claim_new()
                settle_jobs([settlement(job, Outcome("completed", result=result))])
                assert Job.objects.get().result == json.loads(result)

    def test_a_task_that_returns_nothing_has_the_result_null(self) -> None:
        (job,) = claim_new()
        settle([settlement(job)])
        assert Job.objects.filter(result__isnull=True).exists()

    def test_the_last_error_stays_readable_after_a_success(self) -> None:
        (job,) = claim_new()
        settle([settlement(job, RETRY_NOW)])
        (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
        settle([settlement(job)])
        stored = state(job)
        assert (stored["status"], stored["last_error"], len(stored["errors"])) == ("completed", "ValueError: no", 1)

    def test_unknown_since_is_when_the_first_worker_did_not_know_the_task(self) -> None:
        (job,) = claim_new()
        settle([settlement(job, Outcome("scheduled", is_unknown=True))])
        unknown_since = state(job)["unknown_since"]
        assert unknown_since == job.locked_at
        (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
        settle([settlement(job, Outcome("scheduled", is_unknown=True))])
        assert state(job)["unknown_since"] == unknown_since

    @pytest.mark.parametrize(
        "outcome", [COMPLETED, RETRY_NOW, Outcome("scheduled", refund=1)], ids=["completed", "retried", "snoozed"]
    )
    def test_an_outcome_of_a_known_task_clears_unknown_since_and_the_deaths(self, outcome: Outcome) -> None:
        (job,) = claim_new(unknown_since=Now(), deaths=["w"])
        settle([settlement(job, outcome)])
        stored = state(job)
        assert (stored["unknown_since"], stored["deaths"]) == (None, None)

    def test_a_worker_that_does_not_know_the_task_keeps_the_deaths(self) -> None:
        """In a rolling deploy, workers with old code may claim a job between workers with new code that die of it."""
        (job,) = claim_new(deaths=["w"])
        settle([settlement(job, Outcome("scheduled", is_unknown=True))])
        assert state(job)["deaths"] == ["w"]

    def test_a_refused_outcome_is_raised_with_raises(self) -> None:
        (job,) = claim_new()
        with pytest.raises(DatabaseError), transaction.atomic():
            store.settle([settlement(job, Outcome("completed", result="{oops"))], raises=True)
        assert state(job)["status"] == "running"

    @pytest.mark.core
    def test_errors_are_kept_up_to_ten_the_oldest_going_first_and_timed_by_the_database(self) -> None:
        (job,) = claim_new(max_attempts=20)
        for number in range(1, 13):
            error = error_entry(ValueError(f"number {number}"), attempt=number, worker="me", duration_ms=1)
            settle([settlement(job, Outcome("scheduled", last_error=f"e{number}", error=error))])
            (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
        errors = state(job)["errors"]
        assert [error["attempt"] for error in errors] == list(range(3, 13))
        assert [error["message"] for error in errors] == [f"number {number}" for number in range(3, 13)]
        assert [error["at"] for error in errors] == sorted(error["at"] for error in errors)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT bool_and((entry ->> 'at')::timestamptz BETWEEN enqueued_at AND statement_timestamp()) "
                "FROM skipqueue_job, jsonb_array_elements(errors) AS entry"
            )
            assert cursor.fetchone() == (True,)
        error_keys = {"attempt", "worker", "duration_ms", "exception", "place", "line", "message", "traceback"}
        assert set(errors[0]) == {*error_keys, "at", "worker_id"}

    @WITH_BOTH_WAYS_TO_SETTLE
    def test_settling_an_empty_batch_sends_no_statement(self, settle_jobs: SettleFunction) -> None:
        assert settle_jobs([]) == set()
        with CaptureQueriesContext(connection) as queries:
            assert settle(iter([])) == set()
        assert not queries.captured_queries

    @WITH_BOTH_WAYS_TO_SETTLE
    def test_a_batch_is_settled_in_one_statement_that_returns_the_written_jobs(
        self, settle_jobs: SettleFunction
    ) -> None:
        running_jobs = claim_new(30)
        mixed_settlements = [
            settlement(job, [COMPLETED, RETRY_LATER, FAILED][number % 3]) for number, job in enumerate(running_jobs)
        ]
        released_job = running_jobs[4]
        store.release([lease_of(released_job)])
        with CaptureQueriesContext(connection) as queries:
            assert settle_jobs(iter(mixed_settlements)) == {job.pk for job in running_jobs} - {released_job.pk}
        assert len(queries) <= 1
        counts = {
            status: Job.objects.filter(status=status).count()
            for status in ("completed", "scheduled", "failed", "queued")
        }
        assert counts == {"completed": 10, "scheduled": 9, "failed": 10, "queued": 1}

    @pytest.mark.core
    def test_settle_and_claim_settles_and_claims_in_one_transaction(self) -> None:
        running_jobs, waiting_jobs = claim_new(3), [make_job() for _ in range(5)]
        settled_leases, claimed_jobs = settle_and_claim(
            map(settlement, running_jobs), queue_names=["default"], limit=4, worker_id="me"
        )
        assert settled_leases == {lease_of(job) for job in running_jobs}
        assert [job.id for job in claimed_jobs] == [job.pk for job in waiting_jobs[:4]]
        with connection.cursor() as cursor:
            # `xmin` is the transaction that wrote the row. Jobs that are still queued have the lease 0.
            cursor.execute("SELECT count(DISTINCT xmin::text) FROM skipqueue_job WHERE lease > 0")
            assert cursor.fetchone() == (1,)

    def test_a_retry_without_a_delay_is_not_claimed_in_the_round_trip_that_settles_it(self) -> None:
        (job,) = claim_new()
        other_job = make_job()
        _, claimed_jobs = settle_and_claim(
            [settlement(job, RETRY_NOW)], queue_names=["default"], limit=1, worker_id="w"
        )
        assert [claimed_job.id for claimed_job in claimed_jobs] == [other_job.pk]


def recover(job: Job) -> None:
    assert store.recover(worker_ids=[job.locked_by])


def release(job: Job) -> None:
    assert store.release([lease_of(job)])


def retry_by_hand(job: Job) -> None:
    assert settle([settlement(job, FAILED)])
    assert store.retry([job.pk])


def complete(job: Job) -> None:
    assert settle([settlement(job)])


def settle_to_retry(job: Job) -> None:
    assert settle([settlement(job, RETRY_NOW)])


def snooze(job: Job) -> None:
    assert settle([settlement(job, SNOOZE)])


def release_as_orphan(job: Job) -> None:
    assert store.release_orphans(job.locked_by, known=[])


def release_and_let_another_claim(job: Job) -> None:
    release(job)
    assert Job.objects.claim(queue_names=["default"], limit=1, worker_id="another")


def recover_and_let_another_claim(job: Job) -> None:
    recover(job)
    assert Job.objects.claim(queue_names=["default"], limit=1, worker_id="another")


def recover_and_let_the_same_claim(job: Job) -> None:
    recover(job)
    assert Job.objects.claim(queue_names=["default"], limit=1, worker_id=job.locked_by)


def release_and_discard(job: Job) -> None:
    release(job)
    assert store.discard([job.pk])


def delete(job: Job) -> None:
    Job.objects.filter(pk=job.pk).delete()


WAYS_TO_LOSE_A_LEASE = [
    recover,
    release,
    retry_by_hand,
    complete,
    settle_to_retry,
    snooze,
    release_as_orphan,
    release_and_let_another_claim,
    recover_and_let_another_claim,
    recover_and_let_the_same_claim,
    release_and_discard,
    delete,
]


class TestFences:
    """Nothing is written with a lease that is no longer valid."""

    @pytest.mark.core
    @WITH_BOTH_WAYS_TO_SETTLE
    def test_no_outcome_is_written_with_a_stale_lease(self, case: Case, settle_jobs: SettleFunction) -> None:
        for lose_lease in WAYS_TO_LOSE_A_LEASE:
            with case(lose_lease.__name__):
                stale_job, *other_jobs = claim_new(1 + len(OUTCOMES))
                lose_lease(stale_job)
                row_before = list(Job.objects.filter(pk=stale_job.pk).values())
                # Read again, because some ways, such as a recovery, also end the leases of the worker's other jobs.
                live_jobs = list(Job.objects.filter(pk__in=[job.pk for job in other_jobs], status="running"))
                for outcome, _ in OUTCOMES.values():
                    live_settlements = [settlement(live_jobs.pop())] if live_jobs else []
                    written_ids = settle_jobs([settlement(stale_job, outcome), *live_settlements])
                    assert written_ids == {live.job_id for live in live_settlements}, "only the live job is settled"
                    assert list(Job.objects.filter(pk=stale_job.pk).values()) == row_before

    def test_no_job_is_released_with_a_stale_lease(self, case: Case) -> None:
        for lose_lease in WAYS_TO_LOSE_A_LEASE:
            with case(lose_lease.__name__):
                stale_job, _live = claim_new(2)
                lose_lease(stale_job)
                rows_before = list(Job.objects.order_by("pk").values())
                assert store.release([lease_of(stale_job)]) == set()
                assert list(Job.objects.order_by("pk").values()) == rows_before

    def test_no_heartbeat_is_written_with_a_stale_lease(self, case: Case) -> None:
        for lose_lease in WAYS_TO_LOSE_A_LEASE:
            with case(lose_lease.__name__):
                stale_job, _live = claim_new(2)
                lose_lease(stale_job)
                rows_before = list(Job.objects.order_by("pk").values())
                assert store.heartbeat_job(lease_of(stale_job)) is False
                assert list(Job.objects.order_by("pk").values()) == rows_before


def test_only_one_of_two_outcomes_of_an_attempt_in_a_batch_is_written() -> None:
    (job,) = claim_new()
    assert settle([settlement(job), settlement(job, FAILED)]) == {job.pk}
    stored = state(job)
    assert stored["lease"] == job.lease + 1
    assert (stored["status"], len(stored["errors"])) in [("completed", 0), ("failed", 1)]


WITH_NOTES = Outcome(
    "completed", notes=json.dumps({"progress": {"lease": 1, "value": 0.5}, "log": {"lease": 1, "lines": []}})
)
ONLY_A_REASON = Outcome("discarded", last_error="not wanted")
OUTCOME_BY_KIND = {
    "plain": COMPLETED,
    "error": RETRY_LATER,
    "reason": ONLY_A_REASON,
    "notes": WITH_NOTES,
    "snooze": SNOOZE,
}


@WITH_BOTH_WAYS_TO_SETTLE
def test_each_combination_of_outcomes_in_one_batch_is_written(case: Case, settle_jobs: SettleFunction) -> None:
    """Whatever outcomes a batch has, the chosen statement must write all of them."""
    all_combinations = [
        kinds for size in range(1, len(OUTCOME_BY_KIND) + 1) for kinds in combinations(OUTCOME_BY_KIND, size)
    ]
    for kinds in all_combinations:
        with case(" ".join(kinds)):
            job_by_outcome = dict(zip(kinds, claim_new(len(kinds)), strict=True))
            written_ids = settle_jobs([settlement(job, OUTCOME_BY_KIND[kind]) for kind, job in job_by_outcome.items()])
            assert written_ids == {job.pk for job in job_by_outcome.values()}
            for kind, job in job_by_outcome.items():
                job.refresh_from_db()
                assert bool(job.errors) == (kind == "error")
                assert job.last_error == (OUTCOME_BY_KIND[kind].last_error or "")
                assert [bool(job.progress), bool(job.logs)] == [kind == "notes"] * 2
                assert bool(job.operations) == (kind == "snooze")


@WITH_BOTH_WAYS_TO_SETTLE
def test_an_empty_reason_replaces_the_last_error(settle_jobs: SettleFunction) -> None:
    (job,) = claim_new(last_error="ValueError: no")
    settle_jobs([settlement(job, Outcome("discarded", last_error=""))])
    assert state(job)["last_error"] == ""


def test_a_release_counts_no_attempt_and_removes_the_worker_from_the_row() -> None:
    job_before = make_job(attempts=3, lease=9)
    (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    assert store.release([lease_of(job)]) == {job.pk}
    stored = state(job)
    assert stored.pop("lease") == 11  # the claim and the release have each raised it by 1
    assert stored == {name: getattr(job_before, name) for name in stored}


def test_many_jobs_are_released_in_one_statement() -> None:
    running_jobs = claim_new(20)
    with CaptureQueriesContext(connection) as queries:
        assert store.release(map(lease_of, running_jobs)) == {job.pk for job in running_jobs}
    assert len([query for query in queries if "pg_notify" not in query["sql"]]) == 1
    assert store.release([]) == set()


def test_locked_rows_are_found_without_waiting(
    connect: Callable[..., psycopg.Connection[Any]],
) -> None:
    locked_job, free_job, deleted_job, released_job = claim_new(4)
    leases = [lease_of(locked_job), lease_of(free_job), lease_of(deleted_job), lease_of(released_job)]
    Job.objects.filter(pk=deleted_job.pk).delete()
    store.release([lease_of(released_job)])
    with connect(autocommit=False) as other_connection:
        other_connection.execute(
            "SELECT FROM skipqueue_job WHERE id = ANY (%s) FOR UPDATE", [[locked_job.pk, released_job.pk]]
        )
        assert store.locked(leases) == {locked_job.pk}
    assert store.locked(leases) == set()
    assert store.locked([]) == set()


def test_heartbeat_job_changes_only_locked_at() -> None:
    make_job()
    (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    assert job.locked_at is not None
    Job.objects.update(locked_at=job.locked_at - timedelta(hours=1))
    assert store.heartbeat_job(lease_of(job)) is True
    stored = state(job)
    assert stored.pop("locked_at") > job.locked_at
    assert stored == {name: getattr(job, name) for name in stored}


UNSTORABLE_OUTCOMES = {
    "NUL in the result": Outcome("completed", result='"a\\u0000b"'),
    "NUL in a key of the result": Outcome("completed", result='{"a\\u0000": 1}'),
    "half a surrogate pair": Outcome("completed", result='"\\ud800"'),
    "a result that is not JSON": Outcome("completed", result="{oops"),
    "NaN": Outcome("completed", result="NaN"),
    "an empty result": Outcome("completed", result=" "),
    "a number beyond numeric": Outcome("completed", result="1e200000"),
    "NUL in the last error": Outcome("failed", last_error="a\0b", error={"attempt": 1}),
    "NUL in the error": Outcome("failed", last_error="ab", error={"attempt": 1, "message": "a\0b"}),
    "surrogate in the error": Outcome("failed", error={"attempt": 1, "message": "\ud800"}),
    "a delay for ever": Outcome("scheduled", delay=float("inf")),
    "a delay of nan": Outcome("scheduled", delay=float("nan")),
    "a delay beyond time": Outcome("scheduled", delay=1e300),
    "a delay beyond the calendar": Outcome("scheduled", delay=1e13),
}


@WITH_BOTH_WAYS_TO_SETTLE
def test_an_outcome_that_postgresql_refuses_fails_only_its_own_job(case: Case, settle_jobs: SettleFunction) -> None:
    for name, outcome in UNSTORABLE_OUTCOMES.items():
        with case(name):
            running_jobs = claim_new(4)
            refused_job = running_jobs[1]
            batch = [settlement(job, outcome if job is refused_job else COMPLETED) for job in running_jobs]
            assert settle_jobs(batch) == {job.pk for job in running_jobs}
            assert {state(job)["status"] for job in running_jobs if job is not refused_job} == {"completed"}
            stored = state(refused_job)
            assert stored["status"] == "failed"
            assert stored["last_error"]
            assert stored["errors"][-1]["exception"]
            assert stored["errors"][-1]["message"]
            assert len(stored["errors"]) == 1


DELAY_BEYOND_THE_CALENDAR = Outcome("scheduled", delay=1e12)


def test_a_job_whose_failure_is_refused_as_well_is_left_running_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A trigger or a constraint that the project has added may refuse every update of a row."""
    refused_job, accepted_job = claim_new(2)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE skipqueue_job ADD CONSTRAINT theirs CHECK (id <> {refused_job.pk} OR lease < 2)")
    try:
        assert settle([settlement(refused_job), settlement(accepted_job)]) == {accepted_job.pk}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE skipqueue_job DROP CONSTRAINT theirs")
    assert state(refused_job)["status"] == "running"
    assert f"outcome refused id={refused_job.pk} error=" in caplog.text


@pytest.mark.parametrize("condition", ["result IS NULL", "lease < 2"])  # refuses the outcome, or the failure as well
def test_the_error_of_a_refusal_does_not_quote_the_row(condition: str, caplog: pytest.LogCaptureFixture) -> None:
    (refused_job,) = claim_new(args=["ada", "hunter22hunter22"])
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE skipqueue_job ADD CONSTRAINT theirs CHECK ({condition}) NOT VALID")
    try:
        settle([settlement(refused_job, Outcome("completed", result="1"))])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE skipqueue_job DROP CONSTRAINT theirs")
    stored = state(refused_job)
    everything_written = f"{stored['last_error']} {stored['errors']} {caplog.text}"
    assert "violates check constraint" in everything_written
    assert "hunter22" not in everything_written


@WITH_BOTH_WAYS_TO_SETTLE
def test_an_outcome_with_a_delay_that_cannot_be_stored_fails_its_job(settle_jobs: SettleFunction) -> None:
    refused_job, accepted_job = claim_new(2)
    assert settle_jobs([settlement(refused_job, DELAY_BEYOND_THE_CALENDAR), settlement(accepted_job)]) == {
        refused_job.pk,
        accepted_job.pk,
    }
    assert (state(refused_job)["status"], state(accepted_job)["status"]) == ("failed", "completed")


def test_a_refused_outcome_whose_lease_is_lost_is_dropped() -> None:
    stale_job, live_job = claim_new(2)
    release(stale_job)
    assert settle([settlement(stale_job, Outcome("completed", result="{oops")), settlement(live_job)]) == {live_job.pk}
    assert state(stale_job)["status"] == "queued"


def test_a_refused_outcome_does_not_prevent_the_claim_in_its_round_trip() -> None:
    (refused_job,) = claim_new()
    make_job()
    settled_leases, claimed_jobs = settle_and_claim(
        [settlement(refused_job, Outcome("completed", result="{oops"))],
        queue_names=["default"],
        limit=5,
        worker_id="me",
    )
    assert settled_leases == {lease_of(refused_job)}
    assert len(claimed_jobs) == 1
    assert {job.id for job in claimed_jobs} == set(Job.objects.running().values_list("pk", flat=True))


def test_a_failed_notify_does_not_lose_the_result_of_a_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round trip is committed. A worker that lost its result would hold jobs without knowing it."""
    # QUEUES_OF reads the queues to notify.
    monkeypatch.setattr(statements, "QUEUES_OF", "SELECT 1 / 0 WHERE %(ids)s <> ''")
    (retried_job,) = claim_new()
    waiting_job = make_job(queue_name="other")
    settled_leases, claimed_jobs = settle_and_claim(
        [settlement(retried_job, Outcome("scheduled"))], queue_names=["other"], limit=5, worker_id="me"
    )
    assert settled_leases == {lease_of(retried_job)}
    assert [job.id for job in claimed_jobs] == [waiting_job.pk]


def test_a_refused_outcome_does_not_break_its_transaction() -> None:
    refused_job, accepted_job = claim_new(2)
    with transaction.atomic():
        job_made_before = make_job()
        batch = [settlement(refused_job, Outcome("completed", result='"\\u0000"')), settlement(accepted_job)]
        assert settle(batch) == {refused_job.pk, accepted_job.pk}
        job_made_after = make_job()
    assert [state(job)["status"] for job in (refused_job, accepted_job, job_made_before, job_made_after)] == [
        "failed",
        "completed",
        "queued",
        "queued",
    ]


def test_an_error_that_is_not_about_the_values_is_raised(connect: Callable[..., psycopg.Connection[Any]]) -> None:
    (job,) = claim_new()
    connect(autocommit=False).execute("SELECT FROM skipqueue_job FOR UPDATE")
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
        try:
            with pytest.raises(DatabaseError, match="lock timeout"):
                settle([settlement(job)])
            with pytest.raises(DatabaseError, match="lock timeout"):
                settle_beside_a_claim([settlement(job)])
        finally:
            cursor.execute("RESET lock_timeout")
    assert state(job)["status"] == "running"


def test_the_connection_is_usable_after_a_refused_round_trip() -> None:
    (refused_job,) = claim_new()
    settle_and_claim(
        [settlement(refused_job, Outcome("completed", result="{oops"))],
        queue_names=["default"],
        limit=5,
        worker_id="me",
    )
    assert jobs.noop.defer().pk
    assert len(settle_and_claim([], queue_names=["default"], limit=5, worker_id="me")[1]) == 1


def test_a_failure_of_ten_megabytes_is_settled() -> None:
    (job,) = claim_new()
    error = ValueError("x" * 10_000_000)
    settle([settlement(job, Outcome("failed", error=error_entry(error, attempt=1, worker="w", duration_ms=1)))])
    with connection.cursor() as cursor:
        cursor.execute("SELECT octet_length(errors::text) FROM skipqueue_job")
        assert cursor.fetchone()[0] < 30_000  # the error is shortened


class TestSnoozes:
    def claim_and_snooze(self, job: Job, times: int = 1) -> list[Any]:
        for _ in range(times):
            (running_job,) = store.claim(queue_names=["default"], limit=1, worker_id="web-1/2:0123456789ab")
            assert settle([Settlement(job.pk, running_job.lease, replace(SNOOZE, delay=0))])
        return Job.objects.get(pk=job.pk).operations or []

    def test_snoozes_in_a_row_are_one_entry(self) -> None:
        job = make_job()
        (entry,) = self.claim_and_snooze(job)
        assert entry.items() >= {"verb": "snooze", "by": "web-1/2", "attempts": 1, "times": 1}.items()
        (entry,) = self.claim_and_snooze(job, 3)
        assert entry["times"] == 4
        store.postpone([job.pk], timedelta(days=1), by="ann")
        store.run_now([job.pk], by="ann")
        assert [(record["verb"], record.get("times")) for record in self.claim_and_snooze(job, 2)] == [
            ("snooze", 4),
            ("postpone", None),
            ("run_now", None),
            ("snooze", 2),
        ]

    def test_the_newest_fifty_operations_are_kept(self) -> None:
        fifty_operations = [{"at": "2026-01-01T00:00:00Z", "verb": "retry", "by": str(number)} for number in range(50)]
        job = make_job(operations=fifty_operations)
        operations = self.claim_and_snooze(job)
        assert len(operations) == 50
        assert (operations[0]["by"], operations[-1]["verb"]) == ("1", "snooze"), "the oldest operation, by 0, is gone"
        assert self.claim_and_snooze(job)[0]["by"] == "1", "a second snooze in a row removes no operation"

    def test_a_malformed_operation_in_the_row_does_not_prevent_a_snooze(self, case: Case) -> None:
        malformed_times: list[Any] = ["x", None, {}, 2.5, 1e300]
        for times in malformed_times:
            with case(times=times):
                job = make_job(operations=[{"verb": "snooze", "times": times}])
                assert len(self.claim_and_snooze(job)) == 1

    def test_only_a_snooze_is_recorded_as_an_operation(self, case: Case) -> None:
        for outcome in (COMPLETED, RETRY_LATER, FAILED, DISCARDED, replace(SNOOZE, is_unknown=True)):
            with case(outcome=outcome):
                job = make_job("running")
                assert settle([settlement(job, outcome), settlement(make_job("running"), SNOOZE)])
                assert Job.objects.get(pk=job.pk).operations is None

"""The verbs of operators change many jobs at once, and are recorded in the rows."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job
from django_skipqueue.queue.operate import RETRY
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.part import installed_parts

from ..app.rows import STATUSES, UNFINISHED, WAITING, make_job, multiply, state
from ..app.sessions import Session
from ..harness.processes import statuses
from ..harness.table import Case

store = Store("default")

pytestmark = pytest.mark.django_db

ONE_HOUR = timedelta(hours=1)

ALLOWED_STATUS_BY_VERB = {
    "retry": "failed",
    "discard": "queued",
    "cancel": "running",
    "run_now": "scheduled",
    "postpone": "scheduled",
    "reschedule": "scheduled",
    "change_queue": "queued",
    "change_priority": "scheduled",
}
"""For each verb, a status of a job that allows the verb."""


OPTIONS: dict[str, dict[str, Any]] = {
    "postpone": {"run_after": 2 * ONE_HOUR},
    "reschedule": {"run_after": 2 * ONE_HOUR},
    "change_queue": {"queue_name": "mail"},
    "change_priority": {"priority": 7},
}


def number_of_statements(queries: CaptureQueriesContext) -> int:
    """The number of statements that change jobs. The statements by which parts change their own rows do not count."""
    statements = [query for query in queries if "SAVEPOINT" not in query["sql"]]
    return len(statements) - sum(part.on_operate is not None for part in installed_parts())


def apply_verb(verb: str, ids: Iterable[int], **operator: str) -> dict[int, str]:
    changed: dict[int, str] = getattr(store, verb)(ids, **OPTIONS.get(verb, {}), **operator)
    return changed


def test_an_operation_whose_by_or_reason_is_not_a_string_is_refused(case: Case) -> None:
    values: list[Any] = [5, None, b"ann"]
    for verb, name, value in product(ALLOWED_STATUS_BY_VERB, ["by", "reason"], values):
        with case(verb=verb, name=name, value=value):
            job = make_job(ALLOWED_STATUS_BY_VERB[verb])
            with pytest.raises(InvalidOption, match=f"{name} must be a str, not "):
                apply_verb(verb, [job.pk], **{name: value})
            job.refresh_from_db()
            assert job.status == ALLOWED_STATUS_BY_VERB[verb]


@pytest.mark.parametrize("over", ["x", None, [60]], ids=repr)
def test_a_retry_with_an_invalid_over_is_refused(over: Any) -> None:
    with pytest.raises(InvalidOption, match="over must be a number of seconds or a timedelta, not "):
        store.retry([make_job("failed").pk], over=over)


class TestRetry:
    def test_only_failed_and_discarded_jobs_are_retried(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                assert store.retry([job.pk]).keys() == ({job.pk} if status in ("failed", "discarded") else set())
                assert state(job)["status"] == ("queued" if status in ("failed", "discarded") else status)

    def test_a_retried_job_is_due_at_once_and_keeps_its_history(self) -> None:
        job = make_job(
            "failed", attempts=10, max_attempts=10, lease=20, run_after=-ONE_HOUR, finished_at=-ONE_HOUR,
            last_error="ValueError: no", errors=[{"attempt": 10}], unique_key="k", args=[1], priority=5,
        )  # fmt: skip
        store.retry([job.pk])
        stored = state(job)
        assert (stored["status"], stored["attempts"], stored["lease"], stored["finished_at"]) == ("queued", 0, 21, None)
        assert stored["run_after"] - job.run_after >= ONE_HOUR
        changed_columns = {name for name in stored if stored[name] != getattr(job, name)}
        assert changed_columns == {"status", "attempts", "lease", "run_after", "finished_at", "operations"}
        (claimed_job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
        assert claimed_job.attempts == 1

    def test_a_job_whose_unique_key_another_job_holds_is_not_retried(self) -> None:
        for status in UNFINISHED:
            failed_job = make_job("failed", unique_key=status)
            make_job(status, unique_key=status)
            other_job = make_job("failed")
            assert store.retry([failed_job.pk, other_job.pk]).keys() == {other_job.pk}
            assert state(failed_job)["status"] == "failed"

    def test_a_unique_key_that_only_finished_jobs_have_is_free(self) -> None:
        job = make_job("failed", unique_key="k")
        make_job("completed", unique_key="k")
        assert store.retry([job.pk]).keys() == {job.pk}

    def test_the_newest_of_several_jobs_with_one_key_is_retried(self) -> None:
        older, newer = make_job("failed", unique_key="k"), make_job("failed", unique_key="k")
        newest_discarded = make_job("discarded", unique_key="k")
        completed_job = make_job("completed", unique_key="k")
        with_another_key = make_job("failed", unique_key="another")
        ids = [older.pk, newer.pk, newest_discarded.pk, completed_job.pk, with_another_key.pk]
        assert store.retry(ids).keys() == {newest_discarded.pk, with_another_key.pk}
        assert store.retry(ids).keys() == set()

    def test_ids_may_be_any_iterable_with_unknown_and_repeated_ids(self) -> None:
        job = make_job("failed")
        assert store.retry(iter([job.pk, job.pk, 10**15])).keys() == {job.pk}
        assert store.retry([]).keys() == set()

    def test_many_jobs_are_changed_in_one_statement(self) -> None:
        created_jobs = [make_job("failed", unique_key=str(number)) for number in range(50)]
        with CaptureQueriesContext(connection) as queries:
            assert len(store.retry([job.pk for job in created_jobs])) == 50
        assert number_of_statements(queries) == 1

    def test_a_retry_of_many_jobs_reads_each_job_once(self) -> None:
        multiply(make_job("failed"), 2_999)
        ids = list(Job.objects.values_list("pk", flat=True))
        with connection.cursor() as cursor:
            cursor.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {RETRY}", {"ids": ids, "over": 0, "by": "", "reason": ""}
            )
            ((document,),) = cursor.fetchall()
        assert document[0]["Plan"]["Shared Hit Blocks"] < 30 * len(ids)  # a few pages for each job
        assert set(statuses()) == {"queued"}

    def test_a_retry_in_a_transaction_is_part_of_the_transaction(self) -> None:
        job = make_job("failed")
        with transaction.atomic():
            assert store.retry([job.pk])
            transaction.set_rollback(True)
        assert state(job)["status"] == "failed"


@pytest.mark.django_db
def test_a_retry_restarts_the_grace_period_of_an_unknown_task() -> None:
    job = make_job("failed", unknown_since=Now(), deaths=["w"], metadata={"own": 5})
    store.retry([job.pk])
    job.refresh_from_db()
    assert (job.unknown_since, job.deaths, job.metadata) == (None, None, {"own": 5})


class TestDiscard:
    def test_only_jobs_that_wait_are_discarded(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                allowed = status in WAITING
                assert store.discard([job.pk], reason="not needed").keys() == ({job.pk} if allowed else set())
                stored = state(job)
                if allowed:
                    ending = (stored["status"], stored["last_error"], stored["lease"])
                    assert ending == ("discarded", "not needed", job.lease + 1)
                    assert stored["finished_at"]
                else:
                    assert stored == {name: getattr(job, name) for name in stored}

    def test_a_discarded_job_frees_its_unique_key(self) -> None:
        job = make_job(unique_key="k")
        store.discard([job.pk])
        assert make_job(unique_key="k").pk != job.pk

    def test_ids_may_be_any_iterable_with_unknown_and_repeated_ids(self) -> None:
        job = make_job()
        assert store.discard(iter([job.pk, job.pk, 10**15])).keys() == {job.pk}
        assert store.discard([]).keys() == set()

    def test_many_jobs_are_changed_in_one_statement(self) -> None:
        created_jobs = [make_job() for _ in range(50)]
        with CaptureQueriesContext(connection) as queries:
            assert len(store.discard([job.pk for job in created_jobs])) == 50
        assert number_of_statements(queries) == 1

    def test_a_nul_character_in_the_reason_does_not_stop_a_discard(self) -> None:
        job = make_job()
        assert store.discard([job.pk], reason="a\0b").keys() == {job.pk}


@pytest.mark.django_db(transaction=True)
def test_rows_that_another_session_has_locked_are_skipped(case: Case, connect: Callable[..., Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '5s'")
        for verb, status in ALLOWED_STATUS_BY_VERB.items():
            with case(verb), connect(autocommit=False) as other_connection:
                locked_job, free_job = make_job(status), make_job(status)
                other_connection.execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [locked_job.pk])
                assert apply_verb(verb, [locked_job.pk, free_job.pk]).keys() == {free_job.pk}
        cursor.execute("RESET lock_timeout")


class TestCancel:
    def test_every_job_that_is_not_finished_is_discarded(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status, last_error="before")
                columns_before, is_unfinished = state(job), status in UNFINISHED
                assert store.cancel([job.pk], reason="no\nmore").keys() == ({job.pk} if is_unfinished else set())
                columns_after = state(job)
                if not is_unfinished:
                    assert columns_after == columns_before
                    continue
                ending = (columns_after["status"], columns_after["last_error"], columns_after["lease"])
                assert ending == ("discarded", "no\nmore", job.lease + 1)
                assert columns_after["finished_at"] is not None
                assert columns_after["locked_at"] is None

    def test_cancel_of_a_job_returns_whether_it_was_cancelled(self) -> None:
        job = make_job("running")
        assert job.cancel()
        assert job.status == "discarded"
        assert not job.cancel()

    def test_an_outcome_settled_after_a_cancel_is_not_written(self) -> None:
        job = make_job("running")
        assert store.lost_leases([(job.pk, job.lease)]) == {}
        store.cancel([job.pk], reason="no")
        assert store.settle([Settlement(job.pk, job.lease, COMPLETED)]) == set()
        lost_leases = store.lost_leases([(job.pk, job.lease), (10**12, 1)])  # the second job does not exist
        assert {ref: lease.cancel_reason for ref, lease in lost_leases.items()} == {
            (job.pk, job.lease): "no",
            (10**12, 1): None,
        }

    def test_a_cancelled_job_that_was_retried_has_no_cancel_reason(self) -> None:
        job = make_job("running")
        store.cancel([job.pk])
        store.retry([job.pk])
        [lost_lease] = store.lost_leases([(job.pk, job.lease)]).values()
        assert lost_lease.cancel_reason is None

    def test_a_cancel_is_reported_only_for_the_lease_that_it_ended(self) -> None:
        job = make_job("running", locked_by="dead")
        store.recover(worker_ids=["dead"])
        (claimed_again,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
        store.cancel([job.pk], reason="no")
        lost_leases = store.lost_leases([(job.pk, job.lease), (job.pk, claimed_again.lease)])
        assert lost_leases[job.pk, job.lease].cancel_reason is None
        assert lost_leases[job.pk, claimed_again.lease].cancel_reason == "no"

    def test_a_job_that_was_completed_under_the_lease_was_not_cancelled(self) -> None:
        job = make_job("running")
        store.settle([Settlement(job.pk, job.lease, COMPLETED)])
        [lost_lease] = store.lost_leases([(job.pk, job.lease)]).values()
        assert (lost_lease.is_completed, lost_lease.cancel_reason) == (True, None)


class TestRunNow:
    def test_only_scheduled_jobs_are_run_now(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                assert store.run_now([job.pk]).keys() == ({job.pk} if status == "scheduled" else set())
                assert state(job)["status"] == ("queued" if status == "scheduled" else status)

    def test_a_retry_keeps_its_attempts_and_is_claimed(self) -> None:
        job = make_job("scheduled", attempts=3, lease=7, run_after=ONE_HOUR, errors=[{"attempt": 3}])
        assert store.run_now([job.pk])
        stored = state(job)
        assert {name for name in stored if stored[name] != getattr(job, name)} == {"status", "run_after", "operations"}
        assert job.run_after - stored["run_after"] > 0.9 * ONE_HOUR  # it is due now, an hour earlier
        (claimed_job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
        assert claimed_job.attempts == 4

    def test_run_now_keeps_the_time_of_an_overdue_job(self) -> None:
        job = make_job("scheduled", run_after=-ONE_HOUR)
        store.run_now([job.pk])
        assert state(job)["run_after"] == job.run_after


class TestPostpone:
    def test_only_jobs_that_wait_are_postponed(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                allowed = status in WAITING
                assert store.postpone([job.pk], 2 * ONE_HOUR).keys() == ({job.pk} if allowed else set())
                assert state(job)["status"] == ("scheduled" if allowed else status)

    def test_a_delay_is_counted_from_now_by_the_databases_clock(self) -> None:
        job = make_job(run_after=-ONE_HOUR)
        store.postpone([job.pk], ONE_HOUR)
        (operation,) = (stored := state(job))["operations"]
        assert stored["run_after"] - datetime.fromisoformat(operation["at"]) == ONE_HOUR
        assert {name for name in stored if stored[name] != getattr(job, name)} == {"status", "run_after", "operations"}

    def test_a_job_is_postponed_to_a_datetime(self) -> None:
        job = make_job("scheduled")
        until = datetime(2100, 1, 1, tzinfo=UTC)
        assert job.postpone(until)
        assert (job.status, state(job)["run_after"]) == ("scheduled", until)

    def test_a_postpone_never_makes_a_job_due_earlier(self) -> None:
        job = make_job("scheduled", run_after=24 * ONE_HOUR)
        assert store.postpone([job.pk], ONE_HOUR).keys() == set()
        assert state(job) == {name: getattr(job, name) for name in state(job)}


class TestReschedule:
    def test_only_jobs_that_wait_are_rescheduled(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                assert store.reschedule([job.pk], 2 * ONE_HOUR).keys() == ({job.pk} if status in WAITING else set())

    def test_the_new_time_may_be_earlier_or_later_and_the_job_passes_the_gates_again(self, case: Case) -> None:
        for hours, status in {48: "scheduled", 2: "scheduled", -2: "queued"}.items():
            with case(hours=hours):
                job = make_job("scheduled", run_after=24 * ONE_HOUR, attempts=2)
                assert store.reschedule([job.pk], hours * ONE_HOUR) == {job.pk: status}
                (operation,) = (stored := state(job))["operations"]
                assert stored["run_after"] - datetime.fromisoformat(operation["at"]) == hours * ONE_HOUR
                assert datetime.fromisoformat(operation["from"]) == job.run_after
                assert datetime.fromisoformat(operation["to"]) == stored["run_after"]
                changed_columns = {"run_after", "operations"} | ({"status"} if status == "queued" else set())
                assert {name for name in stored if stored[name] != getattr(job, name)} == changed_columns


class TestChanges:
    def test_only_waiting_jobs_are_changed_and_only_if_the_value_is_new(self, case: Case) -> None:
        for verb, status in product(["change_queue", "change_priority"], STATUSES):
            with case(verb=verb, status=status):
                job = make_job(status)
                [(column, value)] = OPTIONS[verb].items()
                assert apply_verb(verb, [job.pk]) == ({job.pk: status} if status in WAITING else {})
                assert state(job)[column] == (value if status in WAITING else getattr(job, column))
                assert apply_verb(verb, [job.pk]) == {}, "the job already has the value"

    def test_the_old_and_the_new_value_are_recorded(self) -> None:
        job = make_job(priority=3)
        job.change_queue("mail", by="ann")
        job.change_priority(-5, by="ben")
        records = [(record["by"], record["from"], record["to"]) for record in state(job)["operations"]]
        assert records == [("ann", "default", "mail"), ("ben", 3, -5)]
        assert (job.queue_name, job.priority) == ("mail", -5)

    def test_a_moved_job_is_claimed_from_its_new_queue_and_not_from_the_old_one(self) -> None:
        job = make_job()
        job.change_queue("mail")
        assert Job.objects.claim(queue_names=["default"], worker_id="w") == []
        assert Job.objects.claim(queue_names=["mail"], worker_id="w") == [job]

    @pytest.mark.django_db(transaction=True)
    def test_a_job_that_is_being_claimed_is_not_changed(self, session: Callable[[], Session]) -> None:
        job = make_job()
        other_session = session()
        other_session.begin()
        other_session(lambda: Job.objects.claim(queue_names=["default"], worker_id="w"))
        assert apply_verb("change_queue", [job.pk]) == apply_verb("change_priority", [job.pk]) == {}
        other_session.commit()
        assert apply_verb("change_queue", [job.pk]) == {}
        assert state(job)["queue_name"] == "default"


class TestSpread:
    def test_retries_are_spread_over_a_time(self) -> None:
        jobs = [make_job("failed") for _ in range(60)]
        store.retry([job.pk for job in jobs], over=ONE_HOUR)
        rows = [state(job) for job in jobs]
        assert {row["status"] for row in rows} == {"scheduled"}
        delays = [row["run_after"] - datetime.fromisoformat(row["operations"][0]["at"]) for row in rows]
        assert all(timedelta(0) <= delay <= ONE_HOUR for delay in delays)
        assert max(delays) - min(delays) > ONE_HOUR / 2, "by chance, this fails once in 10^16 runs"

    def test_after_a_spread_retry_the_object_has_the_new_status(self) -> None:
        job = make_job("failed")
        assert job.retry(over=60.0)
        assert job.status == state(job)["status"] == "scheduled"


class TestOperations:
    def test_each_verb_is_recorded_in_the_row(self, case: Case) -> None:
        for verb, status in ALLOWED_STATUS_BY_VERB.items():
            with case(verb):
                job = make_job(status, attempts=3)
                assert job.operations is None
                assert apply_verb(verb, [job.pk], by="anna", reason="the shop was down")
                (operation,) = state(job)["operations"]
                assert datetime.fromisoformat(operation.pop("at")).tzinfo
                old_and_new_value = {operation.pop("from", None), operation.pop("to", None)}
                assert operation == {"verb": verb, "by": "anna", "reason": "the shop was down", "attempts": 3}
                assert (None not in old_and_new_value) == (verb in ("reschedule", "change_queue", "change_priority"))

    def test_a_verb_that_changes_nothing_is_not_recorded(self, case: Case) -> None:
        for verb in ALLOWED_STATUS_BY_VERB:
            with case(verb):
                job = make_job("completed")
                assert not apply_verb(verb, [job.pk], by="anna")
                assert state(job)["operations"] is None

    def test_operations_are_in_order_and_have_the_number_of_attempts(self) -> None:
        job = make_job("failed", attempts=10)
        job.retry(by="anna")
        job.postpone(ONE_HOUR, by="ben")
        job.run_now()
        job.cancel("no more", by="cem")
        records = [
            (record["verb"], record["by"], record["reason"], record["attempts"]) for record in state(job)["operations"]
        ]
        assert records == [
            ("retry", "anna", "", 10),
            ("postpone", "ben", "", 0),
            ("run_now", "", "", 0),
            ("cancel", "cem", "no more", 0),
        ]

    def test_the_newest_fifty_operations_are_kept(self, case: Case) -> None:
        for verb, status in ALLOWED_STATUS_BY_VERB.items():
            with case(verb):
                job = make_job(status, operations=[{"verb": "old", "attempts": number} for number in range(50)])
                apply_verb(verb, [job.pk])
                kept_records = state(job)["operations"]
                assert [record["attempts"] for record in kept_records[:-1]] == list(range(1, 50))
                assert kept_records[-1]["verb"] == verb

    def test_a_long_or_unstorable_name_or_reason_is_cut_and_cleaned(self) -> None:
        job = make_job("failed")
        # PostgreSQL stores neither a NUL character nor half of a surrogate pair.
        assert job.retry(by="x" * 1000 + "\0", reason="\udcff\0" + "y" * 1000)
        (operation,) = state(job)["operations"]
        assert len(operation["by"]) == 200
        assert len(operation["reason"]) == 500

    @pytest.mark.parametrize(("verb", "verb_in_error"), [("discard", "Discarded"), ("cancel", "Cancelled")])
    def test_the_last_error_names_who_ended_the_job_and_why(self, verb: str, verb_in_error: str) -> None:
        operator_by_last_error = {
            f"{verb_in_error} by hand.": {},
            f"{verb_in_error} by anna.": {"by": "anna"},
            f"{verb_in_error} by anna: no use": {"by": "anna", "reason": "no use"},
            "no use": {"reason": "no use"},
        }
        for last_error, operator in operator_by_last_error.items():
            job = make_job()
            assert apply_verb(verb, [job.pk], **operator)
            assert state(job)["last_error"] == last_error


class TestKeepErrors:
    """If a job was cancelled while it ran, the error of its attempt is appended to the row."""

    ERROR = {"attempt": 1, "exception": "x.JobCancelled", "message": "it hung", "traceback": "…", "duration_ms": 12.5}
    ENDED = Outcome("failed", last_error="JobCancelled: it hung", error=ERROR)

    def append_error(self, job: Job, outcome: Outcome = ENDED) -> bool:
        return store.append_cancelled_errors([Settlement(job.pk, job.lease, outcome)]) == {job.pk}

    def test_only_the_error_of_the_attempt_is_appended_to_a_cancelled_job(self) -> None:
        job = make_job("running", locked_by="w:0123456789ab")
        job.cancel("it hung")
        columns_before = state(job)
        assert self.append_error(job)
        columns_after = state(job)
        (kept_error,) = columns_after.pop("errors")
        assert kept_error == self.ERROR | {"at": kept_error["at"], "worker_id": "w:0123456789ab"}
        assert columns_after == {name: value for name, value in columns_before.items() if name != "errors"}

    def test_an_error_that_is_sent_twice_is_appended_once(self) -> None:
        job = make_job("running")
        job.cancel()
        assert [self.append_error(job), self.append_error(job)] == [True, False]

    def test_the_last_ten_errors_are_kept(self) -> None:
        job = make_job("running", errors=[{"attempt": number} for number in range(10)])
        job.cancel()
        assert self.append_error(job)
        assert [error["attempt"] for error in state(job)["errors"]] == [*range(1, 10), 1]  # the oldest, 0, is gone

    @pytest.mark.parametrize("last_change", ["retry", "settle", "another attempt", "nothing"])
    def test_no_error_is_appended_unless_the_last_change_of_the_job_is_its_cancel(self, last_change: str) -> None:
        job = make_job("running")
        if last_change == "retry":
            store.cancel([job.pk])
            store.retry([job.pk])
        elif last_change == "settle":
            store.settle([Settlement(job.pk, job.lease, COMPLETED)])
        elif last_change == "another attempt":
            store.recover(worker_ids=["w"])
            Job.objects.claim(queue_names=["default"], limit=1, worker_id="other")
            store.cancel([job.pk])
            Job.objects.update(errors=[])  # remove the error that the recovery has added
        assert not self.append_error(job)
        assert state(job)["errors"] == []

    def test_an_attempt_without_an_error_appends_nothing(self, django_assert_num_queries: Any) -> None:
        job = make_job("running")
        with django_assert_num_queries(0):
            assert not self.append_error(job, COMPLETED)

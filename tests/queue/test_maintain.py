"""`admit`, `recover` and `prune` work in limited batches, by the database's clock."""

import secrets
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.gates import sweep_gates_soon
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import RecoveredJob

from ..app.rows import FINISHED, STATUSES, UNFINISHED, make_job, make_worker, state
from ..app.waiting import within
from ..harness.table import Case

store = Store("default")

pytestmark = pytest.mark.django_db

ONE_HOUR = timedelta(hours=1)
ONE_SECOND = timedelta(seconds=1)


class TestAdmit:
    @pytest.mark.core
    def test_only_scheduled_jobs_are_admitted(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status, run_after=-ONE_SECOND)
                assert store.admit().by_queue == ({"default": 1} if status == "scheduled" else {})
                stored = state(job)
                assert stored.pop("status") == ("queued" if status == "scheduled" else status)
                assert stored == {name: getattr(job, name) for name in stored}, "nothing else changes"

    def test_a_job_that_is_not_due_stays_scheduled(self) -> None:
        make_job("scheduled", run_after=ONE_HOUR)
        assert store.admit().by_queue == {}

    def test_admitted_jobs_are_counted_by_queue(self) -> None:
        for queue in ("mail", "default", "mail"):
            make_job("scheduled", queue_name=queue, run_after=-ONE_HOUR)
        assert store.admit().by_queue == {"mail": 2, "default": 1}

    def test_a_batch_has_a_limit_and_the_most_overdue_go_first(self) -> None:
        created_jobs = [make_job("scheduled", run_after=-ONE_SECOND * number) for number in (1, 4, 2, 3, 5)]
        assert store.admit(limit=2).by_queue == {"default": 2}
        assert set(Job.objects.queued()) == {created_jobs[1], created_jobs[4]}
        assert store.admit(limit=2).by_queue == {"default": 2}
        assert store.admit(limit=2).by_queue == {"default": 1}
        assert store.admit(limit=2).by_queue == {}

    def test_next_due_is_the_time_until_the_next_scheduled_job(self) -> None:
        assert store.next_due() is None
        make_job("queued", run_after=-ONE_HOUR)
        assert store.next_due() is None
        make_job("scheduled", run_after=ONE_HOUR * 2)
        make_job("scheduled", run_after=ONE_HOUR)
        assert 3590 < (store.next_due() or 0) <= 3600
        make_job("scheduled", run_after=-ONE_HOUR)
        assert -3700 < (store.next_due() or 0) <= -3600


class TestRecover:
    @pytest.mark.core
    def test_only_running_jobs_are_recovered(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status, locked_at=-ONE_HOUR, locked_by="gone")
                by_age, by_worker = (store.recover(worker_timeout=60), store.recover(worker_ids=["gone"]))
                assert [recovered_job.id for recovered_job in by_age] == ([job.pk] if status == "running" else [])
                assert by_worker == []

    @pytest.mark.core
    @pytest.mark.parametrize("by", [{"worker_timeout": 60}, {"worker_ids": ["gone"]}], ids=["by age", "by worker"])
    def test_a_recovered_job_is_queued_again_with_its_attempt_charged_and_an_error(self, by: dict[str, Any]) -> None:
        job = make_job(
            "running", locked_at=-ONE_HOUR, locked_by="gone", attempts=2, max_attempts=3, lease=5, queue_name="q"
        )
        (recovered_job,) = store.recover(**by, reason="killed by signal 9")
        assert job.locked_at is not None
        recovered_at = recovered_job.recovered_at
        assert recovered_job == RecoveredJob(
            id=job.pk, task=job.task, queue_name="q", attempt=2, status="queued",
            locked_by="gone", locked_at=job.locked_at, metadata="{}", recovered_at=recovered_at,
        )  # fmt: skip
        assert abs(recovered_at - job.locked_at - ONE_HOUR) < timedelta(minutes=1)
        stored = state(job)
        assert (stored["status"], stored["attempts"], stored["lease"], stored["locked_at"]) == ("queued", 2, 6, None)
        assert (stored["finished_at"], stored["run_after"]) == (None, job.run_after)
        assert stored["last_error"] == "WorkerDied: killed by signal 9"
        (error,) = stored["errors"]
        assert error["duration_ms"] == pytest.approx(3_600_000, rel=0.01)
        assert {
            name: error[name] for name in ("attempt", "worker", "worker_id", "exception", "message", "traceback")
        } == {
            "attempt": 2,
            "worker": "gone",
            "worker_id": "gone",
            "exception": "django_skipqueue.exceptions.WorkerDied",
            "message": "killed by signal 9",
            "traceback": "",
        }
        assert error["at"]

    def test_the_error_names_the_worker_where_its_row_is_still_there(self) -> None:
        worker = make_worker(name="web-1", heartbeat=-ONE_HOUR)
        job = make_job("running", locked_at=-ONE_HOUR, locked_by=str(worker.pk))
        store.recover(worker_timeout=60)
        assert state(job)["errors"][0]["worker"] == "web-1"

    @pytest.mark.core
    def test_a_job_recovered_in_its_last_attempt_fails(self) -> None:
        job = make_job("running", locked_at=-ONE_HOUR, attempts=3, max_attempts=3)
        (recovered_job,) = store.recover(worker_timeout=60)
        stored = state(job)
        assert recovered_job.status == stored["status"] == "failed"
        assert stored["finished_at"]
        assert stored["lease"] == job.lease + 1

    def test_after_a_second_death_in_a_row_a_job_waits_for_up_to_half_a_minute(self) -> None:
        created_jobs = [make_job("running", attempts=2, deaths=["first"], locked_by="gone") for _ in range(20)]
        recovered_jobs = store.recover(worker_ids=["gone"])
        assert {job.status for job in recovered_jobs} == {"scheduled"}
        due_times = {Job.objects.get(pk=job.pk).run_after for job in created_jobs}
        assert len(due_times) == 20, "each job waits for another time"
        assert all(timedelta(0) < due_time - now() + ONE_SECOND < timedelta(seconds=31) for due_time in due_times)

    def test_at_the_third_death_in_a_row_a_job_fails_whatever_its_attempts(self) -> None:
        job = make_job("running", attempts=3, max_attempts=100, deaths=["first", "second"], locked_by="gone")
        (recovered_job,) = store.recover(worker_ids=["gone"], reason="worker died: signal 9 (SIGKILL)")
        stored = state(job)
        assert recovered_job.status == stored["status"] == "failed"
        assert stored["finished_at"] is not None
        message = "worker died: signal 9 (SIGKILL); three workers in a row died while they ran this job, "
        assert stored["last_error"] == f"WorkerDied: {message}so it is not run again"
        assert stored["errors"][-1]["message"].startswith(message)

    def test_the_worker_of_the_first_death_is_recorded(self) -> None:
        job = make_job("running", attempts=3, errors=[{"attempt": 2, "exception": "ValueError"}], locked_by="gone")
        assert [recovered_job.status for recovered_job in store.recover(worker_ids=["gone"])] == ["queued"]
        assert state(job)["deaths"] == ["gone"]

    @pytest.mark.parametrize("deaths", [["alive"], ["alive", "dead"], ["dead", "alive"]], ids=str)
    def test_a_worker_that_loses_the_same_job_several_times_counts_as_one_death(self, deaths: list[str]) -> None:
        """The worker is alive, so the job has not killed it several times."""
        job = make_job("running", attempts=6, deaths=deaths, locked_by="alive")
        store.recover(worker_ids=["alive"])
        stored = state(job)
        assert (stored["deaths"], stored["status"]) == (deaths, "queued" if len(deaths) == 1 else "scheduled")

    def test_a_manual_retry_forgets_the_deaths_before_it(self) -> None:
        job = make_job("failed", attempts=3, deaths=["a", "b", "c"])
        for number, expected in enumerate(("queued", "scheduled", "failed")):  # after its first, second, third death
            if job.status == "failed":
                assert store.retry([job.pk])
            Job.objects.filter(pk=job.pk).update(status="queued")
            Job.objects.claim(queue_names=["default"], worker_id=f"gone {number}")
            (recovered_job,) = store.recover(worker_ids=[f"gone {number}"])
            assert recovered_job.status == expected
            job.refresh_from_db()

    def test_only_the_last_ten_errors_of_a_job_are_kept(self) -> None:
        job = make_job("running", locked_at=-ONE_HOUR, errors=[{"attempt": number} for number in range(10)])
        store.recover(worker_timeout=60)
        errors = state(job)["errors"]
        assert [error["attempt"] for error in errors] == [*range(1, 10), 1]  # the oldest, 0, is gone

    def test_a_worker_that_is_alive_keeps_its_jobs_however_old_they_are(self) -> None:
        worker = make_worker(heartbeat=-30 * ONE_SECOND)
        make_job("running", locked_at=-1000 * ONE_HOUR, locked_by=str(worker.pk))
        assert store.recover(worker_timeout=60) == []
        assert len(store.recover(worker_timeout=29)) == 1

    @pytest.mark.core
    def test_a_worker_without_a_heartbeat_loses_its_jobs_after_the_worker_timeout(self) -> None:
        stale, live = make_worker(heartbeat=-61 * ONE_SECOND), make_worker(heartbeat=-30 * ONE_SECOND)
        lost_job = make_job("running", locked_at=-ONE_HOUR, locked_by=str(stale.pk))
        make_job("running", locked_at=-ONE_HOUR, locked_by=str(live.pk))
        assert [recovered_job.id for recovered_job in store.recover(worker_timeout=60)] == [lost_job.pk]

    def test_a_carrier_keeps_its_jobs_however_old_its_heartbeat_is(self) -> None:
        """The jobs of a carrier run even if all its relays are gone."""
        carrier = make_worker(heartbeat=-ONE_HOUR, is_external=True)
        make_job("running", locked_at=-ONE_HOUR, locked_by=carrier.pk)
        assert store.recover(worker_timeout=60) == []
        assert store.recover_without_worker(locked_before=now()) == []
        Worker.objects.update(is_external=False)  # as if the carrier were a common worker
        assert len(store.recover(worker_timeout=60)) == 1

    def test_a_job_that_was_just_claimed_is_not_recovered_even_if_its_worker_has_no_row_yet(self) -> None:
        make_job("running", locked_at=-59 * ONE_SECOND, locked_by="gone:0123456789ab")
        assert store.recover(worker_timeout=60) == []
        assert len(store.recover(worker_timeout=58)) == 1

    def test_a_loop_written_by_hand_keeps_its_job_by_its_own_heartbeat(self) -> None:
        job = make_job("running", locked_at=-ONE_HOUR, locked_by="by hand")
        assert store.heartbeat_job((job.pk, job.lease))
        assert store.recover(worker_timeout=60) == []
        Job.objects.update(locked_at=job.locked_at)  # as if there had been no heartbeat
        assert len(store.recover(worker_timeout=60)) == 1

    def test_jobs_of_a_process_without_a_row_are_recovered_if_it_was_silent_since_a_time(self) -> None:
        """Jobs of a worker with a row are not recovered, even if its heartbeat is older than this time."""
        worker = make_worker(heartbeat=-ONE_HOUR)
        make_job("running", locked_at=-ONE_HOUR, locked_by=worker.pk)
        lost_job = make_job("running", locked_at=-61 * ONE_SECOND, locked_by="by hand")
        make_job("running", locked_at=-59 * ONE_SECOND, locked_by="by hand")
        recovered_jobs = store.recover_without_worker(locked_before=now() - 60 * ONE_SECOND)
        assert [job.id for job in recovered_jobs] == [lost_job.pk]

    def test_recover_takes_all_jobs_of_the_named_workers_and_no_other_jobs(self) -> None:
        dead_worker, live_worker = make_worker(), make_worker()
        lost_jobs = [make_job("running", locked_by=str(dead_worker.pk)) for _ in range(3)]
        make_job("running", locked_by=str(live_worker.pk), locked_at=-ONE_HOUR)
        assert [recovered_job.id for recovered_job in store.recover(worker_ids=[str(dead_worker.pk)])] == [
            job.pk for job in lost_jobs
        ]
        assert store.recover(worker_ids=[]) == []

    def test_the_worker_timeout_is_a_setting(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"WORKER_TIMEOUT": 5000}
        make_job("running", locked_at=-ONE_HOUR)
        assert store.recover() == []
        settings.SKIPQUEUE = {"WORKER_TIMEOUT": 3000}
        assert len(store.recover()) == 1

    def test_a_batch_has_a_limit_and_the_oldest_go_first(self) -> None:
        created_jobs = [make_job("running", locked_at=-ONE_HOUR * number) for number in (1, 4, 2, 3)]
        assert {recovered_job.id for recovered_job in store.recover(worker_timeout=60, limit=2)} == {
            created_jobs[1].pk,
            created_jobs[3].pk,
        }
        assert len(store.recover(worker_timeout=60, limit=2)) == 2
        assert store.recover(worker_timeout=60, limit=2) == []

    def test_a_nul_character_in_the_reason_does_not_stop_a_recovery(self) -> None:
        make_job("running", locked_at=-ONE_HOUR)
        assert len(store.recover(worker_timeout=60, reason="a\0b")) == 1


class TestPrune:
    @pytest.fixture
    def set_retention(self, settings: Any) -> Callable[..., None]:
        def set_retention(**retention: Any) -> None:
            settings.SKIPQUEUE = {"RETENTION": retention}

        return set_retention

    @pytest.mark.core
    def test_only_finished_jobs_are_pruned(self, set_retention: Callable[..., None], case: Case) -> None:
        for status in STATUSES:
            with case(status):
                set_retention(completed=0, failed=0, discarded=0)
                make_job(status)
                assert store.prune() == ({status: 1} if status in FINISHED else {})
                assert Job.objects.count() == (status not in FINISHED)

    @pytest.mark.core
    def test_each_status_has_a_retention_of_its_own(self, set_retention: Callable[..., None], case: Case) -> None:
        # Each status has three jobs, which finished 2 hours ago, 30 minutes ago and now.
        retentions_and_remaining_counts: list[tuple[Any, int]] = [
            (None, 3),
            (0, 0),
            (3600, 2),
            (5400.5, 2),
            (timedelta(hours=3), 3),
            (timedelta(minutes=1), 1),
        ]
        for status, (retention, remaining_count) in product(FINISHED, retentions_and_remaining_counts):
            with case(status=status, retention=retention, remaining_count=remaining_count):
                set_retention(**({"completed": None, "failed": None, "discarded": None} | {status: retention}))
                for finished_status in FINISHED:
                    for age in (ONE_HOUR * 2, timedelta(minutes=30), timedelta(0)):
                        make_job(finished_status, finished_at=-age)
                assert store.prune() == ({status: 3 - remaining_count} if remaining_count < 3 else {})
                assert Job.objects.filter(status=status).count() == remaining_count
                assert Job.objects.exclude(status=status).count() == 6

    def test_the_default_retentions_are_a_day_a_week_and_a_month(self) -> None:
        for status, days in (("completed", 1), ("discarded", 7), ("failed", 30)):
            make_job(status, finished_at=-timedelta(days=days) - ONE_HOUR)
            make_job(status, finished_at=-timedelta(days=days) + ONE_HOUR)
        assert store.prune() == {"completed": 1, "discarded": 1, "failed": 1}
        assert Job.objects.count() == 3

    def test_a_batch_has_a_limit_and_the_oldest_go_first(self, set_retention: Callable[..., None]) -> None:
        set_retention(completed=0)
        created_jobs = [make_job("completed", finished_at=-ONE_HOUR * number) for number in (1, 4, 2, 3)]
        assert store.prune(limit=2) == {"completed": 2}
        assert set(Job.objects.all()) == {created_jobs[0], created_jobs[2]}

    def test_the_limit_holds_over_all_statuses_together(self, set_retention: Callable[..., None]) -> None:
        set_retention(completed=0, failed=0, discarded=0)
        for status in FINISHED * 3:
            make_job(status)
        assert sum(store.prune(limit=4).values()) == 4
        assert sum(store.prune(limit=4).values()) == 4
        assert sum(store.prune(limit=4).values()) == 1
        assert store.prune(limit=4) == {}


class TestRetentionOfItsOwn:
    """A job may be kept for a shorter time than its status says."""

    def test_a_job_is_deleted_when_its_own_retention_is_over(self, db: None, case: Case) -> None:
        for status in FINISHED:
            with case(status):
                own_retention = {status: 60}
                expired_job = make_job(status, finished_at=timedelta(seconds=-61), retention=own_retention)
                kept_job = make_job(status, finished_at=timedelta(seconds=-50), retention=own_retention)
                job_without_retention = make_job(status, finished_at=timedelta(seconds=-61))
                assert store.prune() == {status: 1}
                assert set(Job.objects.values_list("pk", flat=True)) == {kept_job.pk, job_without_retention.pk}
                assert expired_job.pk not in {kept_job.pk, job_without_retention.pk}

    def test_a_status_without_its_own_retention_keeps_the_setting(self, db: None) -> None:
        make_job("failed", finished_at=timedelta(days=-3), retention={"completed": 60})
        assert store.prune() == {}
        make_job("failed", finished_at=timedelta(days=-400), retention={"completed": 60})
        assert store.prune() == {"failed": 1}

    def test_a_job_that_is_not_finished_is_kept(self, db: None, case: Case) -> None:
        for status in UNFINISHED:
            with case(status):
                make_job(status, retention={"completed": 0, "failed": 0, "discarded": 0})
                assert store.prune() == {}

    def test_the_time_zone_of_the_session_does_not_change_a_jobs_retention(self, db: None) -> None:
        make_job("completed", finished_at=timedelta(seconds=-50), retention={"completed": 60})
        make_job("completed", finished_at=timedelta(seconds=-70), retention={"completed": 60})
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL TIME ZONE 'Pacific/Kiritimati'")
        assert store.prune() == {"completed": 1}


class TestPruneLag:
    """`prune_lag`: the seconds for which the next job to delete has been past its retention."""

    def test_without_jobs_to_prune_there_is_no_lag(self) -> None:
        make_job("queued")
        make_job("completed", finished_at=-ONE_HOUR)
        assert store.prune_lag() == 0.0

    def test_the_lag_is_the_largest_lag_of_any_status(self) -> None:
        make_job("completed", finished_at=timedelta(days=-1, hours=-3))
        make_job("completed", finished_at=timedelta(days=-1, hours=-2))
        make_job("failed", finished_at=timedelta(days=-30, hours=-1))
        assert store.prune_lag() == pytest.approx(3 * 3600, abs=60)

    def test_a_status_that_is_kept_for_ever_is_never_behind(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": None}}
        make_job("completed", finished_at=timedelta(days=-1000))
        assert store.prune_lag() == 0.0

    def test_the_lag_includes_jobs_with_their_own_retention(self) -> None:
        make_job("completed", finished_at=-ONE_HOUR, retention={"completed": 60})
        make_job("failed", finished_at=-ONE_HOUR, retention={"completed": 60})
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL TIME ZONE 'Pacific/Kiritimati'")
        assert store.prune_lag() == pytest.approx(3540, abs=60)

    def test_after_a_prune_there_is_no_lag(self) -> None:
        make_job("failed", finished_at=timedelta(days=-31))
        assert store.prune_lag() == pytest.approx(86_400, abs=60)
        assert store.prune() == {"failed": 1}
        assert store.prune_lag() == 0.0


@pytest.mark.parametrize(("verb", "at_most"), [("admit", 6), ("recover", 1), ("prune", 2), ("next_due", 7)])
def test_admit_recover_and_prune_send_only_a_few_statements_each(verb: str, at_most: int, settings: Any) -> None:
    """An admission sends one statement for each gate, or two if it checks all keys. A prune locks, then deletes."""
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    store.admit()  # finish a sweep that another test may have left unfinished
    sweep_gates_soon(store)
    make_job("scheduled", run_after=-ONE_HOUR)
    make_job("running", locked_at=-ONE_HOUR)
    make_job("completed")
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        assert getattr(store, verb)()
    statements = [query for query in queries if "SAVEPOINT" not in query["sql"]]
    assert 0 < len(statements) <= at_most


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["admit", "recover", "prune"])
def test_rows_that_another_session_has_locked_are_skipped(
    verb: str, connect: Callable[..., Any], settings: Any
) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    status = {"admit": "scheduled", "recover": "running", "prune": "completed"}[verb]
    locked_job, free_job = (make_job(status, run_after=-ONE_HOUR, locked_at=-ONE_HOUR) for _ in range(2))
    connect(autocommit=False).execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [locked_job.pk])
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '5s'")
        assert getattr(store, verb)()
        cursor.execute("RESET lock_timeout")
    assert Job.objects.get(pk=locked_job.pk).status == status
    assert not Job.objects.filter(pk=free_job.pk, status=status).exists()


@pytest.mark.django_db(transaction=True)
def test_a_locked_job_does_not_stop_the_pruning_of_other_jobs_with_their_own_retention(
    connect: Callable[..., Any],
) -> None:
    locked_job, _free_job = (make_job("completed", finished_at=-ONE_HOUR, retention={"completed": 1}) for _ in range(2))
    connect(autocommit=False).execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [locked_job.pk])
    with within(10):
        assert store.prune() == {"completed": 1}
    assert list(Job.objects.all()) == [locked_job]


class TestWorkers:
    @staticmethod
    def worker_columns(**changes: Any) -> dict[str, Any]:
        return {
            "id": f"web-1:{secrets.token_hex(6)}",
            "name": "web-1",
            "hostname": "host",
            "pid": 42,
            "queues": ["mail", "default"],
            "concurrency": 4,
            "deployment": "4f2a",
        } | changes

    def test_the_first_heartbeat_makes_the_row(self) -> None:
        columns = self.worker_columns()
        store.heartbeat_workers([columns])
        row = state(Worker.objects.get())
        assert {name: row[name] for name in columns} == columns
        assert row["started_at"] == row["heartbeat_at"]

    def test_a_later_heartbeat_changes_only_the_time(self) -> None:
        columns = self.worker_columns()
        worker = make_worker(id=columns["id"], heartbeat=-ONE_HOUR, started_at=now() - ONE_HOUR)
        columns_before = state(worker)
        store.heartbeat_workers([columns])
        columns_after = state(Worker.objects.get())
        assert columns_after.pop("heartbeat_at") - columns_before.pop("heartbeat_at") >= ONE_HOUR
        assert columns_after == columns_before

    def test_heartbeats_of_many_workers_are_one_statement(self) -> None:
        columns = [self.worker_columns() for _ in range(5)]
        with CaptureQueriesContext(connection) as queries:
            store.heartbeat_workers(columns)
        assert len(queries) == 1
        assert Worker.objects.count() == 5

    def test_the_row_of_a_carrier_says_what_the_settings_say_now(self) -> None:
        columns = self.worker_columns() | {"is_external": True}
        store.heartbeat_workers([columns])
        assert state(Worker.objects.get())["is_external"]
        changes = {"queues": ["pdf"], "concurrency": 2_000}
        store.heartbeat_workers([columns | changes])
        row = state(Worker.objects.get())
        assert {name: row[name] for name in columns} == columns | changes

    def test_the_row_of_a_worker_is_not_marked_as_a_carrier(self) -> None:
        store.heartbeat_workers([self.worker_columns()])
        assert not Worker.objects.get().is_external

    def test_an_empty_list_of_heartbeats_writes_nothing(self) -> None:
        store.heartbeat_workers([])
        assert not Worker.objects.exists()

    def test_a_stopped_worker_is_removed(self) -> None:
        stopped_worker, other_worker = make_worker(), make_worker()
        store.delete_workers([str(stopped_worker.pk)])
        assert list(Worker.objects.all()) == [other_worker]

    def test_a_dead_worker_is_forgotten_once_it_holds_no_job(self) -> None:
        dead_worker, live_worker = make_worker(heartbeat=-ONE_HOUR), make_worker()
        job = make_job("running", locked_by=str(dead_worker.pk), locked_at=-ONE_HOUR)
        store.prune_workers([dead_worker.pk, live_worker.pk], age=60)
        assert Worker.objects.count() == 2, "the dead worker still holds a job"
        store.recover(worker_ids=[job.locked_by])
        store.prune_workers([live_worker.pk], age=60)
        assert Worker.objects.count() == 2, "the dead worker is not named in the call"
        store.prune_workers([dead_worker.pk, live_worker.pk], age=60)
        assert list(Worker.objects.all()) == [live_worker]

    def test_a_carrier_is_never_forgotten(self) -> None:
        carrier, dead_worker = make_worker(heartbeat=-ONE_HOUR, is_external=True), make_worker(heartbeat=-ONE_HOUR)
        store.prune_workers([carrier.pk, dead_worker.pk], age=60)
        assert list(Worker.objects.all()) == [carrier]

    def test_heartbeat_worker_returns_the_previous_and_the_new_heartbeat(self) -> None:
        worker = make_worker(heartbeat=-ONE_HOUR)
        previous_heartbeat, new_heartbeat, _ = store.heartbeat_worker(worker.pk) or (None, None, None)
        assert previous_heartbeat == worker.heartbeat_at
        worker.refresh_from_db()
        assert new_heartbeat == worker.heartbeat_at
        assert store.heartbeat_worker("gone:0123456789ab") is None

    def test_heartbeats_come_with_the_databases_time(self) -> None:
        assert store.heartbeats()[1] == {}
        worker = make_worker(heartbeat=-ONE_HOUR)
        database_time, heartbeats = store.heartbeats()
        assert heartbeats == {worker.pk: worker.heartbeat_at}
        assert database_time - worker.heartbeat_at >= ONE_HOUR

    def test_the_heartbeats_of_carriers_are_left_out(self) -> None:
        make_worker(is_external=True)
        _, heartbeats = store.heartbeats()
        assert heartbeats == {}

    def test_live_workers_are_found_by_the_databases_clock(self, settings: Any) -> None:
        make_worker(heartbeat=-61 * ONE_SECOND)
        fresh = make_worker(heartbeat=-30 * ONE_SECOND)
        assert list(Worker.objects.live()) == [fresh]
        assert list(Worker.objects.live(worker_timeout=29)) == []
        settings.SKIPQUEUE = {"WORKER_TIMEOUT": 3600}
        assert Worker.objects.live().count() == 2

"""An exchange settles and claims jobs. Even if exchanges with the database time out, all jobs are settled."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.worker import claiming, own_connections
from django_skipqueue.worker import control_connection as control
from django_skipqueue.worker import outcomes as slow_outcomes
from django_skipqueue.worker.in_flight import InFlightJobs

from ..app import jobs, worker_jobs
from ..app.rows import make_job
from ..app.waiting import DEADLINE, wait_until
from ..harness.processes import statuses, wait_for_statuses
from ..harness.threads import WorkerThread

StartWorker = Callable[..., WorkerThread]
HOUR = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def short_timeouts(worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short timeouts, so that PostgreSQL cancels slow statements soon."""
    monkeypatch.setattr(own_connections, "TIMEOUTS", "-c statement_timeout=400ms -c lock_timeout=300ms")
    monkeypatch.setattr(control, "LONGEST_REOPEN_DELAY", 0.1)
    monkeypatch.setattr(slow_outcomes, "FIRST_SLOW_DELAY", 0.2)
    monkeypatch.setattr(slow_outcomes, "LONGEST_SLOW_DELAY", 0.4)
    monkeypatch.setattr(claiming, "FIRST_FRONT_PAUSE", 0.2)


@pytest.fixture
def slow_updates(short_timeouts: None) -> Iterator[Callable[[str, str], None]]:
    """Make a trigger that sleeps for some seconds in each UPDATE of a row for which a condition on NEW is true."""
    with connection.cursor() as cursor:

        def make_trigger(condition: str, seconds: str) -> None:
            cursor.execute(
                f"CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$"
            )
            cursor.execute(
                "CREATE TRIGGER be_slow BEFORE UPDATE ON skipqueue_job "
                f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION be_slow()"
            )

        yield make_trigger
        cursor.execute("DROP FUNCTION be_slow CASCADE")


# Slow settlements


def test_many_large_results_are_saved_despite_a_short_statement_timeout(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_connections, "TIMEOUTS", "-c statement_timeout=150ms")
    jobs.noop.using(priority=1).defer_many([()] * 500)
    worker_jobs.return_long.defer_many([(900_000,)] * 24)
    worker_thread(drain=True)
    wait_for_statuses(completed=524, deadline=4 * DEADLINE)


def test_outcomes_that_take_too_long_together_are_saved_in_parts(
    worker_thread: StartWorker, slow_updates: Callable[[str, str], None]
) -> None:
    slow_updates("NEW.status = 'completed' AND NEW.task LIKE '%.return_long'", "0.03")
    jobs.noop.using(priority=1).defer_many([()] * 500)
    worker_jobs.return_long.defer_many([(1000,)] * 60)
    worker_thread(drain=True)
    wait_for_statuses(completed=560, deadline=4 * DEADLINE)


def test_only_the_job_whose_result_is_too_slow_to_save_fails_and_its_error_says_so(
    worker_thread: StartWorker, slow_updates: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    slow_updates("length(NEW.result::text) > 100000", "60")
    large_job = worker_jobs.return_long.defer(200_000)
    jobs.noop.defer_many([()] * 20)
    worker_thread()
    for number in range(1_000):
        if Job.objects.failed().exists():
            break
        job = jobs.noop.defer()
        wait_until(lambda job=job: Job.objects.completed().filter(pk=job.pk).exists(), f"job {number} is done")  # type: ignore[misc]
    large_job.refresh_from_db()
    assert (large_job.status, large_job.attempts) == ("failed", 1)
    assert "did not write this outcome of 200,002 characters in time" in large_job.last_error
    assert f"id={large_job.pk} " in caplog.text
    assert set(statuses()) == {"completed", "failed"}


def test_a_small_outcome_that_takes_too_long_is_tried_until_it_is_saved(
    worker_thread: StartWorker, slow_updates: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    slow_updates("NEW.status = 'completed' AND NEW.task LIKE '%.echo'", "60")
    small_job = jobs.echo.defer("small")
    worker_thread()
    wait_until(lambda: caplog.text.count("outcome slow") == 1)
    for _ in range(10):
        job = jobs.noop.defer()
        wait_until(lambda job=job: Job.objects.completed().filter(pk=job.pk).exists())  # type: ignore[misc]
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER be_slow ON skipqueue_job")
    wait_until(lambda: Job.objects.completed().filter(pk=small_job.pk).exists())


def test_outcomes_are_saved_although_claims_and_the_search_for_jobs_time_out(
    worker_thread: StartWorker, slow_updates: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, gates: Any
) -> None:
    def sleep_for_a_minute(*_: object, **__: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr("django_skipqueue.worker.exchange.first_in_queues", sleep_for_a_minute)
    slow_updates("NEW.status = 'running' AND NEW.task LIKE '%.echo'", "60")
    worker_jobs.pass_gate.defer_many([("first",), ("second",)])
    worker = worker_thread(concurrency=3, poll_interval=0.1)
    wait_until(lambda: gates["first"].inside == gates["second"].inside == 1)
    jobs.echo.defer("poison")
    wait_until(lambda: worker.worker.in_flight.claiming.lost is not None, "the claim of the slow job has timed out")
    gates["first"].open()
    wait_until(lambda: Job.objects.completed().count() == 1)
    gates["second"].open()
    wait_until(lambda: Job.objects.completed().count() == 2)


def test_a_slow_orphan_check_does_not_stop_claims_and_outcomes(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep_for_a_minute(*_: object, **__: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr(Store, "release_orphans", sleep_for_a_minute)
    worker = worker_thread(poll_interval=0.1)
    worker.cut()
    jobs.noop.defer()
    wait_for_statuses(completed=1)


# Slow claims


def test_jobs_that_take_too_long_to_claim_together_are_claimed_in_parts(
    worker_thread: StartWorker, slow_updates: Callable[[str, str], None]
) -> None:
    slow_updates("NEW.status = 'running'", "0.05")
    jobs.noop.defer_many([()] * 60)
    worker_thread(concurrency=30)
    wait_for_statuses(completed=60, deadline=4 * DEADLINE)


@pytest.mark.parametrize("queue_names", [(), ("default",)])
def test_a_job_that_takes_too_long_to_claim_stays_queued_and_others_run(
    worker_thread: StartWorker,
    slow_updates: Callable[[str, str], None],
    caplog: pytest.LogCaptureFixture,
    queue_names: tuple[str, ...],
) -> None:
    slow_updates("NEW.status = 'running' AND NEW.task LIKE '%.echo'", "60")
    unclaimable_job = jobs.echo.defer("poison")
    jobs.noop.defer_many([()] * 200)
    worker_thread(poll_interval=0.1, queue_names=queue_names)
    wait_for_statuses(completed=200, queued=1, deadline=4 * DEADLINE)
    assert f"id={unclaimable_job.pk} " in caplog.text
    assert "job not claimed" in caplog.text


@pytest.fixture
def held_characters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which each claim adds the number of characters in the arguments of all jobs that the worker holds."""
    character_counts: list[int] = []
    take = InFlightJobs.take

    def take_and_record(self: InFlightJobs, *arguments: Any) -> None:
        take(self, *arguments)
        character_counts.append(sum(len(job.args) for job in self.jobs.values()))

    monkeypatch.setattr(InFlightJobs, "take", take_and_record)
    return character_counts


def test_a_worker_claims_only_as_many_large_jobs_as_its_memory_limit_allows(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch, held_characters: list[int]
) -> None:
    monkeypatch.setattr(own_connections, "TIMEOUTS", "-c statement_timeout=8s")
    monkeypatch.setattr(claiming, "MOST_CHARACTERS_HELD", 10_000_000)
    jobs.noop.using(priority=1).defer_many([()] * 1_000)
    jobs.echo_length.defer_many([(random.randbytes(450_000).hex(),) for _ in range(60)])
    worker_thread(drain=True)
    wait_for_statuses(completed=1_060, deadline=4 * DEADLINE)
    assert 900_000 < max(held_characters) < 20_000_000  # at least one large job, and not all 60


def test_a_job_with_huge_arguments_among_small_ones_delays_none_of_them(
    worker_thread: StartWorker, held_characters: list[int]
) -> None:
    huge = random.randbytes(2_500_000).hex()  # five million characters
    for number in range(60):
        make_job(task=jobs.echo_length.name, args=[huge if number == 30 else ""])
    worker_thread(drain=True)
    wait_for_statuses(completed=60, deadline=4 * DEADLINE)
    assert max(held_characters) > len(huge)  # the huge job was claimed as well


DELETED_ROWS = 400_000


@pytest.mark.parametrize("queue_names", [(), ("default",)])
def test_2000_jobs_behind_400000_deleted_rows_are_claimed_despite_a_short_timeout(
    worker_thread: StartWorker,
    connect: Callable[[], psycopg.Connection[Any]],
    monkeypatch: pytest.MonkeyPatch,
    queue_names: tuple[str, ...],
) -> None:
    """While a session has an old snapshot open, the index keeps the entries of deleted rows, so a search is slow."""
    monkeypatch.setattr(own_connections, "TIMEOUTS", "-c statement_timeout=80ms")
    session_with_old_snapshot = connect()
    session_with_old_snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    session_with_old_snapshot.execute("SELECT count(*) FROM skipqueue_job")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, priority, max_attempts, run_after) "
            "SELECT 'default', 't', '[]', '{}', 'queued', 0, 1, now() - interval '1 hour' FROM generate_series(1, %s)",
            [DELETED_ROWS],
        )
        cursor.execute("DELETE FROM skipqueue_job")
    jobs.noop.defer_many([()] * 2_000)
    worker_thread(poll_interval=0.5, queue_names=queue_names)
    wait_for_statuses(completed=2_000, deadline=4 * DEADLINE)
    session_with_old_snapshot.execute("COMMIT")


def test_jobs_claimed_in_an_exchange_are_run_although_the_next_statement_fails(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an exchange, the worker may tell PostgreSQL to plan its statements again. In this test, this fails."""

    def fail(*_: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(control.ControlConnection, "note_exchange", fail)
    deferred_jobs = [jobs.noop.defer() for _ in range(3)]
    worker_thread(poll_interval=0.1)
    wait_for_statuses(completed=3)
    leases = Job.objects.filter(pk__in=[job.pk for job in deferred_jobs]).values_list("lease", "attempts")
    assert set(leases) == {(2, 1)}, "each job was claimed once and settled once, in one attempt"

"""`Supervisor`, with real processes and signals: whichever process dies, no job is lost and all processes end."""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, connections
from django.db.models.functions import Now

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import LEAST_DUE_CHECK
from django_skipqueue.supervisor.supervisor import Supervisor
from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.options import WorkerOptions

from ..app import jobs, worker_jobs
from ..app.models import Ledger
from ..app.rows import make_job, make_worker
from ..app.waiting import DEADLINE, wait_until
from ..harness.fixtures import APPLICATION_NAME
from ..harness.processes import ManagePy, is_alive, statuses, wait_for_statuses, workers

store = Store("default")

RunWorker = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)


def defer_held_jobs(*entries: str) -> None:
    """Defer jobs that write their entry when they start, and run until `let_jobs_go_on()`."""
    for entry in entries:
        jobs.record_and_hold.using(max_attempts=1).defer(entry)


def let_jobs_go_on() -> None:
    Ledger.objects.create(entry="go")


def wait_for_entries(*entries: str) -> None:
    """Wait until these tasks have started."""
    wait_until(lambda: set(entries) <= set(Ledger.objects.values_list("entry", flat=True)), f"{entries} have started")


@contextmanager
def outage() -> Iterator[None]:
    """End the connections of all processes except the test's process, and allow no new connection."""
    connection.ensure_connection()
    info = connection.connection.info
    with psycopg.connect(info.dsn, dbname="postgres", password=info.password or None, autocommit=True) as server:
        name = psycopg.sql.Identifier(info.dbname)
        server.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name <> %s",
                [info.dbname, APPLICATION_NAME],
            )
            yield
        finally:
            server.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


def cut_all_connections() -> int:
    """Cut every connection to the test database except the connections of this process. Returns how many were cut."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name <> %s AND backend_type = 'client backend'",
            [APPLICATION_NAME],
        )
        return int(cursor.fetchone()[0])


# Signals to the supervisor, its group or its worker


@pytest.mark.parametrize(
    ("receiver", "signal_number"),
    [
        ("the supervisor", signal.SIGTERM),
        ("the whole group", signal.SIGTERM),  # systemd
        ("the whole group", signal.SIGINT),  # Ctrl-C
        ("the worker", signal.SIGTERM),
    ],
)
def test_a_signal_lets_running_jobs_end_and_releases_other_claimed_jobs(
    runworker: RunWorker, receiver: str, signal_number: signal.Signals
) -> None:
    jobs.noop.using(priority=1).defer_many([()] * 200)
    defer_held_jobs("a", "b")
    jobs.noop.using(priority=-1).defer_many([()] * 200)
    process = runworker("-c", "2", "--poll-interval", HOUR, "--name", "w")
    wait_for_entries("a", "b")
    (worker,) = workers()
    if receiver == "the supervisor":
        process.send(signal_number)
    elif receiver == "the whole group":
        process.send_to_group(signal_number)
    else:
        os.kill(worker.pid, signal_number)
    if receiver != "the worker":
        process.wait_for("finishing running jobs")
    wait_until(lambda: Job.objects.running().count() == 2, "claimed jobs that have not started are released")
    assert process.process.poll() is None
    let_jobs_go_on()
    if receiver == "the worker":
        process.wait_for('cause="it received SIGTERM or SIGINT directly" restart_in=')
        wait_for_statuses(completed=402)
        process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not Worker.objects.exists()
    assert not Job.objects.running().exists()
    assert set(Job.objects.queued().values_list("attempts", "locked_by")) <= {(0, "")}
    assert Job.objects.completed().filter(attempts=1).count() == Job.objects.completed().count() >= 202
    assert Ledger.objects.filter(entry__in=["a", "b"]).count() == 2
    assert "Traceback" not in process.log


@pytest.mark.parametrize("whole_group", [False, True], ids=["to the supervisor", "to the whole group"])
def test_a_second_signal_releases_running_jobs_at_once_and_counts_no_attempt(
    runworker: RunWorker, whole_group: bool
) -> None:
    defer_held_jobs("a", "b")
    process = runworker("--shutdown-timeout", HOUR, "--poll-interval", HOUR)
    wait_for_entries("a", "b")
    send = process.send_to_group if whole_group else process.send
    send(signal.SIGINT)
    process.wait_for("finishing running jobs")
    send(signal.SIGINT)
    assert process.wait() == 0
    assert statuses() == {"queued": 2}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert not Worker.objects.exists()
    assert 'count=2 reason="they still ran' in process.log


def test_after_the_shutdown_timeout_a_running_job_is_released(runworker: RunWorker) -> None:
    defer_held_jobs("a")
    process = runworker("--shutdown-timeout", "0.1", "--poll-interval", HOUR)
    wait_for_entries("a")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert statuses() == {"queued": 1}
    assert Job.objects.get().attempts == 0


def test_a_signal_to_a_supervisor_with_idle_workers_ends_all_processes(runworker: RunWorker) -> None:
    process = runworker("--processes", "3", "--poll-interval", HOUR)
    workers(3)
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not Worker.objects.exists()
    assert len(re.findall(r"worker stopped worker=\S+ attempts=0", process.log)) == 3


# Deaths of workers and supervisors


def test_the_garbage_collector_of_a_worker_ignores_objects_made_by_imports(runworker: RunWorker) -> None:
    job = worker_jobs.count_frozen.defer()
    runworker()
    wait_for_statuses(completed=1)
    job.refresh_from_db()
    assert job.result > 10_000  # the number of objects that the garbage collector skips


def test_the_job_of_a_killed_worker_is_recovered_and_run_again_at_once(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR, "--worker-timeout", "600", "--name", "w")
    (first_worker,) = workers()
    jobs.record_and_die.defer("a")
    process.wait_for('worker died worker=w/1 cause="signal 9 (SIGKILL)" restart_in=0s')
    wait_for_statuses(completed=1)
    wait_until(
        lambda: not Worker.objects.filter(pk=first_worker.pk).exists(), "the row of the worker that died is deleted"
    )
    (second_worker,) = workers()
    assert (second_worker.id, second_worker.pid) != (first_worker.id, first_worker.pid)
    job = Job.objects.get()
    assert (job.attempts, job.locked_by) == (2, str(second_worker.id))
    (error,) = job.errors
    assert error["exception"].endswith("WorkerDied")
    assert "SIGKILL" in error["message"]
    assert re.search(
        rf"job recovered task=\S+record_and_die id={job.pk} attempt=1 worker=\S+ claimed=[\d:]{{8}} now=scheduled",
        process.log,
    )


def test_jobs_of_a_killed_worker_fail_and_jobs_of_the_other_worker_run_on(runworker: RunWorker) -> None:
    defer_held_jobs("a", "b", "c", "d")
    process = runworker("--processes", "2", "-c", "2", "--poll-interval", HOUR, "--name", "w")
    wait_for_entries("a", "b", "c", "d")
    killed_worker, other_worker = workers(2)
    jobs_of_killed_worker = set(Job.objects.filter(locked_by=killed_worker.id).values_list("pk", flat=True))
    os.kill(killed_worker.pid, signal.SIGKILL)
    wait_until(lambda: set(Job.objects.failed().values_list("pk", flat=True)) == jobs_of_killed_worker)
    assert Job.objects.running().filter(locked_by=other_worker.id).count() == 4 - len(jobs_of_killed_worker)
    let_jobs_go_on()
    counts = {"completed": 4 - len(jobs_of_killed_worker), "failed": len(jobs_of_killed_worker)}
    wait_for_statuses(**{status: count for status, count in counts.items() if count})
    assert Worker.objects.filter(pk=other_worker.pk, pid=other_worker.pid).exists()
    assert is_alive(process.process.pid)


@pytest.mark.parametrize("code", [0, 1, 93])
@pytest.mark.parametrize("options", [("--max-jobs", "1"), ()], ids=["max-jobs 1", "no limit"])
def test_a_task_that_exits_its_worker_process_is_run_again_in_a_second_attempt(
    runworker: RunWorker, code: int, options: tuple[str, ...]
) -> None:
    if code == 93 and options:
        pytest.skip("93 is the exit code of a worker that has run its last job, so this exit looks like a regular end")
    worker_jobs.exit_hard.defer(code)
    process = runworker(*options, "--poll-interval", HOUR)
    wait_for_statuses(completed=1)
    assert Job.objects.get().attempts == 2
    if options:
        assert process.wait() == 0


def test_a_task_that_always_kills_its_worker_fails_after_max_attempts(runworker: RunWorker) -> None:
    crashing_job = worker_jobs.exit_hard.using(max_attempts=2).defer(7, 0)
    other_job = jobs.noop.defer()
    runworker("--poll-interval", HOUR)
    wait_for_statuses(completed=1, failed=1)
    crashing_job.refresh_from_db()
    assert (crashing_job.status, crashing_job.attempts) == ("failed", 2)
    assert "exit code 7" in crashing_job.last_error
    other_job.refresh_from_db()
    assert other_job.status == "completed"


def test_a_job_that_kills_three_workers_in_a_row_fails_before_max_attempts(runworker: RunWorker) -> None:
    worker_jobs.exit_hard.using(max_attempts=100).defer(7, 0)
    process = runworker("--poll-interval", "0.2")
    waiting_retries = Job.objects.scheduled()  # without the update, each retry would wait for up to half a minute
    wait_until(lambda: waiting_retries.update(run_after=Now()) == 0 and statuses() == {"failed": 1})
    crashing_job = Job.objects.get()
    assert crashing_job.attempts == 3
    assert crashing_job.last_error.startswith("WorkerDied: worker died: exit code 7; three workers in a row died")
    assert process.log.count('cause="exit code 7"') == 3


def test_the_restart_delay_grows_while_a_worker_dies_again_and_again(runworker: RunWorker) -> None:
    process = runworker("-c", "1", "--poll-interval", HOUR, jobs=DIES_AT_THE_START)
    process.wait_for("died", times=4)
    delays = [float(delay) for delay in re.findall(r"restart_in=([\d.]+)s", process.log)]
    assert delays == sorted(delays)
    assert delays[0] == 0
    assert delays[3] >= 2 * delays[2] > 0
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not Job.objects.running().exists()


DIES_AT_THE_START = """
import os

os.register_at_fork(after_in_child=lambda: os._exit(7))
"""

FORK_FAILS_THREE_TIMES = """
import errno, os

fork, refusals = os.fork, [BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")] * 3


def fork_or_fail():
    if refusals:
        raise refusals.pop()
    return fork()


os.fork = fork_or_fail
"""


def test_a_fork_that_the_system_refuses_is_tried_again(runworker: RunWorker) -> None:
    jobs.noop.defer()
    worker = runworker(settings=FORK_FAILS_THREE_TIMES)
    wait_for_statuses(completed=1)
    assert worker.log.count("worker not started worker=") == 3
    assert "Resource temporarily unavailable" in worker.log
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("signal_number", [signal.SIGSEGV, 40])
def test_a_worker_killed_by_sigsegv_or_a_realtime_signal_is_replaced(runworker: RunWorker, signal_number: int) -> None:
    process = runworker("--poll-interval", HOUR)
    (first_worker,) = workers()
    os.kill(first_worker.pid, signal_number)
    wait_until(lambda: Worker.objects.exclude(pk=first_worker.pk).exists())
    assert f'cause="signal {int(signal_number)}' in process.log
    assert not Worker.objects.filter(pk=first_worker.pk).exists()


def test_workers_of_a_killed_supervisor_finish_their_jobs_and_exit(runworker: RunWorker) -> None:
    defer_held_jobs("a", "b")
    jobs.noop.using(priority=-1).defer_many([()] * 50)
    process = runworker("--processes", "2", "-c", "1", "--poll-interval", HOUR, "--name", "w")
    wait_for_entries("a", "b")
    pids = [worker.pid for worker in workers(2)]
    process.send(signal.SIGKILL)
    process.wait()
    process.wait_for("supervisor gone", times=2)
    let_jobs_go_on()
    wait_until(lambda: not any(map(is_alive, pids)), "the workers have ended")
    assert statuses() == {"completed": 2, "queued": 50}
    assert not Worker.objects.exists()


def test_the_replacement_of_a_worker_ends_with_its_supervisor(runworker: RunWorker) -> None:
    """The replacement is forked while other workers run. It must not hold their pipes to the supervisor open."""
    process = runworker("--processes", "2", "--poll-interval", HOUR)
    killed_worker, _other_worker = workers(2)
    os.kill(killed_worker.pid, signal.SIGKILL)
    wait_until(lambda: Worker.objects.exclude(pk=killed_worker.pk).count() == 2)
    pids = list(Worker.objects.exclude(pk=killed_worker.pk).values_list("pid", flat=True))
    process.send(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(map(is_alive, pids)), "the workers have ended")


def test_after_a_supervisor_and_its_worker_are_killed_another_supervisor_recovers_the_job(runworker: RunWorker) -> None:
    jobs.record_and_hold.using(max_attempts=2).defer("a")
    first_supervisor = runworker(
        "--worker-timeout", "1", "--poll-interval", HOUR, "--name", "first", skipqueue={"HEARTBEAT_INTERVAL": 0.2}
    )
    wait_for_entries("a")
    (dead_worker,) = workers()
    first_supervisor.send_to_group(signal.SIGKILL)
    first_supervisor.wait()
    assert statuses() == {"running": 1}
    let_jobs_go_on()
    second_supervisor = runworker(
        "--worker-timeout", "1", "--poll-interval", HOUR, skipqueue={"HEARTBEAT_INTERVAL": 0.2}
    )
    wait_for_statuses(completed=1)
    job = Job.objects.get()
    assert (job.attempts, [error["worker"] for error in job.errors]) == (2, ["first/1"])
    assert f" worker={dead_worker.name} " in second_supervisor.log


def test_the_long_job_of_a_live_worker_is_never_recovered(runworker: RunWorker) -> None:
    defer_held_jobs("a")
    runworker("--worker-timeout", "5", "--poll-interval", HOUR, skipqueue={"HEARTBEAT_INTERVAL": 0.2})
    wait_for_entries("a")
    wait_until(lambda: Job.objects.filter(locked_at__lt=Now() - timedelta(seconds=6)).exists(), "it runs for long")
    assert store.recover(worker_timeout=5.0) == []
    let_jobs_go_on()
    wait_for_statuses(completed=1)


# Outages of the database


def test_all_4000_jobs_complete_although_all_connections_are_cut_three_times(runworker: RunWorker) -> None:
    jobs.noop.using(max_attempts=1).defer_many([()] * 4000)
    process = runworker(
        "--processes", "2", "--worker-timeout", "1", "--poll-interval", HOUR, skipqueue={"HEARTBEAT_INTERVAL": 0.2}
    )
    for completed_count in (200, 1500, 3000):
        wait_until(lambda completed_count=completed_count: Job.objects.completed().count() >= completed_count)  # type: ignore[misc]
        wait_until(cut_all_connections)
    wait_for_statuses(completed=4000, deadline=2 * DEADLINE)
    process.wait_for("database back")
    process.send(signal.SIGTERM)
    assert process.wait() == 0


def test_after_an_outage_an_idle_worker_is_notified_of_new_jobs_again(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR, "--name", "w")
    (worker_before,) = workers()
    with outage():
        process.wait_for('database lost who="worker w/1"', times=2)
        process.wait_for('database lost who="supervisor w"', times=3)
        assert "database back" not in process.log
    process.wait_for('database back who="worker w/1"')
    process.wait_for('database back who="supervisor w"')
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert [worker.pid for worker in workers()] == [worker_before.pid]
    assert "Traceback" not in process.log


def test_the_outcome_of_a_job_that_ends_during_an_outage_is_saved_after_it(runworker: RunWorker) -> None:
    jobs.slow.using(max_attempts=1).defer(0.5)
    process = runworker("--poll-interval", HOUR, "--name", "w")
    wait_for_statuses(running=1)
    with outage():
        process.wait_for('database lost who="worker w/1"', times=2)
    wait_for_statuses(completed=1)
    assert Job.objects.get().attempts == 1


def test_a_supervisor_can_be_stopped_during_an_outage(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR, "--shutdown-timeout", "0.1")
    workers()
    with outage():
        process.wait_for("database lost")
        process.send(signal.SIGTERM)
        process.wait_for("finishing running jobs")
        process.send(signal.SIGTERM)
        assert process.wait() == 0


# Services of the supervisor


def test_a_notification_that_arrives_with_the_answer_of_a_statement_is_handled_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The notification is read together with the answer, so the socket does not become readable again."""

    def start_supervisor() -> Supervisor:
        supervisor = Supervisor(WorkerOptions(name="w", database="default"))
        for process in supervisor.processes:
            process.start_at = NEVER
        monkeypatch.setattr(supervisor.wakeup, "wait", lambda *_, **__: [])
        supervisor.loop.run_due()
        return supervisor

    def sleep_after_an_answer() -> bool:
        socket = supervisor.control.fileno()
        assert socket is not None
        assert select.select([socket], [], [], DEADLINE)[0]
        supervisor.store.next_due()
        assert not select.select([socket], [], [], 0)[0]
        supervisor.wait()
        return supervisor.loop.due_at <= time.monotonic() + LEAST_DUE_CHECK

    with ThreadPoolExecutor(1) as thread:
        supervisor = thread.submit(start_supervisor).result()
        jobs.noop.using(run_after=timedelta(seconds=1)).defer()
        assert thread.submit(sleep_after_an_answer).result(), "the scheduled job is looked for at once"
        thread.submit(connections.close_all).result()


def test_a_scheduled_job_is_started_when_it_is_due_and_an_old_job_is_deleted(runworker: RunWorker) -> None:
    make_job("scheduled", run_after=timedelta(seconds=0.5))
    make_job("completed", finished_at=timedelta(days=-2))
    runworker("--poll-interval", HOUR)
    wait_for_statuses(completed=1)


def test_the_row_of_a_worker_without_a_heartbeat_for_two_hours_is_deleted(runworker: RunWorker) -> None:
    make_worker(heartbeat=timedelta(hours=-2))
    recently_seen_worker = make_worker(heartbeat=timedelta(minutes=-10))
    runworker("--poll-interval", HOUR)
    wait_until(lambda: Worker.objects.count() == 2)  # the recently seen worker, and the worker of this `runworker`
    assert Worker.objects.filter(pk=recently_seen_worker.pk).exists()


def test_a_job_recovered_receiver_that_never_returns_does_not_delay_the_next_worker(runworker: RunWorker) -> None:
    jobs.record_and_die.defer("a")
    process = runworker(
        "--poll-interval",
        HOUR,
        jobs="""
            import threading
            from django_skipqueue.signals import job_recovered

            def receive(**event):
                threading.Event().wait()

            job_recovered.connect(receive)
        """,
    )
    wait_for_statuses(completed=1)
    process.send(signal.SIGTERM)
    assert process.wait() == 0


def test_other_services_go_on_if_the_recovery_of_a_job_fails(
    runworker: RunWorker, refuse: Callable[[str], Callable[[], None]]
) -> None:
    refuse("NEW.last_error LIKE 'WorkerDied%'")
    defer_held_jobs("a")
    process = runworker("--poll-interval", HOUR)
    wait_for_entries("a")
    (worker,) = workers()
    os.kill(worker.pid, signal.SIGKILL)
    process.wait_for("service failed service=recover_own")
    jobs.noop.using(run_after=timedelta(seconds=1)).defer()
    wait_for_statuses(running=1, completed=1)
    assert "database lost" not in process.log


def test_the_jobs_and_the_row_of_an_external_worker_are_kept_despite_an_old_heartbeat(runworker: RunWorker) -> None:
    """An external worker, such as Celery, and a worker of this project have jobs. Both have old heartbeats."""
    long_ago = timedelta(hours=-2)
    external_worker, dead_worker = (
        make_worker(heartbeat=long_ago, is_external=is_external) for is_external in (True, False)
    )
    external_job, job_of_dead_worker = (
        make_job("running", locked_by=worker.pk, locked_at=long_ago, max_attempts=1)
        for worker in (external_worker, dead_worker)
    )
    runworker("--worker-timeout", "1", "--poll-interval", HOUR)
    wait_for_statuses(running=1, failed=1)
    assert (Job.objects.get(status="running"), Job.objects.get(status="failed")) == (external_job, job_of_dead_worker)
    # The row of a dead worker is deleted once its heartbeat is two hours old and it has no job. An external row stays.
    Job.objects.filter(pk=external_job.pk).update(status="queued", queue_name="nobody")
    Store("default").prune_workers([external_worker.pk, dead_worker.pk], age=3600)
    assert Worker.objects.filter(pk=external_worker.pk).exists()
    assert not Worker.objects.filter(pk=dead_worker.pk).exists()

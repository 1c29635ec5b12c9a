"""`Supervisor`, with real processes and signals: whatever dies, no job is lost and no process left behind."""

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

Run = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)


def hold(*entries: str) -> None:
    """Defer jobs that run until `let_jobs_go_on`; each writes its entry when it starts."""
    for entry in entries:
        jobs.record_and_hold.using(max_attempts=1).defer(entry)


def let_jobs_go_on() -> None:
    Ledger.objects.create(entry="go")


def wait_for_entries(*entries: str) -> None:
    """Wait until these tasks have started."""
    wait_until(lambda: set(entries) <= set(Ledger.objects.values_list("entry", flat=True)), f"{entries} have started")


@contextmanager
def outage() -> Iterator[None]:
    """The server is gone for all processes except this test's process."""
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


def cut_all() -> int:
    """Cut every connection to the test database except the connections of this process. Returns how many were cut."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name <> %s AND backend_type = 'client backend'",
            [APPLICATION_NAME],
        )
        return int(cursor.fetchone()[0])


# Signals


@pytest.mark.parametrize(
    ("to", "number"),
    [
        ("the supervisor", signal.SIGTERM),
        ("the whole group", signal.SIGTERM),  # systemd
        ("the whole group", signal.SIGINT),  # Ctrl-C
        ("the worker", signal.SIGTERM),
    ],
)
def test_a_signal_finishes_what_runs_releases_the_rest_and_leaves_nothing_behind(
    runworker: Run, to: str, number: signal.Signals
) -> None:
    jobs.noop.using(priority=1).defer_many([()] * 200)
    hold("a", "b")
    jobs.noop.using(priority=-1).defer_many([()] * 200)
    process = runworker("-c", "2", "--poll-interval", HOUR, "--name", "w")
    wait_for_entries("a", "b")
    (worker,) = workers()
    if to == "the supervisor":
        process.send(number)
    elif to == "the whole group":
        process.send_to_group(number)
    else:
        os.kill(worker.pid, number)
    if to != "the worker":
        process.wait_for("finishing running jobs")
    wait_until(lambda: Job.objects.running().count() == 2, "what has not started is released")
    assert process.process.poll() is None
    let_jobs_go_on()
    if to == "the worker":
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


@pytest.mark.parametrize("group", [False, True])
def test_a_second_signal_releases_what_runs_at_once_without_charging_it(runworker: Run, group: bool) -> None:
    hold("a", "b")
    process = runworker("--shutdown-timeout", HOUR, "--poll-interval", HOUR)
    wait_for_entries("a", "b")
    send = process.send_to_group if group else process.send
    send(signal.SIGINT)
    process.wait_for("finishing running jobs")
    send(signal.SIGINT)
    assert process.wait() == 0
    assert statuses() == {"queued": 2}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert not Worker.objects.exists()
    assert 'count=2 reason="they still ran' in process.log


def test_after_the_shutdown_timeout_what_runs_is_released(runworker: Run) -> None:
    hold("a")
    process = runworker("--shutdown-timeout", "0.1", "--poll-interval", HOUR)
    wait_for_entries("a")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert statuses() == {"queued": 1}
    assert Job.objects.get().attempts == 0


def test_a_signal_to_an_idle_worker_ends_it(runworker: Run) -> None:
    process = runworker("--processes", "3", "--poll-interval", HOUR)
    workers(3)
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not Worker.objects.exists()
    assert len(re.findall(r"worker stopped worker=\S+ attempts=0", process.log)) == 3


# Deaths


def test_the_garbage_collector_of_a_worker_passes_over_what_was_imported(runworker: Run) -> None:
    job = worker_jobs.count_frozen.defer()
    runworker()
    wait_for_statuses(completed=1)
    job.refresh_from_db()
    assert job.result > 10_000


def test_the_jobs_of_a_killed_worker_are_recovered_at_once(runworker: Run) -> None:
    process = runworker("--poll-interval", HOUR, "--worker-timeout", "600", "--name", "w")
    (first,) = workers()
    jobs.record_and_die.defer("a")
    process.wait_for('worker died worker=w/1 cause="signal 9 (SIGKILL)" restart_in=0s')
    wait_for_statuses(completed=1)
    wait_until(lambda: not Worker.objects.filter(pk=first.pk).exists(), "the row of the worker that died is deleted")
    (second,) = workers()
    assert (second.id, second.pid) != (first.id, first.pid)
    job = Job.objects.get()
    assert (job.attempts, job.locked_by) == (2, str(second.id))
    (error,) = job.errors
    assert error["exception"].endswith("WorkerDied")
    assert "SIGKILL" in error["message"]
    assert re.search(
        rf"job recovered task=\S+record_and_die id={job.pk} attempt=1 worker=\S+ claimed=[\d:]{{8}} now=scheduled",
        process.log,
    )


def test_only_the_dead_ones_jobs_are_taken_back(runworker: Run) -> None:
    hold("a", "b", "c", "d")
    process = runworker("--processes", "2", "-c", "2", "--poll-interval", HOUR, "--name", "w")
    wait_for_entries("a", "b", "c", "d")
    victim, other = workers(2)
    mine = set(Job.objects.filter(locked_by=victim.id).values_list("pk", flat=True))
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: set(Job.objects.failed().values_list("pk", flat=True)) == mine)
    assert Job.objects.running().filter(locked_by=other.id).count() == 4 - len(mine)
    let_jobs_go_on()
    wait_for_statuses(**{name: n for name, n in (("completed", 4 - len(mine)), ("failed", len(mine))) if n})
    assert Worker.objects.filter(pk=other.pk, pid=other.pid).exists()
    assert is_alive(process.process.pid)


@pytest.mark.parametrize("code", [0, 1, 93])
@pytest.mark.parametrize("options", [("--max-jobs", "1"), ()])
def test_a_task_that_exits_the_process_costs_an_attempt_and_no_job(
    runworker: Run, code: int, options: tuple[str, ...]
) -> None:
    if code == 93 and options:
        pytest.skip("a task that knows the exit code of a worker that ended well can pretend to be one")
    worker_jobs.exit_hard.defer(code)
    process = runworker(*options, "--poll-interval", HOUR)
    wait_for_statuses(completed=1)
    assert Job.objects.get().attempts == 2
    if options:
        assert process.wait() == 0


def test_a_task_that_always_kills_its_worker_fails_when_its_attempts_are_used_up(runworker: Run) -> None:
    poison = worker_jobs.exit_hard.using(max_attempts=2).defer(7, 0)
    other = jobs.noop.defer()
    runworker("--poll-interval", HOUR)
    wait_for_statuses(completed=1, failed=1)
    poison.refresh_from_db()
    assert (poison.status, poison.attempts) == ("failed", 2)
    assert "exit code 7" in poison.last_error
    other.refresh_from_db()
    assert other.status == "completed"


def test_a_job_that_kills_three_workers_in_a_row_fails_whatever_its_attempts(runworker: Run) -> None:
    worker_jobs.exit_hard.using(max_attempts=100).defer(7, 0)
    process = runworker("--poll-interval", "0.2")
    hurry = Job.objects.scheduled()  # the job would wait for up to half a minute
    wait_until(lambda: hurry.update(run_after=Now()) == 0 and statuses() == {"failed": 1})
    poison = Job.objects.get()
    assert poison.attempts == 3
    assert poison.last_error.startswith("WorkerDied: worker died: exit code 7; three workers in a row died")
    assert process.log.count('cause="exit code 7"') == 3


def test_an_idle_worker_that_keeps_dying_is_replaced_ever_more_slowly(runworker: Run) -> None:
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

NO_ROOM = """
import errno, os

fork, refusals = os.fork, [BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")] * 3


def fork_when_there_is_room():
    if refusals:
        raise refusals.pop()
    return fork()


os.fork = fork_when_there_is_room
"""


def test_where_there_is_no_room_for_another_process_it_tries_again(runworker: Run) -> None:
    jobs.noop.defer()
    worker = runworker(settings=NO_ROOM)
    wait_for_statuses(completed=1)
    assert worker.log.count("worker not started worker=") == 3
    assert "Resource temporarily unavailable" in worker.log
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGSEGV, 40])
def test_a_worker_that_dies_by_any_signal_is_replaced(runworker: Run, number: int) -> None:
    process = runworker("--poll-interval", HOUR)
    (first,) = workers()
    os.kill(first.pid, number)
    wait_until(lambda: Worker.objects.exclude(pk=first.pk).exists())
    assert f'cause="signal {int(number)}' in process.log
    assert not Worker.objects.filter(pk=first.pk).exists()


def test_workers_of_a_killed_supervisor_finish_their_jobs_and_exit(runworker: Run) -> None:
    hold("a", "b")
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


def test_a_replaced_worker_ends_with_its_supervisor_too(runworker: Run) -> None:
    """The replacement was forked while other workers ran, and must hold none of their lifelines open."""
    process = runworker("--processes", "2", "--poll-interval", HOUR)
    victim, _ = workers(2)
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: Worker.objects.exclude(pk=victim.pk).count() == 2)
    pids = list(Worker.objects.exclude(pk=victim.pk).values_list("pid", flat=True))
    process.send(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(map(is_alive, pids)), "the workers have ended")


def test_when_all_are_killed_at_once_another_supervisor_recovers_after_the_lease(runworker: Run) -> None:
    jobs.record_and_hold.using(max_attempts=2).defer("a")
    first = runworker(
        "--worker-timeout", "1", "--poll-interval", HOUR, "--name", "first", skipqueue={"HEARTBEAT_INTERVAL": 0.2}
    )
    wait_for_entries("a")
    (dead,) = workers()
    first.send_to_group(signal.SIGKILL)
    first.wait()
    assert statuses() == {"running": 1}
    let_jobs_go_on()
    second = runworker("--worker-timeout", "1", "--poll-interval", HOUR, skipqueue={"HEARTBEAT_INTERVAL": 0.2})
    wait_for_statuses(completed=1)
    job = Job.objects.get()
    assert (job.attempts, [error["worker"] for error in job.errors]) == (2, ["first/1"])
    assert f" worker={dead.name} " in second.log


def test_a_live_workers_long_job_is_never_recovered(runworker: Run) -> None:
    hold("a")
    runworker("--worker-timeout", "5", "--poll-interval", HOUR, skipqueue={"HEARTBEAT_INTERVAL": 0.2})
    wait_for_entries("a")
    wait_until(lambda: Job.objects.filter(locked_at__lt=Now() - timedelta(seconds=6)).exists(), "it runs for long")
    assert store.recover(worker_timeout=5.0) == []
    let_jobs_go_on()
    wait_for_statuses(completed=1)


# Outages


def test_connections_cut_under_load_lose_no_job_and_leave_none_running(runworker: Run) -> None:
    jobs.noop.using(max_attempts=1).defer_many([()] * 4000)
    process = runworker(
        "--processes", "2", "--worker-timeout", "1", "--poll-interval", HOUR, skipqueue={"HEARTBEAT_INTERVAL": 0.2}
    )
    for done in (200, 1500, 3000):
        wait_until(lambda done=done: Job.objects.completed().count() >= done)  # type: ignore[misc]
        wait_until(cut_all)
    wait_for_statuses(completed=4000, deadline=2 * DEADLINE)
    process.wait_for("database back")
    process.send(signal.SIGTERM)
    assert process.wait() == 0


def test_an_outage_while_idle_is_survived_and_jobs_are_heard_of_again(runworker: Run) -> None:
    process = runworker("--poll-interval", HOUR, "--name", "w")
    (before,) = workers()
    with outage():
        process.wait_for('database lost who="worker w/1"', times=2)
        process.wait_for('database lost who="supervisor w"', times=3)
        assert "database back" not in process.log
    process.wait_for('database back who="worker w/1"')
    process.wait_for('database back who="supervisor w"')
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert [worker.pid for worker in workers()] == [before.pid]
    assert "Traceback" not in process.log


def test_what_finishes_during_an_outage_is_written_after_it(runworker: Run) -> None:
    jobs.slow.using(max_attempts=1).defer(0.5)
    process = runworker("--poll-interval", HOUR, "--name", "w")
    wait_for_statuses(running=1)
    with outage():
        process.wait_for('database lost who="worker w/1"', times=2)
    wait_for_statuses(completed=1)
    assert Job.objects.get().attempts == 1


def test_it_can_be_stopped_while_there_is_no_database(runworker: Run) -> None:
    process = runworker("--poll-interval", HOUR, "--shutdown-timeout", "0.1")
    workers()
    with outage():
        process.wait_for("database lost")
        process.send(signal.SIGTERM)
        process.wait_for("finishing running jobs")
        process.send(signal.SIGTERM)
        assert process.wait() == 0


# Services


def test_a_notification_within_an_answer_is_handled_before_sleeping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reads the answer of the statement also reads the notification, and the socket is no longer readable."""

    def start() -> Supervisor:
        made = Supervisor(WorkerOptions(name="w", database="default"))
        for process in made.processes:
            process.start_at = NEVER
        monkeypatch.setattr(made.wakeup, "wait", lambda *_, **__: [])
        made.loop.run_due()
        return made

    def sleep_after_an_answer() -> bool:
        socket = supervisor.control.fileno()
        assert socket is not None
        assert select.select([socket], [], [], DEADLINE)[0]
        supervisor.store.next_due()
        assert not select.select([socket], [], [], 0)[0]
        supervisor.wait()
        return supervisor.loop.due_at <= time.monotonic() + LEAST_DUE_CHECK

    with ThreadPoolExecutor(1) as thread:
        supervisor = thread.submit(start).result()
        jobs.noop.using(run_after=timedelta(seconds=1)).defer()
        assert thread.submit(sleep_after_an_answer).result(), "it looks at once at what is scheduled"
        thread.submit(connections.close_all).result()


def test_a_job_that_becomes_due_is_started_and_what_is_old_is_deleted(runworker: Run) -> None:
    make_job("scheduled", run_after=timedelta(seconds=0.5))
    make_job("completed", finished_at=timedelta(days=-2))
    runworker("--poll-interval", HOUR)
    wait_for_statuses(completed=1)


def test_a_machine_that_died_long_ago_is_forgotten(runworker: Run) -> None:
    make_worker(heartbeat=timedelta(hours=-2))
    recent = make_worker(heartbeat=timedelta(minutes=-10))
    runworker("--poll-interval", HOUR)
    wait_until(lambda: Worker.objects.count() == 2)
    assert Worker.objects.filter(pk=recent.pk).exists()


def test_a_stuck_recovery_receiver_does_not_delay_the_next_worker(runworker: Run) -> None:
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


def test_a_dead_worker_whose_jobs_cannot_be_taken_back_keeps_no_service_from_its_work(
    runworker: Run, refuse: Callable[[str], Callable[[], None]]
) -> None:
    refuse("NEW.last_error LIKE 'WorkerDied%'")
    hold("a")
    process = runworker("--poll-interval", HOUR)
    wait_for_entries("a")
    (worker,) = workers()
    os.kill(worker.pid, signal.SIGKILL)
    process.wait_for("service failed service=recover_own")
    jobs.noop.using(run_after=timedelta(seconds=1)).defer()
    wait_for_statuses(running=1, completed=1)
    assert "database lost" not in process.log


def test_what_a_carrier_holds_is_left_to_it_and_its_row_stays(runworker: Run) -> None:
    """A worker and a carrier hold jobs, both with old heartbeats."""
    long_ago = timedelta(hours=-2)
    carrier, dead = (make_worker(heartbeat=long_ago, is_external=is_external) for is_external in (True, False))
    kept, lost = (
        make_job("running", locked_by=holder.pk, locked_at=long_ago, max_attempts=1) for holder in (carrier, dead)
    )
    runworker("--worker-timeout", "1", "--poll-interval", HOUR)
    wait_for_statuses(running=1, failed=1)
    assert (Job.objects.get(status="running"), Job.objects.get(status="failed")) == (kept, lost)
    # The row of a dead worker is deleted once it is two hours old and holds no job. The row of a carrier stays.
    Job.objects.filter(pk=kept.pk).update(status="queued", queue_name="nobody")
    Store("default").prune_workers([carrier.pk, dead.pk], age=3600)
    assert Worker.objects.filter(pk=carrier.pk).exists()
    assert not Worker.objects.filter(pk=dead.pk).exists()

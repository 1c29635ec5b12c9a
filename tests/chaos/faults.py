"""The faults. Each is a function, called a stroke, that breaks something, waits, and repairs it.

Invariant: when a stroke returns, everything works again or is being started again. `stage.faults` lists each fault with
its time.
"""

import contextlib
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from django.db import Error, connection, transaction

from django_skipqueue import Task

from . import WORKER_TIMEOUT, jobs
from .evidence import LOG_BLOCKED, POSTGRES, URGENT, Death, Fault
from .load import defer_many
from .machines import Machine
from .promises import promise
from .stage import Stage

LONG_PAUSE = WORKER_TIMEOUT + 7
"""Seconds for which a machine is paused or cut off: longer than the other machine needs to notice that it is dead."""

SILENT_SECONDS = 2 * WORKER_TIMEOUT
"""Seconds for which only a supervisor is silent: twice the time after which another machine counts its workers dead."""

HOUR = 3600.0

FROZEN_LIMIT = 40.0
"""Seconds within which a worker that hangs must be replaced: its supervisor waits for thirty."""

LARGE_TEXT_LENGTH = 900_000
"""Characters of a large text: nearly as many bytes as arguments and results may have."""

SLOW_BYTES_PER_SECOND = 4_000_000
"""Bytes a second that each connection lets through while large rows are transferred."""

LARGE_LIMIT = 80.0
"""Seconds within which large jobs must be finished: twice the transfer time if one worker claims them all."""

NEW_PRIMARY_LIMIT = 20.0
"""Seconds within which each machine must use a new primary: twice the timeout of a statement."""

COUNT_CLAIMING_MACHINES = """
SELECT count(DISTINCT split_part(holder, '/', 1))
FROM chaos_change WHERE after = 'running' AND before <> 'running' AND at > to_timestamp(%s)
"""

COUNT_HELD_JOBS = "SELECT count(*) FROM skipqueue_job WHERE status = 'running' AND split_part(locked_by, '/', 1) = %s"

VERY_LONG_JOB_SECONDS = SILENT_SECONDS - 1
"""Seconds of a job that must run during all of SILENT_SECONDS: longer than the worker timeout."""

SHORT_JOB_COUNT, LONG_JOB_COUNT, LONG_JOB_SECONDS = 5000, 400, 0.3
"""How many jobs take no time, how many jobs after them take long, and how many seconds these take."""

Stroke = Callable[[Stage, Machine, random.Random], None]


# Processes


def kill_worker(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGKILL one worker, if there is one."""
    number = rng.randrange(100)
    if machine.has_workers:
        with stage.fault("worker killed", machine.name, slows=False) as fault:
            fault.deaths = machine.kill_worker(number)


def kill_supervisor(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGKILL a supervisor; its workers are orphans, and the process manager starts another."""
    with stage.fault("supervisor killed", machine.name) as fault:
        fault.deaths = machine.kill_supervisor()
        stage.wait(rng.uniform(2, 3))


def kill_machine(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGKILL all processes of a machine. Start it again after the other machine has recovered its jobs."""
    with stage.fault("machine killed", machine.name) as fault:
        fault.deaths = machine.kill()
        stage.wait(WORKER_TIMEOUT + rng.uniform(4, 6))
        machine.start()


def stop_machine(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Send SIGTERM to a machine, wait for its end, and start it again, as a rolling deploy does."""
    with stage.fault("SIGTERM", machine.name) as fault:
        fault.stops = [machine.stop()]
        machine.start()


def pause_machine(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGSTOP all processes of a machine for longer than the worker timeout: the other machine recovers its jobs."""
    with stage.fault("machine paused", machine.name, silences=True) as fault:
        fault.deaths = machine.pause()
        stage.wait(LONG_PAUSE)
        _check_holds_no_job(stage, fault, machine)
        machine.resume()


def _check_holds_no_job(stage: Stage, fault: Fault, machine: Machine) -> None:
    """Check that a machine that was silent for long holds no job: the other machine must have recovered its jobs.

    Other faults may delay the recovery (they may lock the table), so nothing is checked while there is another fault.
    """
    if any(
        other_fault is not fault and other_fault.overlaps(fault.began, float("inf")) for other_fault in stage.faults
    ):
        return
    with stage.cluster.connect() as connection:
        ((count,),) = connection.execute(COUNT_HELD_JOBS, [machine.name]).fetchall()
    if count:
        fault.overdue.append(f"{count} jobs of a machine that has been silent for {LONG_PAUSE:g} s are still running")


def pause_supervisor(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGSTOP only a supervisor: its workers live, and keep their jobs."""
    _defer_long()
    with stage.fault("supervisor paused", machine.name, slows=False):
        machine.pause_supervisor()
        stage.wait(SILENT_SECONDS)
        machine.resume()


def pause_workers(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGSTOP the workers for longer than the worker timeout, while their supervisor lives: they keep their jobs."""
    with stage.fault("workers paused", machine.name):
        machine.pause_workers()
        stage.wait(WORKER_TIMEOUT + rng.uniform(1, 3))
        machine.resume()


def freeze_workers(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Let a task block the interpreter of its worker for ever, and pause a worker of the other machine for ever."""
    with stage.fault("loop frozen", POSTGRES) as frozen, stage.fault("worker frozen", machine.name) as paused:
        pid, name = _freeze_loop(stage)
        frozen.target = name.partition("/")[0]
        frozen.deaths = [Death(pid, time.time(), alone=True, frozen=True)]
        (other_machine,) = (
            machine_of_stage for machine_of_stage in stage.machines if machine_of_stage.name != frozen.target
        )
        paused.target = other_machine.name
        paused.deaths = other_machine.pause_worker(rng.randrange(100))
        for fault in (frozen, paused):
            (death,) = fault.deaths
            if not stage.wait_for(partial(stage.is_gone, death.pid), FROZEN_LIMIT - (time.time() - death.at)):
                fault.overdue.append(f"{fault.what}: it was not replaced within {FROZEN_LIMIT:g} s")
                os.kill(death.pid, signal.SIGKILL)


def _freeze_loop(stage: Stage) -> tuple[int, str]:
    """Defer a job that freezes its worker. Returns the process id and the name of the worker that runs it."""
    with closing_connection():
        (job,) = defer_many(jobs.freeze, [()])
    with stage.cluster.connect() as connection:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            worker = connection.execute(
                "SELECT process.pid, process.name FROM chaos_ledger JOIN skipqueue_job AS job ON job.id = job_id "
                "JOIN chaos_process AS process ON worker_id = locked_by WHERE what = 'begin' AND job_id = %s",
                [job],
            ).fetchone()
            if worker:
                return int(worker[0]), str(worker[1])
            time.sleep(0.05)
    raise RuntimeError("The job that freezes a worker did not begin within 30 s.")


def block_log(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Stop reading the log of a machine until its pipe is full, and kill a worker, so that the machine logs more."""
    _defer_long()
    with stage.fault(LOG_BLOCKED, machine.name, slows=False) as fault:
        machine.logbook.block()
        stage.wait(1)
        fault.deaths = machine.kill_worker(rng.randrange(100))
        stage.wait(SILENT_SECONDS - 1)
        machine.logbook.unblock()


def change_clock(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Set the clock of a machine forward or back by an hour for some seconds."""
    with stage.fault("clock off", machine.name, slows=False):
        machine.clock.set(rng.choice((HOUR, -HOUR)))
        stage.wait(rng.uniform(4, 6))
        machine.clock.set(0)


# Jobs


def _defer_long() -> None:
    """Defer a few jobs that take longer than the worker timeout; the tasks are a function and a coroutine."""
    for task in (jobs.work, jobs.work_async):
        _defer_if_possible(task, [(VERY_LONG_JOB_SECONDS,)] * 4)


def _defer_if_possible(task: Task[..., Any], calls: Sequence[tuple[object, ...]]) -> None:
    """Defer jobs, or do nothing if the database is not available."""
    with contextlib.suppress(Error), closing_connection():
        defer_many(task, calls)


def short_then_long(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Defer short jobs, and long jobs behind them, while one machine is stopped; start it again after a second."""
    with stage.fault("short jobs, then long ones", machine.name, slows=False) as fault, closing_connection():
        fault.stops = [machine.stop()]
        with transaction.atomic():  # visible at once, so that one claim takes short and long jobs
            defer_many(jobs.blink, [()] * SHORT_JOB_COUNT)
            defer_many(jobs.work, [(LONG_JOB_SECONDS,)] * LONG_JOB_COUNT)
        stage.wait(1)
        machine.start()
        for _ in range(6):
            job = jobs.work.using(priority=URGENT).defer(0.0)
            promise([job.pk], job.task, priority=URGENT)
            stage.wait(1)


def send_large(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Defer many short jobs, and behind them jobs with arguments and results of nearly 1 MB, over slow connections."""
    large_texts = [secrets.token_hex(LARGE_TEXT_LENGTH // 2) for _ in range(4)]
    with stage.fault("large rows", POSTGRES) as fault, closing_connection(), stage.cluster.connect() as connection:
        for any_machine in stage.machines:
            any_machine.proxy.limit(SLOW_BYTES_PER_SECOND)
        with transaction.atomic():
            defer_many(jobs.blink, [()] * SHORT_JOB_COUNT)
            ids = defer_many(jobs.return_large_text, [(LARGE_TEXT_LENGTH,)] * 160)
        for text in large_texts:
            ids += defer_many(jobs.return_argument, [(text,)] * 5)
            ids += defer_many(jobs.discard_large_argument, [(text,)] * 3)

        def count_unfinished() -> int:
            unfinished = "SELECT count(*) FROM skipqueue_job WHERE id = ANY (%s) AND status IN ('queued', 'running')"
            row = connection.execute(unfinished, [ids]).fetchone()
            return int(row[0]) if row else 0

        if not stage.wait_for(lambda: count_unfinished() == 0, LARGE_LIMIT):
            fault.overdue.append(f"{count_unfinished()} of {len(ids)} large jobs were not finished")
        for any_machine in stage.machines:
            any_machine.proxy.limit(float("inf"))


# The network between a machine and PostgreSQL


def cut_network(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Reset all connections of a machine, and refuse new ones for a moment."""
    with stage.fault("connections cut", machine.name, silences=True):
        machine.proxy.refuse()
        machine.proxy.cut()
        stage.wait(rng.uniform(0, 2))
        machine.proxy.accept()


def stall_network(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Hold back all bytes and errors between a machine and PostgreSQL, for longer than the worker timeout."""
    with stage.fault("network stalled", machine.name, silences=True) as fault:
        fault.deaths = [Death(pid, time.time(), alone=False) for pid in machine.pids]
        machine.proxy.stall()
        stage.wait(LONG_PAUSE)
        _check_holds_no_job(stage, fault, machine)
        machine.proxy.flow()


def lose_server(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Close the connections of a machine only on the server's side (half-open), so that the machine never notices."""
    with stage.fault("half-open", machine.name, silences=True):
        machine.proxy.lose_server()
        stage.wait(LONG_PAUSE)


def lose_clients(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Close the connections of a machine only on its side (half-open): the server does not notice for a while."""
    with stage.fault("half-open", machine.name, silences=True):
        machine.proxy.lose_clients()
        stage.wait(rng.uniform(2, 4))
        machine.proxy.tell_server()


def stall_supervisor(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Hold back all bytes and errors between a supervisor and PostgreSQL; the connections of its workers work."""
    _without_supervisor(stage, machine, "supervisor stalled", machine.proxy.stall_process)


def refuse_supervisor(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Cut the connection of a supervisor, and refuse a new one; the connections of its workers work."""
    _without_supervisor(stage, machine, "no connection for a supervisor", machine.proxy.be_full_for)


def _without_supervisor(stage: Stage, machine: Machine, what: str, block_supervisor: Callable[[int], None]) -> None:
    supervisor = machine.supervisor
    if supervisor is not None:
        _defer_long()
        with stage.fault(what, machine.name, slows=False):
            block_supervisor(supervisor)
            stage.wait(SILENT_SECONDS)
            machine.proxy.let_in()


def slow_connects(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Make opening a connection take longer than the timeout of the tasks that open one."""
    with stage.fault("slow to connect", POSTGRES):
        for any_machine in stage.machines:
            any_machine.proxy.delay_connects(0.3)
        for _ in range(12):
            for task in (jobs.write_row_again, jobs.write_row):
                _defer_if_possible(task, [()] * 12)
            stage.wait(0.5)
        for any_machine in stage.machines:
            any_machine.proxy.delay_connects(0)


# PostgreSQL


def crash_postgres(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Crash PostgreSQL by `stop -m immediate`, and start it after a moment."""
    with stage.fault("PostgreSQL crashed", POSTGRES):
        stage.cluster.crash()
        stage.wait(rng.uniform(0.5, 3))
        stage.cluster.start()


def fail_over(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGKILL the primary, promote its synchronous standby a few seconds later, and make a new standby."""
    with stage.fault("failover after a crash", POSTGRES):
        stage.cluster.kill()
        stage.wait(rng.uniform(1, 4))
        stage.cluster.promote()
    stage.cluster.add_standby()


def turn_read_only(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Make the primary refuse writes, but keep all sockets open, and promote the standby, as some clouds do.

    All machines must find the new primary while the former primary still answers.
    """
    with stage.fault("failover with open sockets", POSTGRES) as fault:
        stage.cluster.refuse_writes()
        stage.wait(rng.uniform(1, 3))
        stage.cluster.promote()
        promoted_at = time.time()
        with stage.cluster.connect() as connection:

            def all_machines_have_claimed() -> bool:
                row = connection.execute(COUNT_CLAIMING_MACHINES, [promoted_at]).fetchone()
                return row is not None and row[0] == len(stage.machines)

            if not stage.wait_for(all_machines_have_claimed, NEW_PRIMARY_LIMIT):
                fault.overdue.append(f"not all machines had found the new primary within {NEW_PRIMARY_LIMIT:g} s")
        stage.cluster.kill_standby()
    stage.cluster.add_standby()


def pause_postgres(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """SIGSTOP all processes of PostgreSQL for longer than the worker timeout."""
    with stage.fault("PostgreSQL paused", POSTGRES):
        stage.cluster.pause()
        stage.wait(WORKER_TIMEOUT + rng.uniform(2, 4))
        stage.cluster.resume()


def terminate_backends(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Terminate a third of all sessions on the server."""
    with stage.fault("backends terminated", POSTGRES, silences=True):
        stage.cluster.terminate_backends(rng, share=0.3)


def change_database_clock(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Set the clock of PostgreSQL forward by more than the worker timeout, and back after a while."""
    _defer_long()
    with stage.fault("PostgreSQL's clock off", POSTGRES, slows=False):
        stage.cluster.clock.set(2 * WORKER_TIMEOUT)
        stage.wait(rng.uniform(3, 4))
        stage.cluster.clock.set(0)
        stage.wait(1)  # the processes of PostgreSQL read the clock file once a second


def lock_table(stage: Stage, machine: Machine, rng: random.Random) -> None:
    """Lock the whole job table for 10 s, and then some of its rows."""
    with stage.fault("table locked", POSTGRES), stage.cluster.connect() as connection:
        with connection.transaction():
            connection.execute("LOCK TABLE skipqueue_job IN ACCESS EXCLUSIVE MODE")
            stage.wait(10)
        for _ in range(4):
            with connection.transaction():
                connection.execute(
                    "SELECT FROM skipqueue_job WHERE status IN ('scheduled', 'queued', 'running') "
                    "ORDER BY id DESC LIMIT 30 FOR UPDATE"
                )
                stage.wait(0.5)


@contextlib.contextmanager
def closing_connection() -> Iterator[None]:
    """Close the connection that Django opens in this thread, at the end of the block."""
    try:
        yield
    finally:
        connection.close()

"""The faults, each as one stroke: it breaks something, waits, and mends it.

Invariant: when a stroke returns, what it broke works again, or is being started again. What it did stands in
`stage.faults`, with its time.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import LEASE
from .cluster import Cluster
from .evidence import POSTGRES, Death, Fault
from .machines import Machine

LONG = LEASE + 7
"""Seconds of being paused or cut off: longer than the lease and the time in which others notice."""

HOUR = 3600


class Stage:
    """What the faults happen to. Strokes may be under way in several threads, each with its own random numbers."""

    def __init__(self, cluster: Cluster, machines: list[Machine]) -> None:
        self.cluster = cluster
        self.machines = machines
        self.faults: list[Fault] = []
        self.over = threading.Event()
        """Set when no new stroke is to begin."""
        self._lock = threading.Lock()

    @contextmanager
    def fault(self, what: str, target: str) -> Iterator[Fault]:
        """Write down what happens in this block."""
        fault = Fault(what, target, time.time())
        with self._lock:
            self.faults.append(fault)
        yield fault
        fault.ended = time.time()

    def wait(self, seconds: float) -> None:
        """Let it hurt. Not ended by `over`: a fault has its full length."""
        time.sleep(seconds)


Stroke = Callable[[Stage, Machine, random.Random], None]


# Processes


def kill_worker(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """SIGKILL one worker, if there is one."""
    number = choose.randrange(100)
    if machine.has_workers:
        with stage.fault("worker killed", machine.name) as fault:
            fault.deaths = machine.kill_worker(number)


def kill_supervisor(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """SIGKILL a supervisor; its workers are orphans, and the process manager starts another."""
    with stage.fault("supervisor killed", machine.name) as fault:
        fault.deaths = machine.kill_supervisor()
        stage.wait(choose.uniform(2, 3))


def kill_machine(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """Everything on one machine dies at once. It comes back when the others have long noticed."""
    with stage.fault("machine killed", machine.name) as fault:
        fault.deaths = machine.kill()
        stage.wait(LEASE + choose.uniform(4, 6))
        machine.start()


def stop_machine(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """A rolling deploy: SIGTERM, wait for the end, start the new one."""
    with stage.fault("SIGTERM", machine.name) as fault:
        fault.stops = [machine.stop()]
        machine.start()


def pause_machine(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """SIGSTOP to all of a machine's processes, for longer than the lease: it wakes up, and its jobs are others'."""
    with stage.fault("machine paused", machine.name) as fault:
        fault.deaths = machine.pause()
        stage.wait(LONG)
        machine.resume()


def pause_workers(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """SIGSTOP to the workers for longer than the lease, while their supervisor lives: they keep their jobs."""
    with stage.fault("workers paused", machine.name):
        machine.pause(workers_only=True)
        stage.wait(LEASE + choose.uniform(1, 3))
        machine.resume()


def change_clock(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """A machine's clock jumps, to an hour before or after all others, and back."""
    with stage.fault("clock off", machine.name):
        machine.set_clock(choose.choice((HOUR, -HOUR)))
        stage.wait(choose.uniform(4, 6))
        machine.set_clock(0)


# The network between a machine and PostgreSQL


def cut_network(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """All connections of a machine are reset, and for a moment there are no new ones."""
    with stage.fault("connections cut", machine.name):
        machine.proxy.refuse()
        machine.proxy.cut()
        stage.wait(choose.uniform(0, 2))
        machine.proxy.accept()


def stall_network(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """No byte and no error gets through to or from a machine, for longer than the lease."""
    with stage.fault("network stalled", machine.name) as fault:
        fault.deaths = [Death(pid, time.time(), alone=False) for pid in machine.pids]
        machine.proxy.stall()
        stage.wait(LONG)
        machine.proxy.flow()


def lose_server(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """Half-open: the server has closed a machine's connections, and the machine never hears of it."""
    with stage.fault("half-open", machine.name):
        machine.proxy.lose_server()
        stage.wait(LONG)


def lose_clients(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """Half-open: a machine's connections are closed, and the server does not hear of it for a while."""
    with stage.fault("half-open", machine.name):
        machine.proxy.lose_clients()
        stage.wait(choose.uniform(2, 4))
        machine.proxy.tell_server()


# PostgreSQL


def crash_postgres(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """`stop -m immediate`, and start after a moment."""
    with stage.fault("PostgreSQL crashed", POSTGRES):
        stage.cluster.crash()
        stage.wait(choose.uniform(0.5, 3))
        stage.cluster.start()


def pause_postgres(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """SIGSTOP to all of PostgreSQL for longer than the lease."""
    with stage.fault("PostgreSQL paused", POSTGRES):
        stage.cluster.pause()
        stage.wait(LEASE + choose.uniform(2, 4))
        stage.cluster.resume()


def terminate_backends(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """Twice a second a third of all connections is ended by the server, for some seconds."""
    with stage.fault("backends terminated", POSTGRES):
        for _ in range(10):
            stage.cluster.terminate_backends(choose, share=0.3)
            stage.wait(0.5)


def lock_table(stage: Stage, machine: Machine, choose: random.Random) -> None:
    """Somebody locks the whole table for 10 s, and then rows of it."""
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

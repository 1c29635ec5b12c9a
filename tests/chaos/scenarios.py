"""The scenarios with their faults and targets, and the class that runs one, from the first job to the evidence.

Invariant: every run has a time without faults at its beginning and at its end. The load defers jobs all the time.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from django.db import connections

from scripts.embedded_rabbitmq import program

from . import WORKER_TIMEOUT, clocks, faults
from .census import Census
from .cluster import Cluster
from .evidence import FINISHED, Evidence, Fault, gather
from .faults import Stroke
from .figures import FULL_SPEED
from .load import Load
from .machines import PROCESSES_EACH, Machine
from .stage import Stage
from .witness import EMPTY_TABLES

LONGEST_WARM_UP = 10.0
"""Seconds at most, after the start, until nearly all jobs that the load defers in a second are finished in a second."""

CALM_BEFORE = 3.0
CALM_AFTER, LONGEST_CALM_AFTER = 4.0, 12.0
"""Seconds without a fault at the end: at least, and at most while the speed from before the faults is not back."""

LONGEST_DRAIN = 240.0
"""Seconds after the end of the load within which every job must be finished, even on a busy computer."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Faults of one kind, or of all kinds at once."""

    strokes: Sequence[Stroke]
    pause: tuple[float, float] = (1.0, 3.0)
    """The shortest and the longest pause between two strokes of a lane, in seconds."""
    lanes: Sequence[Sequence[Stroke]] = ()
    """The strokes (functions that cause a fault) of the scenario `mixed`: a thread for each lane calls them."""
    lengths: float = 1.0
    """The factor by which this scenario runs longer than others."""
    has_standby: bool = False
    """Whether every commit waits for a second PostgreSQL, to which the cluster can fail over."""
    has_three: bool = False
    """Whether one `runworker` serves three databases: then `one_of_three` runs it."""
    has_steps: bool = False
    """Whether some of its jobs have steps and get signals."""
    has_carrier: bool = False
    """Whether Celery runs the jobs: then `run_with_carrier` runs it."""

    @property
    def needs(self) -> str:
        """The program that the scenario needs and this computer lacks; empty if nothing is missing."""
        if self.has_carrier:
            return "" if program() else "RabbitMQ, Debian's package rabbitmq-server"
        if self.strokes or self.lanes or self.has_three:
            return ""
        return "libfaketime, Debian's package faketime"

    @property
    def has_clocks(self) -> bool:
        """Whether its machines have their own clocks."""
        return any(faults.change_clock in strokes for strokes in [self.strokes, *self.lanes])


PROCESSES = (
    faults.kill_worker,
    faults.kill_supervisor,
    faults.kill_machine,
    faults.stop_machine,
    faults.pause_machine,
    faults.pause_workers,
    faults.pause_supervisor,
    faults.block_log,
)
NETWORK = (
    faults.cut_network,
    faults.stall_network,
    faults.lose_server,
    faults.lose_clients,
    faults.stall_supervisor,
    faults.refuse_supervisor,
    faults.slow_connects,
)
CLOCKS = (faults.change_clock,) if clocks.FOLDER else ()
DATABASE_CLOCK = (faults.change_database_clock,) if clocks.FOLDER else ()
POSTGRES = (
    faults.crash_postgres,
    faults.pause_postgres,
    faults.terminate_backends,
    faults.lock_table,
    *DATABASE_CLOCK,
)

SCENARIOS = {
    "workers-killed": Scenario(strokes=[faults.kill_worker], pause=(0.3, 1.5)),
    "supervisors-killed": Scenario(strokes=[faults.kill_supervisor]),
    "machine-killed": Scenario(strokes=[faults.kill_machine]),
    "rolling-restart": Scenario(strokes=[faults.stop_machine], pause=(0.5, 1.5)),
    "machines-paused": Scenario(
        strokes=[faults.pause_machine, faults.pause_workers],
    ),
    "supervisors-silent": Scenario(
        strokes=[faults.pause_supervisor, faults.stall_supervisor, faults.refuse_supervisor],
        pause=(0.5, 0.5),
    ),
    "workers-frozen": Scenario(
        strokes=[faults.freeze_workers],
    ),
    "logs-blocked": Scenario(strokes=[faults.block_log]),
    "network-cut": Scenario(strokes=[faults.cut_network]),
    "network-stalled": Scenario(strokes=[faults.stall_network]),
    "half-open": Scenario(strokes=[faults.lose_server, faults.lose_clients], pause=(0.5, 0.5)),
    "slow-to-connect": Scenario(strokes=[faults.slow_connects]),
    "postgres-crashed": Scenario(strokes=[faults.crash_postgres]),
    "failover": Scenario(strokes=[faults.fail_over], has_standby=True),
    "roles-swapped": Scenario(strokes=[faults.turn_read_only], has_standby=True),
    "one-of-three": Scenario(strokes=[], has_three=True),
    "postgres-paused": Scenario(strokes=[faults.pause_postgres]),
    "backends-terminated": Scenario(strokes=[faults.terminate_backends], pause=(0.5, 0.5)),
    "table-locked": Scenario(strokes=[faults.lock_table]),
    "clocks-off": Scenario(strokes=CLOCKS),
    "database-clock-off": Scenario(strokes=DATABASE_CLOCK),
    "large-rows": Scenario(strokes=[faults.send_large]),
    "short-then-long": Scenario(strokes=[faults.short_then_long]),
    "steps": Scenario(
        strokes=[
            faults.kill_worker,
            faults.stop_machine,
            faults.cut_network,
            faults.pause_postgres,
            faults.terminate_backends,
            faults.kill_machine,
        ],
        pause=(0.3, 1.0),
        has_steps=True,
    ),
    "relay": Scenario(
        strokes=[],
        has_carrier=True,
    ),
    "mixed": Scenario(
        strokes=[],
        pause=(0.5, 4.0),
        lengths=3,
        has_steps=True,
        lanes=[POSTGRES, (*PROCESSES, *NETWORK, *CLOCKS), (*PROCESSES, *NETWORK, *CLOCKS)],
    ),
}


class Run:
    """One run of a scenario on a cluster that runs and has the tables."""

    longest_calm_after = LONGEST_CALM_AFTER

    def __init__(self, name: str, cluster: Cluster, folder: Path, *, seed: int, seconds: float, rate: float) -> None:
        self.scenario = SCENARIOS[name]
        self._seconds = seconds * self.scenario.lengths
        self._rate = rate
        self._cluster = cluster
        self._folder = folder
        folder.mkdir(parents=True)
        self._rng = random.Random(f"{seed} {name}")
        self._stage = Stage(cluster, self._machines(cluster, folder))
        self._load = Load(random.Random(self._rng.random()), rate=rate, has_steps=self.scenario.has_steps)

    def _machines(self, cluster: Cluster, folder: Path) -> list[Machine]:
        options = {"own_clock": self.scenario.has_clocks, "knows_standby": self.scenario.has_standby}
        return [Machine(f"machine-{number}", cluster, folder, **options) for number in (1, 2)]

    def evidence(self) -> Evidence:
        """Run the scenario, and return its evidence."""
        with self._cluster.connect() as connection:
            connection.execute(EMPTY_TABLES)
        machines = self._stage.machines
        census = Census(machines)
        try:
            if self.scenario.has_standby:
                self._cluster.add_standby()
            for machine in machines:
                machine.boot()
            census.start()
            self._wait_for_workers()
            self._load.start()
            self._wait_for_speed(FULL_SPEED * self._rate, at_least=1, at_most=LONGEST_WARM_UP)
            calm_from = time.time()
            time.sleep(CALM_BEFORE)
            broken_from = time.time()
            self._break_things()
            calm_again = time.time()
            self._wait_for_speed(FULL_SPEED * self._rate, at_least=CALM_AFTER, at_most=self.longest_calm_after)
            load_until = time.time()
            self._load.stop()
            self._drain()
            self._stop_all()
        finally:
            self._load.stop()
            for machine in machines:
                machine.end()
                machine.logbook.save(self._folder)
            (self._folder / "faults.txt").write_text("".join(f"{fault}\n" for fault in self._stage.faults))
        self._cluster.remove_standby()
        with self._cluster.connect() as connection:
            return gather(
                connection,
                lives=census.stop(),
                log=sorted(line for machine in machines for line in machine.logbook.lines),
                faults=self._stage.faults,
                worker_timeout=WORKER_TIMEOUT,
                rate=self._rate,
                calm_from=calm_from,
                broken_from=broken_from,
                calm_again=calm_again,
                load_until=load_until,
            )

    def _wait_for_speed(self, jobs_per_second: float, *, at_least: float, at_most: float) -> None:
        """Wait until `wanted` jobs are finished in a second; wait for `at_least` to `at_most` seconds."""
        statement = (
            "SELECT count(*) FROM chaos_change, to_timestamp(%s) AS now"
            " WHERE after = ANY (%s) AND at > now - interval '1 second' AND at <= now"
        )
        began = time.monotonic()
        with self._cluster.connect() as connection:
            while (waited := time.monotonic() - began) < at_most:
                if waited >= at_least and _count(connection, statement, time.time(), list(FINISHED)) >= jobs_per_second:
                    return
                time.sleep(0.2)

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + 60
        while not all(machine.logbook.count("worker started ") >= PROCESSES_EACH for machine in self._stage.machines):
            if time.monotonic() > deadline:
                raise RuntimeError("The workers did not come up within 60 s.")
            time.sleep(0.05)

    def _break_things(self) -> None:
        """Run the strokes of each lane in a thread until the time is over."""
        with ThreadPoolExecutor() as pool:
            lanes = [
                pool.submit(self._strike, strokes, machines, random.Random(self._rng.random()))
                for strokes, machines in self._lanes()
            ]
            time.sleep(self._seconds)
            self._stage.over.set()
        for lane in lanes:
            lane.result()

    def _lanes(self) -> list[tuple[Sequence[Stroke], list[Machine]]]:
        machines = self._stage.machines
        if not self.scenario.lanes:
            return [(self.scenario.strokes, machines)]
        return list(zip(self.scenario.lanes, [machines, *([machine] for machine in machines)], strict=True))

    def _strike(self, strokes: Sequence[Stroke], machines: list[Machine], rng: random.Random) -> None:
        """Call each stroke once in a random order, then again; the machines take turns."""
        turn = 0
        while not self._stage.over.is_set():
            for stroke in rng.sample(strokes, len(strokes)):
                # Without lanes, each stroke is called at least once, even if the time is over.
                if self.scenario.lanes and self._stage.over.is_set():
                    return
                stroke(self._stage, machines[turn % len(machines)], rng)
                turn += 1
                self._stage.over.wait(rng.uniform(*self.scenario.pause))

    def _drain(self) -> None:
        """Wait until every job and batch is finished; the invariants call unfinished jobs lost.

        `Load.mend` retries or discards the failed jobs that halt sequences, as an operator would.
        """
        deadline = time.monotonic() + LONGEST_DRAIN
        unfinished = (
            "SELECT (SELECT count(*) FROM skipqueue_job WHERE NOT status = ANY (%s))"
            " + (SELECT count(*) FROM skipqueue_batch WHERE finished_at IS NULL)"
        )
        connections.close_all()  # the connection of this thread is older than the faults
        with self._cluster.connect() as connection:
            while _count(connection, unfinished, list(FINISHED)) and time.monotonic() < deadline:
                self._load.mend()
                time.sleep(0.1)

    def _stop_all(self) -> None:
        """Stop all machines by a last SIGTERM, which is judged like every SIGTERM."""
        for machine in self._stage.machines:
            fault = Fault("SIGTERM at the end", machine.name, time.time())
            fault.stops = [machine.stop()]
            fault.ended = time.time()
            self._stage.faults.append(fault)


def _count(connection: psycopg.Connection[Any], statement: LiteralString, *values: object) -> int:
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    return int(row[0])

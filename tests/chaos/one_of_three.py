"""The scenario `one-of-three`: one `runworker` serves three databases, which go down one after the other.

Invariant: no two databases are down at the same time, and each is available again before the next fault.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command

from django_skipqueue import conf

from . import WORKER_TIMEOUT
from .evidence import Fault
from .figures import FULL_SPEED
from .records_of_three import Records, violations
from .report import Verdict
from .three import Database, Runworker, use_databases

ALIASES = ("queue_1", "queue_2", "queue_3")

CALM_SECONDS = 4.0
"""Seconds without a fault before the first fault, and after each fault."""

LONGEST_WAIT = 60.0
"""Seconds within which jobs of all databases must run after the start, and of each database after its fault."""

LONGEST_DRAIN = 120.0
"""Seconds after the end of the load within which every job must be finished."""

Stroke = Callable[[Database, random.Random], None]


def cut(database: Database, rng: random.Random) -> None:
    """Reset all connections, and refuse new ones."""
    database.proxy.refuse()
    database.proxy.cut()
    time.sleep(rng.uniform(3, 5))
    database.proxy.accept()


def stall(database: Database, rng: random.Random) -> None:
    """Let no byte through for longer than the worker timeout."""
    database.proxy.stall()
    time.sleep(WORKER_TIMEOUT + rng.uniform(2, 4))
    database.proxy.flow()


def crash(database: Database, rng: random.Random) -> None:
    """Crash the database by `stop -m immediate`, and start it after a moment."""
    database.cluster.crash()
    time.sleep(rng.uniform(2, 4))
    database.cluster.start()


STROKES: dict[Stroke, str] = {cut: "connections cut", stall: "stalled", crash: "crashed"}


class RunOfThree:
    """One run from the first job to the verdict. The load defers `rate` jobs a second, a third in each database."""

    def __init__(self, scenario: str, folder: Path, *, seed: int, seconds: float, rate: float) -> None:
        self._scenario = scenario
        self._folder = folder
        self._seconds = seconds
        self._rate = rate / len(ALIASES)
        self._rng = random.Random(f"{seed} one-of-three")
        self._databases = [Database(alias, folder / alias, rate=self._rate) for alias in ALIASES]
        self._faults: list[Fault] = []

    def verdict(self) -> Verdict:
        """Run the scenario, and judge it."""
        try:
            for database in self._databases:
                database.boot()
            with use_databases(self._databases):
                for alias in ALIASES:
                    call_command("migrate", database=alias, verbosity=0)
                with self._runworker() as runworker:
                    records = self._records(runworker)
        finally:
            for database in self._databases:
                database.end()
        return self._judge(records)

    @contextmanager
    def _runworker(self) -> Iterator[Runworker]:
        runworker = Runworker(self._databases)
        try:
            yield runworker
        finally:
            runworker.end()
            runworker.logbook.save(self._folder)

    def _records(self, runworker: Runworker) -> Records:
        for database in self._databases:
            database.start()
        self._wait_until_served(self._databases)
        calm_from = time.time()
        time.sleep(CALM_SECONDS)
        broken_from = time.time()
        self._break_things()
        for database in self._databases:
            database.stop()
        deadline = time.monotonic() + LONGEST_DRAIN
        while not all(database.is_done for database in self._databases) and time.monotonic() < deadline:
            time.sleep(0.1)
        code = runworker.stop()
        for database in self._databases:
            database.read()
        return Records(
            databases={database.alias: database.record for database in self._databases},
            faults=self._faults,
            rate=self._rate,
            calm_from=calm_from,
            broken_from=broken_from,
            heartbeat_interval=conf.settings.heartbeat_interval,
            exit_code=code,
        )

    def _break_things(self) -> None:
        """Cause each kind of fault once in a random order, then again; the databases take turns."""
        over_at, turn = time.monotonic() + self._seconds, 0
        while not turn or time.monotonic() < over_at:
            for stroke in self._rng.sample(list(STROKES), len(STROKES)):
                database = self._databases[turn % len(self._databases)]
                fault = Fault(STROKES[stroke], database.alias, time.time())
                stroke(database, self._rng)
                fault.ended = time.time()
                self._faults.append(fault)
                self._wait_until_served([database])
                time.sleep(CALM_SECONDS)
                turn += 1

    def _wait_until_served(self, databases: Sequence[Database]) -> None:
        """Wait until nearly all jobs that the load defers in a second are finished in a second."""
        deadline = time.monotonic() + LONGEST_WAIT
        while not all(database.finished_lately() >= FULL_SPEED * self._rate for database in databases):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{databases[0].alias} was not served within {LONGEST_WAIT:g} s.")
            time.sleep(0.1)

    def _judge(self, records: Records) -> Verdict:
        jobs = sum(len(record.statuses) for record in records.databases.values())
        speed = sum(records.calm_speed(alias) for alias in ALIASES)
        # The columns of the table in the module `report`; this scenario leaves some empty.
        cells = [f"`{self._scenario}`", f"{jobs:,}", f"{speed:.0f}", f"{len(records.faults)}"]
        cells += ["", "", f"{max(records.gaps(), default=0.0):.2f}", ""]
        return Verdict(self._scenario, f"| {' | '.join(cells)} |", list(violations(records)))

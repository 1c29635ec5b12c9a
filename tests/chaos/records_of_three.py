"""The records of the scenario `one-of-three`, and their checks: a database that is down must not affect the others.

Invariant: each function is pure. All times are seconds since the epoch.
"""

from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from .evidence import Fault
from .figures import FULL_SPEED

GRACE = 2.0
"""Seconds by which a heartbeat may be older than the heartbeat interval: writing and reading it take time."""


@dataclass
class Record:
    """The record of one database."""

    promised: set[int] = field(default_factory=set)
    """The ids of the jobs that were deferred without an error."""
    statuses: dict[int, str] = field(default_factory=dict)
    """The status of each job at the end, by its id."""
    finished: list[float] = field(default_factory=list)
    """The times at which jobs were finished, in order."""
    ages: list[tuple[float, float]] = field(default_factory=list)
    """Times at which heartbeats were read, and the age of the oldest heartbeat then, in seconds."""

    def speed(self, began: float, ended: float) -> float:
        """The jobs finished a second between two times."""
        return (bisect(self.finished, ended) - bisect(self.finished, began)) / (ended - began)


@dataclass
class Records:
    """The records of all databases. The target of a fault is the alias of a database."""

    databases: Mapping[str, Record]
    faults: list[Fault]
    rate: float
    """Jobs deferred a second in each database."""
    calm_from: float
    broken_from: float
    heartbeat_interval: float
    exit_code: int | None

    def calm_speed(self, alias: str) -> float:
        """The jobs of this database finished a second before the first fault, but at most those that the load defers.

        While the load catches up after a delay, more jobs are finished than later.
        """
        return min(self.databases[alias].speed(self.calm_from, self.broken_from), self.rate)

    def gaps(self) -> Iterator[float]:
        """Yield, for each fault and each database that it did not hit, the longest time without a finished job."""
        for fault, _, record in _faults_and_unaffected_databases(self):
            finished = record.finished
            finish_times_during_fault = finished[bisect(finished, fault.began) : bisect(finished, fault.ended)]
            yield max(
                later - earlier for earlier, later in pairwise([fault.began, *finish_times_during_fault, fault.ended])
            )


def violations(records: Records) -> Iterator[str]:
    """Yield each violation, as a sentence."""
    yield from lost(records)
    yield from slowed(records)
    yield from silenced(records)
    if records.exit_code != 0:
        yield f"after SIGTERM `runworker` ended with {records.exit_code}"


def lost(records: Records) -> Iterator[str]:
    """Yield the jobs that have no row at the end, or are not completed."""
    for alias, record in records.databases.items():
        for id in sorted(record.promised | record.statuses.keys()):
            status = record.statuses.get(id, "gone")
            if status != "completed":
                yield f"job {alias}:{id} is {status}"


def slowed(records: Records) -> Iterator[str]:
    """Yield the databases in which fewer jobs were finished a second while another database was down than before."""
    for fault, alias, record in _faults_and_unaffected_databases(records):
        speed, expected_speed = record.speed(fault.began, fault.ended), FULL_SPEED * records.calm_speed(alias)
        if speed < expected_speed:
            yield f"{fault.what} of {fault.target}: {alias} finished {speed:.0f} jobs/s, not {expected_speed:.0f}"


def silenced(records: Records) -> Iterator[str]:
    """Yield the databases whose heartbeats were too old, or not read, while another database was down."""
    limit = records.heartbeat_interval + GRACE
    for fault, alias, record in _faults_and_unaffected_databases(records):
        ages = [age for at, age in record.ages if fault.began <= at <= fault.ended]
        if not ages or max(ages) > limit:
            description = f"{max(ages):.1f} s old" if ages else "never seen"
            yield f"{fault.what} of {fault.target}: a heartbeat of {alias} was {description}"


def _faults_and_unaffected_databases(records: Records) -> Iterator[tuple[Fault, str, Record]]:
    """Yield each fault with each database that it did not hit."""
    for fault in records.faults:
        for alias, record in records.databases.items():
            if alias != fault.target:
                yield fault, alias, record

"""The scenario `relay`: two relays hand all jobs over to a Celery worker; faults hit relays, Celery and the broker."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from django_skipqueue.contrib.celery.carrier import carrier_id

from . import faults
from .carried import CARRIER, CHILDREN, Broker, CeleryWorker, Relays
from .carrier_faults import CarrierFaults
from .carrier_invariants import jobs_run_twice
from .cluster import Cluster
from .evidence import Evidence
from .faults import Stroke
from .load import Load
from .machines import Machine
from .scenarios import Run

COUNT_CARRIED_JOBS = "SELECT count(*) FROM skipqueue_job WHERE status = 'running' AND locked_by = %s"

COUNT_INTERVAL = 0.1
"""Seconds between two counts of the jobs that the carrier (Celery) holds."""

START_SECONDS = 60.0

MOST_A_SECOND = 100.0
"""Jobs that the load defers a second: a job costs Celery and the broker more time than a worker."""


class RunWithCarrier(Run):
    """A `Run` whose machines are the relays."""

    longest_calm_after = 45.0

    def __init__(self, name: str, cluster: Cluster, folder: Path, *, seed: int, seconds: float, rate: float) -> None:
        rate = min(rate, MOST_A_SECOND)
        super().__init__(name, cluster, folder, seed=seed, seconds=seconds, rate=rate)
        self._load = Load(random.Random(self._rng.random()), rate=rate, has_timeouts=True)
        self._counts: list[tuple[float, int]] = []
        self._messages_left: dict[str, int] = {}

    def _machines(self, cluster: Cluster, folder: Path) -> list[Machine]:
        self._broker = Broker(folder / "rabbitmq")
        relays = [Relays(f"relay-{number}", cluster, folder, self._broker.node) for number in (1, 2)]
        self._celery = CeleryWorker("celery", cluster, folder, self._broker.node)
        self._faults = CarrierFaults(self._broker, self._celery, relays)
        return list(relays)

    def evidence(self) -> Evidence:
        """See `Run.evidence`."""
        is_over = threading.Event()
        counting = threading.Thread(target=self._count_carried_jobs, args=[is_over], daemon=True)
        try:
            self._broker.node.start()
            self._celery.boot()
            counting.start()
            evidence = super().evidence()
        finally:
            is_over.set()
            self._celery.end()
            self._celery.logbook.save(self._folder)
            self._broker.node.remove()
        counting.join()
        self._save_jobs_run_twice(evidence)
        return replace(evidence, carried_counts=self._counts, messages_left=self._messages_left)

    def _save_jobs_run_twice(self, evidence: Evidence) -> None:
        """Write the changes and rows of the jobs that ran twice into a file, to analyse them."""
        lines = []
        for job in sorted(jobs_run_twice(evidence)):
            entries = [(entry.at, f"{entry.what} under lease {entry.lease}") for entry in evidence.entries_of[job]]
            changes = [
                (change.at, f"{change.verb}, lease {change.lease} {change.holder}") for change in evidence.by_job[job]
            ]
            lines += [f"{job} {at:.3f} {what}\n" for at, what in sorted(entries + changes)]
        (self._folder / "twice.txt").write_text("".join(lines))

    def _count_carried_jobs(self, is_over: threading.Event) -> None:
        while not is_over.wait(COUNT_INTERVAL):
            try:
                with self._cluster.connect() as connection:
                    while not is_over.wait(COUNT_INTERVAL):
                        row = connection.execute(COUNT_CARRIED_JOBS, [carrier_id(CARRIER)]).fetchone()
                        self._counts.append((time.time(), int(row[0]) if row else 0))
            except psycopg.Error:  # PostgreSQL is down
                continue

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(machine.has_workers for machine in self._stage.machines) or len(self._celery.pids) <= CHILDREN:
            if time.monotonic() > deadline:
                raise RuntimeError(f"The relays and Celery's worker did not come up within {START_SECONDS:g} s.")
            time.sleep(0.05)

    def _lanes(self) -> list[tuple[Sequence[Stroke], list[Machine]]]:
        relays: list[Any] = [faults.kill_worker, faults.kill_supervisor, faults.stop_machine, faults.kill_worker]
        lanes = [relays, self._faults.of_celery, self._faults.of_broker, [faults.crash_postgres]]
        return [(lane, self._stage.machines) for lane in lanes]

    def _stop_all(self) -> None:
        """Wait for up to 10 s until the broker has no message, record the messages that it still has, and stop all."""
        deadline = time.monotonic() + 10
        while any(counts := self._broker.count_messages().values()) and time.monotonic() < deadline:
            time.sleep(0.2)
        self._messages_left = self._broker.count_messages() if any(counts) else {}
        super()._stop_all()
        with self._stage.fault("SIGTERM at the end", self._celery.name) as fault:
            fault.stops = [self._celery.stop()]

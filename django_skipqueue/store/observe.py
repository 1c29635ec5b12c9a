"""The methods that read what is in the queues now. Their cost does not grow with the number of jobs."""

import json
from typing import Any, NamedTuple

from ..values import histogram
from . import sql
from .statements import Statements, raised

MOST_COUNTED = 10_000
"""Queued jobs of one queue that are counted one by one, as long as all queues together have not many more."""

LEAST_COUNTED = 500
MOST_COUNTED_TOGETHER = 50_000
"""Queued jobs that are counted in each queue in any case, and in all."""

MOST_ESTIMATED = 10
"""Queues with more jobs whose number is estimated: an estimate is a query. Of the others it is at least what was
counted."""

MOST_PROBES = 2_000
"""Pairs of a queue and a priority that are looked at."""

MOST_RUNNING = 20_000
"""Running jobs that are looked at; if there are more, their number is estimated."""

RATE_MINUTES = 5
"""Whole minutes before the current one over which a rate is taken."""


class QueueNow(NamedTuple):
    name: str
    queued: int
    """The number of queued jobs, those that wait for a retry not among them."""
    is_estimate: bool
    """Whether `queued` is the planner's estimate, because the jobs are too many to be counted."""
    oldest: float | None
    """Seconds since its longest waiting job was due; `None` if none waits."""
    running: int
    longest: float | None
    """Seconds since the first of its running jobs was claimed; `None` if none runs."""


class QueueRate(NamedTuple):
    per_minute: float
    """Jobs that ended: completed, failed or discarded."""
    waited: list[int]
    """The histogram of the times from the due time to the start of an attempt."""


class HeldNow(NamedTuple):
    tasks: dict[str, int]
    """Their number by task."""
    jobs: list[dict[str, Any]]
    """The id, the task and the time of the claim, `since`, of those that were claimed first."""


class Observing(Statements):
    """Used by pages, commands and metrics."""

    def queues_now(
        self,
        *,
        most: int = MOST_COUNTED,
        least: int = LEAST_COUNTED,
        together: int = MOST_COUNTED_TOGETHER,
        most_running: int = MOST_RUNNING,
    ) -> list[QueueNow]:
        """The queues that have queued or running jobs, alphabetically. Many jobs are estimated.

        `most`: the queued jobs of a queue that are counted at most; fewer where there are many queues.
        `together`: those of all queues, but `least` of each in any case.
        `most_running`: the running jobs that are counted.
        """
        limits = {"limit": MOST_PROBES, "most": most, "least": least, "together": together}
        queued = {name: found for name, *found in self.rows(sql.QUEUED_NOW, limits)}
        running = self._running_now(most_running)
        found = []
        too_many = sorted((name for name in queued if queued[name][1]), key=lambda name: -queued[name][2])
        for name in sorted(queued.keys() | running.keys()):
            number, is_estimate, oldest = queued.get(name, (0, False, None))
            if name in too_many[:MOST_ESTIMATED]:
                number = max(number, self._expected_queued(name))
            found.append(QueueNow(name, number, is_estimate, oldest, *running.get(name, (0, None))))
        return found

    def rates_now(self) -> dict[str, QueueRate]:
        """The rates of the queues that something has happened in, by name; an empty name: of all together."""
        rates: dict[str, QueueRate] = {}
        for name, ended, minutes, waited in self.rows(sql.RATES_NOW, {"minutes": RATE_MINUTES}):
            known = rates.get(name, QueueRate(0.0, histogram.empty()))
            times = histogram.added(known.waited, waited or histogram.empty())
            rates[name] = QueueRate(known.per_minute + ended / minutes, times)
        return rates

    def held_now(self, *, shown: int) -> dict[str, HeldNow]:
        """The jobs that the workers hold, by the id of the worker: how many, and the `shown` first claimed ones."""
        rows = self.rows(sql.HELD_NOW, {"limit": MOST_RUNNING, "shown": shown})
        return {worker: HeldNow(json.loads(tasks), json.loads(jobs)) for worker, tasks, jobs in rows}

    def _running_now(self, most: int) -> dict[str, tuple[int, float]]:
        """The number of running jobs of each queue, and the seconds since the first of them was claimed."""
        rows = self.rows(sql.RUNNING_NOW, {"limit": most})
        counts = {name: number for name, number, _ in rows}
        if sum(counts.values()) >= most:
            counts = raised(counts, self.expected_rows(sql.EXPECTED_RUNNING))
        return {name: (counts[name], longest) for name, _, longest in rows}

    def _expected_queued(self, queue_name: str) -> int:
        return self.expected_rows(sql.EXPECTED_QUEUED, {"queue_name": queue_name})

"""Measure what the limits are about. Each rule sends a statement or two, of a few index probes."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..conf import settings
from ..periodic.observe import late_schedules
from ..store import Store
from ..values.alert_rules import Limit
from . import sql

NEAR = 0.8
"""Share of the limit below which an incident calms down: a value that swings about the limit is one incident."""

WINDOW = 600.0
"""Seconds of which failed attempts and recovered jobs are counted."""

FEWEST_ATTEMPTS = 20
"""Attempts within the window without which no share of them says anything."""


MOST_HALTING = 1_000
"""Failed jobs of sequences that are looked at."""


class Measured(NamedTuple):
    limit: Limit
    value: float
    age: float = 0.0
    """For how many seconds it has been exceeded at least."""
    has_exceeded: bool | None = None
    """`None`: if the value is at the limit or above."""

    @property
    def is_exceeded(self) -> bool:
        return self.value >= self.limit.number if self.has_exceeded is None else self.has_exceeded

    @property
    def is_calm(self) -> bool:
        return not self.is_exceeded and self.value < NEAR * self.limit.number


def measure(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """The values of all limits, by the database's clock."""
    by_rule: dict[str, list[Limit]] = defaultdict(list)
    for limit in limits:
        by_rule[limit.rule].append(limit)
    for rule, its_limits in by_rule.items():
        yield from MEASURES[rule](store, its_limits)


def _oldest_waiting(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """Seconds for which the oldest queued job has been due. Jobs of paused queues wait on purpose."""
    paused = set(store.paused_queues())
    waits = {queue.name: queue.oldest or 0.0 for queue in store.queues_now(most=1) if queue.name not in paused}
    for limit in limits:
        if limit.queue_name:
            oldest = waits.get(limit.queue_name, 0.0)
        else:
            oldest = max((waited for name, waited in waits.items() if name not in limit.others), default=0.0)
        yield Measured(limit, oldest, oldest)


def _no_worker(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """Seconds since the last heartbeat. Workers that have stopped have no rows: then the incident begins now."""
    fresh = 2.5 * min(settings.heartbeat_interval, settings.worker_timeout / 4)
    names = {"queue_names": [limit.queue_name for limit in limits], "carried": sorted(settings.carried_queues)}
    ages = dict(store.rows(sql.HEARTBEAT_AGES, names))
    for limit in limits:
        age = ages[limit.queue_name]
        is_missing = age is None or age >= min(fresh, limit.number)
        yield Measured(limit, age or 0.0 if is_missing else 0.0, age or 0.0, has_exceeded=is_missing)


def _failed_share(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """The share of the attempts of the last ten minutes that failed."""
    for limit, (attempts, failed, _) in _recent(store, limits):
        yield Measured(limit, failed / attempts if attempts >= FEWEST_ATTEMPTS else 0.0)


def _recoveries(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """The jobs that were recovered from dead workers in the last ten minutes."""
    for limit, (_, _, recovered) in _recent(store, limits):
        yield Measured(limit, recovered)


def _schedule_missed(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """Seconds by which the latest schedule is late."""
    late = max((each.late for each in late_schedules(store, limit=1)), default=0.0)
    for limit in limits:
        yield Measured(limit, late, late)


def _sequence_halted(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """Seconds since the first of the halted sequences that keep jobs waiting has halted."""
    seconds = max((each.seconds for each in store.halted_keys(limit=MOST_HALTING)), default=0.0)
    for limit in limits:
        yield Measured(limit, seconds, seconds)


def _recent(store: Store, limits: Sequence[Limit]) -> Iterator[tuple[Limit, tuple[int, ...]]]:
    """The counts of each limit: of its queue, or of all queues without those that have a limit of their own."""
    names = {name for limit in limits for name in (limit.queue_name, *limit.others)}
    counts = {name: row for name, *row in store.rows(sql.RECENT, {"queue_names": sorted(names), "window": WINDOW})}
    for limit in limits:
        others = [counts[name] for name in limit.others]
        yield (
            limit,
            tuple(
                number - sum(other[place] for other in others) for place, number in enumerate(counts[limit.queue_name])
            ),
        )


MEASURES: dict[str, Callable[[Store, Sequence[Limit]], Iterator[Measured]]] = {
    "oldest_waiting": _oldest_waiting,
    "no_worker": _no_worker,
    "failed_share": _failed_share,
    "recoveries": _recoveries,
    "schedule_missed": _schedule_missed,
    "sequence_halted": _sequence_halted,
}
"""The function that measures the limits of each rule."""


def as_json(measured: Sequence[Measured]) -> str:
    return json.dumps(
        [
            {
                "rule": each.limit.rule,
                "queue_name": each.limit.queue_name,
                "age": each.age,
                "value": each.value,
                "threshold": each.limit.number,
            }
            for each in measured
        ]
    )

"""Check the limits of `ALERTS` in one supervisor of all at a time, note the incidents, and claim what is announced.

Each rule sends a statement or two, which read few rows, by an index probe or a few. The statements about incidents
write the small incident table.

Invariant: any number of processes may check at once. The beginning of an incident is announced by one of them, and so
is its end. If that process dies before it confirms, another one announces it again: rather twice than never.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...conf import settings
from ...queue.observe import queues_now
from ...queue.queues import paused_queues
from ...queue.store import Store
from ...values.part import installed_parts
from ...values.records import NEVER
from ...worker.loop import Periodic
from ..schedules.operate import late_schedules
from .events import AlertOver, AlertRaised
from .settings import Limit, limits

NEAR = 0.8
"""Share of the limit below which an incident calms down: a value that swings about the limit is one incident."""

WINDOW = 600.0
"""Seconds of which failed attempts and recovered jobs are counted."""

FEWEST_ATTEMPTS = 20
"""Attempts within the window without which no share of them says anything."""


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

    @property
    def columns(self) -> dict[str, Any]:
        rule, queue_name, threshold, _ = self.limit
        return {"rule": rule, "queue_name": queue_name, "age": self.age, "value": self.value, "threshold": threshold}


def measure(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """The values of all limits, by the database's clock."""
    by_rule: dict[str, list[Limit]] = defaultdict(list)
    for limit in limits:
        by_rule[limit.rule].append(limit)
    for rule, its_limits in by_rule.items():
        yield from MEASURES[rule](store, its_limits)


def _oldest_waiting(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """Seconds for which the oldest queued job has been due. Jobs of paused queues wait on purpose."""
    paused = set(paused_queues(store))
    waits = {queue.name: queue.oldest or 0.0 for queue in queues_now(store, most=1) if queue.name not in paused}
    for limit in limits:
        if limit.queue_name:
            oldest = waits.get(limit.queue_name, 0.0)
        else:
            oldest = max((waited for name, waited in waits.items() if name not in limit.others), default=0.0)
        yield Measured(limit, oldest, oldest)


# no_worker → the seconds since the youngest heartbeat of a worker that serves each of these queues; an empty
# name: of any worker that runs jobs. NULL: there is none. A worker that serves all queues does not serve the `external`
# ones. The table has a row for each worker process.
HEARTBEAT_AGES = """
SELECT asked.queue_name, date_part('epoch', statement_timestamp() - max(worker.heartbeat_at))
FROM
    unnest(%(queue_names)s::text[]) AS asked (queue_name)
    LEFT JOIN skipqueue_worker AS worker
        ON
            NOT worker.is_external
            AND CASE
                WHEN asked.queue_name = '' THEN worker.concurrency > 0
                WHEN worker.queues = '[]' THEN asked.queue_name <> ALL (%(external)s::text[])
                ELSE worker.queues ? asked.queue_name
            END
GROUP BY asked.queue_name
LIMIT 1000
"""


def _no_worker(store: Store, limits: Sequence[Limit]) -> Iterator[Measured]:
    """Seconds since the last heartbeat. Workers that have stopped have no rows: then the incident begins now."""
    fresh = 2.5 * min(settings.heartbeat_interval, settings.worker_timeout / 4)
    names = {"queue_names": [limit.queue_name for limit in limits], "external": sorted(settings.external_queues)}
    ages = dict(store.rows(HEARTBEAT_AGES, names))
    for limit in limits:
        age = ages[limit.queue_name]
        is_missing = age is None or age >= min(fresh, limit.number)
        yield Measured(limit, age or 0.0 if is_missing else 0.0, age or 0.0, has_exceeded=is_missing)


# failed_share, recoveries → for each of these queues the attempts within `window` seconds, those of them that failed,
# and the recovered jobs; an empty name: of all queues. Index: the primary key of the roll-ups, one probe for each.
RECENT = """
SELECT
    asked.queue_name,
    COALESCE(sum(minute.completed + minute.retried + minute.failed + minute.discarded), 0)::bigint,
    COALESCE(sum(minute.retried + minute.failed), 0)::bigint,
    COALESCE(sum(minute.recovered), 0)::bigint
FROM
    unnest(%(queue_names)s::text[]) AS asked (queue_name)
    LEFT JOIN LATERAL (
        SELECT completed, retried, failed, discarded, recovered
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = asked.queue_name
            AND task = ''
            AND starts_at > statement_timestamp() - make_interval(secs => %(window)s)
    ) AS minute ON true
GROUP BY asked.queue_name
LIMIT 1000
"""


def _recent(store: Store, limits: Sequence[Limit]) -> Iterator[tuple[Limit, tuple[int, ...]]]:
    """The counts of each limit: of its queue, or of all queues without those that have a limit of their own."""
    names = {name for limit in limits for name in (limit.queue_name, *limit.others)}
    counts = {name: row for name, *row in store.rows(RECENT, {"queue_names": sorted(names), "window": WINDOW})}
    for limit in limits:
        others = [counts[name] for name in limit.others]
        yield (
            limit,
            tuple(
                number - sum(other[place] for other in others) for place, number in enumerate(counts[limit.queue_name])
            ),
        )


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
    measures = [part.measures["sequence_halted"] for part in installed_parts() if "sequence_halted" in part.measures]
    seconds = max((longest_halt(store) for longest_halt in measures), default=0.0)
    for limit in limits:
        yield Measured(limit, seconds, seconds)


MEASURES: dict[str, Callable[[Store, Sequence[Limit]], Iterator[Measured]]] = {
    "oldest_waiting": _oldest_waiting,
    "no_worker": _no_worker,
    "failed_share": _failed_share,
    "recoveries": _recoveries,
    "schedule_missed": _schedule_missed,
    "sequence_halted": _sequence_halted,
}
"""The function that measures the limits of each rule."""


CALM_SECONDS = 45.0
"""Seconds for which a limit must not be exceeded before its incident is over."""


PATIENCE = 60.0
"""Seconds after which an alert that was claimed and not confirmed is claimed by another process."""


Alert = AlertRaised | AlertOver


# check: writes the limits that are exceeded, each with its value and for how long. The value of `no_worker` is the time
# since the incident began. An incident whose end is still to be announced stays as it is. Index: the primary key.
NOTE_EXCEEDED = """
INSERT INTO skipqueue_incident AS incident (rule, queue_name, since, value, threshold)
SELECT rule, queue_name, statement_timestamp() - make_interval(secs => age), value, threshold
FROM json_to_recordset(%(exceeded)s::json)
    AS measured (rule text, queue_name text, age float8, value float8, threshold float8)
ORDER BY rule, queue_name
ON CONFLICT (rule, queue_name) DO UPDATE
SET since = LEAST(incident.since, EXCLUDED.since),
    value = CASE
        WHEN incident.rule = 'no_worker'
            THEN date_part('epoch', statement_timestamp() - LEAST(incident.since, EXCLUDED.since))
        ELSE EXCLUDED.value
    END,
    threshold = EXCLUDED.threshold,
    calm_since = NULL
WHERE incident.over_at IS NULL
"""

# check: the incidents of all other limits are calm, and over after `calm` seconds; `kept` are those that are not. An
# incident whose limit is no longer in the setting is calm as well. The table has a row for each limit at most.
NOTE_CALM = """
UPDATE skipqueue_incident AS incident
SET calm_since = COALESCE(incident.calm_since, statement_timestamp()),
    over_at = CASE
        WHEN incident.calm_since <= statement_timestamp() - make_interval(secs => %(calm)s) THEN statement_timestamp()
    END
WHERE
    incident.rule > ''
    AND incident.over_at IS NULL
    AND NOT EXISTS (
        SELECT
        FROM json_to_recordset(%(kept)s::json) AS kept (rule text, queue_name text)
        WHERE kept.rule = incident.rule AND kept.queue_name = incident.queue_name
    )
"""

# check: deletes the incidents that are calm before they were raised.
FORGET_CALM = "DELETE FROM skipqueue_incident WHERE rule > '' AND raised_at IS NULL AND calm_since IS NOT NULL"

# check: raises the incidents that have lasted long enough. A restart of all workers is no incident, so `no_worker` has
# to last for as long as its limit; the others are raised at once.
RAISE = """
UPDATE skipqueue_incident
SET raised_at = statement_timestamp()
WHERE
    rule > ''
    AND raised_at IS NULL
    AND (rule <> 'no_worker' OR since <= statement_timestamp() - make_interval(secs => threshold))
"""

# check → the incidents whose beginning or end is to be announced. This caller has claimed them: nobody else gets them,
# unless it dies before it confirms. After `patience` seconds the next one gets them.
CLAIM_ALERTS = """
UPDATE skipqueue_incident
SET claimed_at = statement_timestamp()
WHERE
    rule > ''
    AND raised_at IS NOT NULL
    AND (NOT is_announced OR over_at IS NOT NULL)
    AND (claimed_at IS NULL OR claimed_at <= statement_timestamp() - make_interval(secs => %(patience)s))
RETURNING rule, queue_name, value, threshold, since, over_at, is_announced
"""


def check(store: Store, limits: Sequence[Limit]) -> list[Alert]:
    """Measure, and return the events to send. Each must be confirmed when the sinks have handled it."""
    measured = list(measure(store, limits))
    if exceeded := [each.columns for each in measured if each.is_exceeded]:
        store.execute(NOTE_EXCEEDED, {"exceeded": json.dumps(exceeded)})
    kept = [each.columns for each in measured if not each.is_calm]
    store.execute(NOTE_CALM, {"kept": json.dumps(kept), "calm": CALM_SECONDS})
    store.execute(FORGET_CALM)
    store.execute(RAISE)
    return [
        AlertOver(store.alias, *row[:-1]) if row[-1] else AlertRaised(store.alias, *row[:-2])
        for row in store.rows(CLAIM_ALERTS, {"patience": PATIENCE})
    ]


# confirm: the beginning was announced. Index: the primary key.
CONFIRM_BEGINNING = """
UPDATE skipqueue_incident
SET is_announced = true, claimed_at = NULL
WHERE rule = %(rule)s AND queue_name = %(queue_name)s AND NOT is_announced
"""

# confirm: the end was announced. Index: the primary key.
CONFIRM_END = """
DELETE FROM skipqueue_incident
WHERE rule = %(rule)s AND queue_name = %(queue_name)s AND is_announced AND over_at IS NOT NULL
"""


def confirm(store: Store, alert: Alert) -> None:
    statement = CONFIRM_END if isinstance(alert, AlertOver) else CONFIRM_BEGINNING
    store.execute(statement, {"rule": alert.rule, "queue_name": alert.queue_name})


CHECK_INTERVAL = 20.0
"""Seconds between two checks, over all supervisors."""


CONFIRM_INTERVAL = 0.5
"""Seconds between two looks whether the sinks have handled the alerts."""


# supervisor → a row if nobody has checked for `interval` seconds: it is this caller's turn. Index: the primary key.
TAKE_TURN = """
INSERT INTO skipqueue_incident AS incident (rule, queue_name, since)
VALUES ('', '', statement_timestamp())
ON CONFLICT (rule, queue_name) DO UPDATE SET since = statement_timestamp()
WHERE incident.since <= statement_timestamp() - make_interval(secs => %(interval)s)
RETURNING 1
"""

# supervisor without limits: deletes all incidents, which nobody checks any more.
FORGET_ALL = "DELETE FROM skipqueue_incident"


class WatchAlerts(Periodic):
    """Announces an incident by events, which the dispatcher's thread sends. Without limits it does nothing."""

    name = "alerts"

    def __init__(self, store: Store, delivered: Callable[[], bool]) -> None:
        """`delivered` returns whether the sinks have handled all events."""
        self._store = store
        self._delivered = delivered
        self._unconfirmed: list[Alert] = []

    def run(self, now: float) -> None:
        """Confirm what was announced; else check, if it is this supervisor's turn."""
        if self._unconfirmed:
            if self._delivered():
                while self._unconfirmed:
                    confirm(self._store, self._unconfirmed[0])
                    self._unconfirmed.pop(0)
        elif wanted := limits(settings.alerts):
            if self._store.rows(TAKE_TURN, {"interval": CHECK_INTERVAL - 1.0}):
                self._unconfirmed = check(self._store, wanted)
                for alert in self._unconfirmed:
                    self._store.send(alert)
        else:
            self._store.execute(FORGET_ALL)
            self.due_at = NEVER
            return
        self.run_again_in(CONFIRM_INTERVAL if self._unconfirmed else CHECK_INTERVAL)

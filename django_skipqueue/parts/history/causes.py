"""The failed attempts by their cause, read from the roll-ups, and the acknowledgement of a cause.

Invariant: the cost does not grow with the number of jobs or of failed attempts. Of the jobs, the last one of each cause
is read for its message, by its id.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, NamedTuple

from ...console.arguments import redacted
from ...models import Job
from ...queue.fragments import joined
from ...queue.store import Store
from ...values.records import Cause
from .rollups import HAS_ENDED, OTHER

# The columns are those of `FailureCounts`. A cause fails now (0) if it has failed in the last ten minutes. Else it has
# stopped (2) if attempts of its task have ended since; if none has, nobody knows (1). An acknowledged cause (3) is none
# of these, until it comes back, or fails 20 times in ten minutes and three times as often as before it was
# acknowledged.
# Reads the row of each cause, then its minutes and hours (index: the primary key of the failures); and the rows of the
# tasks since the beginning, for their queues (index: the primary key of the roll-ups).
_FAILING = """
WITH cause AS MATERIALIZED (
    SELECT
        task, exception, place, first_at, last_at, last_line, last_job_id, first_deployment, last_deployment,
        acknowledged_at, acknowledged_by, note, acknowledged_number, came_back_at
    FROM skipqueue_failure_rollup
    WHERE span = 0 AND {which}
),
served AS MATERIALIZED (
    SELECT task, array_agg(queue_name) AS queue_names
    FROM skipqueue_rollup
    WHERE span = 0 AND task = ANY (ARRAY (SELECT task FROM cause))
    GROUP BY task
),
ranked AS MATERIALIZED (
    SELECT
        cause.*, in_minutes.of_ten, in_minutes.of_hour, in_hours.of_day,
        CASE
            WHEN
                cause.acknowledged_at > COALESCE(cause.came_back_at, '-infinity')
                AND in_minutes.of_ten < GREATEST(20, 3 * cause.acknowledged_number)
            THEN 3
            WHEN in_minutes.of_ten > 0 THEN 0
            WHEN {has_ended} THEN 2
            ELSE 1
        END AS standing
    FROM
        cause
        LEFT JOIN served ON served.task = cause.task,
        LATERAL (
            SELECT
                COALESCE(sum(number), 0)::bigint AS of_hour,
                COALESCE(
                    sum(number) FILTER (WHERE starts_at > statement_timestamp() - interval '10 minutes'), 0
                )::bigint AS of_ten
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 60
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '1 hour'
                AND cause.last_at > statement_timestamp() - interval '1 hour'
        ) AS in_minutes,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS of_day
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 3600
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '24 hours'
                AND cause.last_at > statement_timestamp() - interval '24 hours'
        ) AS in_hours
    ORDER BY standing, in_minutes.of_ten DESC, cause.last_at DESC
    LIMIT %(limit)s
)
SELECT
    ranked.task, ranked.exception, ranked.place, ranked.standing, ranked.first_at, ranked.last_at, ranked.last_line,
    ranked.last_job_id, ranked.first_deployment, ranked.last_deployment, ranked.acknowledged_at,
    ranked.acknowledged_by, ranked.note, ranked.of_ten, ranked.of_hour, ranked.of_day,
    COALESCE(hourly.number, 0)::bigint, hourly.hours, hourly.numbers, statement_timestamp()
FROM
    ranked,
    LATERAL (
        SELECT
            sum(number) AS number, array_agg(date_part('epoch', starts_at)::bigint / 3600) AS hours,
            array_agg(number) AS numbers
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 3600
            AND (rollup.task, rollup.exception, rollup.place) = (ranked.task, ranked.exception, ranked.place)
            AND rollup.starts_at > statement_timestamp() - interval '7 days'
    ) AS hourly
ORDER BY ranked.standing, ranked.of_ten DESC, ranked.last_at DESC
"""

_HAS_ENDED_SINCE = joined(
    HAS_ENDED,
    task="cause.task",
    after="cause.last_at",
    before="statement_timestamp()",
    queue_names="served.queue_names",
)

# pages, skipqueue failures → the causes of 7 days. `among`: the causes that are looked at, the last ones first. Index:
# prune of the failures.
FAILING = joined(
    _FAILING,
    which="last_at > statement_timestamp() - interval '7 days' ORDER BY last_at DESC LIMIT %(among)s",
    has_ended=_HAS_ENDED_SINCE,
)

# pages, skipqueue failures → the causes of one task of 7 days. Index: the primary key of the failures; prune if most
# causes are those of this task.
FAILING_OF_TASK = joined(
    _FAILING,
    which="""task = %(task)s AND last_at > statement_timestamp() - interval '7 days'
    ORDER BY last_at DESC
    LIMIT %(among)s""",
    has_ended=_HAS_ENDED_SINCE,
)

# pages → one cause; no row if none of its attempts is known. Index: the primary key of the failures.
FAILURES_OF = joined(
    _FAILING,
    which="task = %(task)s AND exception = %(exception)s AND place = %(place)s",
    has_ended=_HAS_ENDED_SINCE,
)

# pages, skipqueue failures → the last errors of these jobs, with the arguments, of which no secret may be shown: id,
# class, place, message, arguments. A job with large arguments is left out. Index: the primary key of the jobs.
LAST_ERRORS = """
SELECT
    id, errors -> -1 ->> 'exception', COALESCE(errors -> -1 ->> 'place', ''), errors -> -1 ->> 'message',
    args::text, kwargs::text
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND pg_column_size(args) + pg_column_size(kwargs) < 16000
"""

# acknowledge → whether the cause is known. Indexes: the primary key of the failures.
ACKNOWLEDGE = """
UPDATE skipqueue_failure_rollup AS cause
SET acknowledged_at = statement_timestamp(),
    acknowledged_by = %(by)s,
    note = %(note)s,
    acknowledged_number = (
        SELECT COALESCE(sum(number), 0)
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 60
            AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
            AND rollup.starts_at > statement_timestamp() - interval '10 minutes'
    ),
    came_back_at = NULL
WHERE cause.span = 0 AND cause.task = %(task)s AND cause.exception = %(exception)s AND cause.place = %(place)s
RETURNING true
"""

# unacknowledge → whether the cause was acknowledged. Index: the primary key of the failures.
UNACKNOWLEDGE = """
UPDATE skipqueue_failure_rollup
SET acknowledged_at = NULL, acknowledged_by = '', note = '', acknowledged_number = NULL, came_back_at = NULL
WHERE
    span = 0
    AND task = %(task)s
    AND exception = %(exception)s
    AND place = %(place)s
    AND acknowledged_at IS NOT NULL
RETURNING true
"""


MOST_RANKED = 1_000
"""Causes that are looked at to find those that fail most often."""

LONGEST_NOTE = 500
"""Characters."""

NEW = timedelta(hours=1)
"""The age up to which a cause counts as new: the first thing to look at after a deploy."""


class Standing(IntEnum):
    """How a cause stands now. In this order causes are listed."""

    FAILING = 0
    """It has failed in the last ten minutes."""
    OPEN = 1
    """It has not, but no attempt of its task has ended since it failed."""
    STOPPED = 2
    """It has not, although attempts of its task have ended."""
    ACKNOWLEDGED = 3


class FailureCounts(NamedTuple):
    """The failed attempts with one cause. A failed attempt may be retried: these are not failed jobs."""

    cause: Cause
    standing: Standing
    first_at: datetime
    last_at: datetime
    last_line: int | None
    """In the file of the place, of the last attempt."""
    last_job_id: int
    first_deployment: str
    """The setting `DEPLOYMENT` of the first attempt's worker; empty without one."""
    last_deployment: str
    acknowledged_at: datetime | None
    """The time of the last acknowledgement, also of a cause that has come back since."""
    acknowledged_by: str
    note: str
    in_ten_minutes: int
    in_hour: int
    """Those of the last 60 minutes."""
    in_day: int
    """Those of the current hour and the 23 before it."""
    in_week: int
    """Those of the current hour and the 167 before it."""
    by_hour: Mapping[int, int]
    """The numbers above zero of these 168 hours; each hour as its number since the epoch."""
    now: datetime
    """The database's time."""

    @property
    def key(self) -> str:
        """Stands for the cause on the command line."""
        return hashlib.sha256("\0".join(self.cause).encode()).hexdigest()[:8]

    @property
    def task(self) -> str:
        return self.cause.task

    @property
    def exception(self) -> str:
        return self.cause.exception.removeprefix("builtins.")

    @property
    def place(self) -> str:
        """The function that raised it, with the line of the last time: `shop.jobs.send:42`; empty if not known."""
        place, line = self.cause.place, self.last_line
        return f"{place}:{line}" if place and line else place

    @property
    def is_new(self) -> bool:
        """Whether it was seen for the first time within the last hour."""
        return self.now - self.first_at < NEW

    @property
    def is_other(self) -> bool:
        """Whether it stands for the causes that were too many to be counted apart, and so has no jobs of its own."""
        return self.task == OTHER

    @property
    def is_acknowledged(self) -> bool:
        return self.standing == Standing.ACKNOWLEDGED


def failing_causes(store: Store, *, limit: int, task: str = "") -> list[FailureCounts]:
    """The causes of the last 7 days, of one task if it is named, in the order of `Standing`.

    Of causes that stand alike, those come first that failed most often in ten minutes, then the last ones.
    """
    values = {"among": MOST_RANKED, "limit": limit, "task": task}
    return [_counts(row) for row in store.rows(FAILING_OF_TASK if task else FAILING, values)]


def failures_of(store: Store, cause: Cause) -> FailureCounts | None:
    return next((_counts(row) for row in store.rows(FAILURES_OF, {**cause._asdict(), "limit": 1})), None)


def _counts(row: tuple[Any, ...]) -> FailureCounts:
    task, exception, place, standing, *values, hours, numbers, now = row
    by_hour = dict(zip(hours or (), numbers or (), strict=True))
    return FailureCounts._make([Cause(task, exception, place), Standing(standing), *values, by_hour, now])


def last_messages(store: Store, causes: Iterable[FailureCounts]) -> dict[Cause, str]:
    """The first line of the last error of each cause, with its secrets masked.

    A cause is missing if its last job is gone, or has another error by now.
    """
    by_job = {each.last_job_id: each.cause for each in causes}
    found: dict[Cause, str] = {}
    if not by_job:
        return found
    for id, exception, place, message, args, kwargs in store.rows(LAST_ERRORS, {"ids": list(by_job)}):
        cause = by_job[id]
        if (exception, place) == (cause.exception, cause.place) and message:
            text = redacted(cause.task, json.loads(args), json.loads(kwargs)).text(message)
            found[cause] = text.strip().partition("\n")[0]
    return found


def cause_of(job: Job) -> Cause | None:
    last = job.errors[-1] if job.errors else None
    if not isinstance(last, dict):
        return None
    exception, place = (str(last.get(name) or "") for name in ("exception", "place"))
    return Cause(job.task, exception, place) if exception else None


def acknowledge(store: Store, cause: Cause, *, by: str, note: str = "") -> bool:
    """Put the cause behind the others until it comes back. Returns whether it is known."""
    return bool(store.rows(ACKNOWLEDGE, {**cause._asdict(), "by": by, "note": note}))


def unacknowledge(store: Store, cause: Cause) -> bool:
    """Returns whether the cause was acknowledged."""
    return bool(store.rows(UNACKNOWLEDGE, cause._asdict()))

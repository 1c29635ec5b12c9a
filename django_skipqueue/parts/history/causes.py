"""Read how often attempts failed, grouped by their cause, and let operators acknowledge a cause.

A cause is a task, an exception class and the function that raised the exception. The numbers come from the history's
tables (roll-ups), so the cost does not grow with the number of jobs or failed attempts. The message of a cause is read
from its last job, by id.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, NamedTuple

from ...console.arguments import redacted
from ...queue.fragments import joined
from ...queue.store import Store
from ...values.records import Cause
from .rollups import HAS_ENDED, OTHER_NAME

# The columns are the fields of `FailureCounts`; `standing` is a value of `Standing`: 0 failing, 1 open, 2 stopped, 3
# acknowledged. A cause stops being acknowledged when it comes back, or when it fails 20 times in ten minutes and three
# times as often as before the acknowledgement. The statement reads one row per cause, and then the rows of the cause's
# minutes and hours (index: the primary key of the failures). To find the queues of the tasks, it also reads the tasks'
# rows since the beginning (index: the primary key of the roll-ups).
_FAILING = """
WITH cause AS MATERIALIZED (
    SELECT
        task, exception, place, first_at, last_at, last_line, last_job_id, first_deployment, last_deployment,
        acknowledged_at, acknowledged_by, note, acknowledged_number, came_back_at
    FROM skipqueue_failure_rollup
    WHERE span = 0 AND {which}
),
queues_of_task AS MATERIALIZED (
    SELECT task, array_agg(queue_name) AS queue_names
    FROM skipqueue_rollup
    WHERE span = 0 AND task = ANY (ARRAY (SELECT task FROM cause))
    GROUP BY task
),
ranked AS MATERIALIZED (
    SELECT
        cause.*, counted_minutes.last_ten_minutes, counted_minutes.last_hour, counted_hours.last_day,
        CASE
            WHEN
                cause.acknowledged_at > COALESCE(cause.came_back_at, '-infinity')
                AND counted_minutes.last_ten_minutes < GREATEST(20, 3 * cause.acknowledged_number)
            THEN 3
            WHEN counted_minutes.last_ten_minutes > 0 THEN 0
            WHEN {has_ended} THEN 2
            ELSE 1
        END AS standing
    FROM
        cause
        LEFT JOIN queues_of_task ON queues_of_task.task = cause.task,
        LATERAL (
            SELECT
                COALESCE(sum(number), 0)::bigint AS last_hour,
                COALESCE(
                    sum(number) FILTER (WHERE starts_at > statement_timestamp() - interval '10 minutes'), 0
                )::bigint AS last_ten_minutes
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 60
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '1 hour'
                AND cause.last_at > statement_timestamp() - interval '1 hour'
        ) AS counted_minutes,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS last_day
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 3600
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '24 hours'
                AND cause.last_at > statement_timestamp() - interval '24 hours'
        ) AS counted_hours
    ORDER BY standing, counted_minutes.last_ten_minutes DESC, cause.last_at DESC
    LIMIT %(limit)s
)
SELECT
    ranked.task, ranked.exception, ranked.place, ranked.standing, ranked.first_at, ranked.last_at, ranked.last_line,
    ranked.last_job_id, ranked.first_deployment, ranked.last_deployment, ranked.acknowledged_at,
    ranked.acknowledged_by, ranked.note, ranked.last_ten_minutes, ranked.last_hour, ranked.last_day,
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
ORDER BY ranked.standing, ranked.last_ten_minutes DESC, ranked.last_at DESC
"""

_HAS_ENDED_SINCE = joined(
    HAS_ENDED,
    task="cause.task",
    after="cause.last_at",
    before="statement_timestamp()",
    queue_names="queues_of_task.queue_names",
)

# Sent by pages, skipqueue failures. Returns the causes that failed in the last 7 days. Reads only the `among` causes
# that failed last. Index: prune of the failures.
FAILING = joined(
    _FAILING,
    which="last_at > statement_timestamp() - interval '7 days' ORDER BY last_at DESC LIMIT %(among)s",
    has_ended=_HAS_ENDED_SINCE,
)

# Sent by pages, skipqueue failures. Returns the causes with which one task failed in the last 7 days. Index: the
# primary key of the failures, or prune if most causes belong to this task.
FAILING_OF_TASK = joined(
    _FAILING,
    which="""task = %(task)s AND last_at > statement_timestamp() - interval '7 days'
    ORDER BY last_at DESC
    LIMIT %(among)s""",
    has_ended=_HAS_ENDED_SINCE,
)

# Sent by pages. Returns one cause; no row if it is unknown. Index: the primary key of the failures.
FAILURES_OF = joined(
    _FAILING, which="task = %(task)s AND exception = %(exception)s AND place = %(place)s", has_ended=_HAS_ENDED_SINCE
)

# Sent by pages, skipqueue failures. Returns the last error of each of these jobs: the job's id, the exception's class,
# function and message, and the job's arguments, which tell the caller what to mask. Leaves out jobs with large
# arguments. Index: the primary key of the jobs.
LAST_ERRORS = """
SELECT
    id, errors -> -1 ->> 'exception', COALESCE(errors -> -1 ->> 'place', ''), errors -> -1 ->> 'message',
    args::text, kwargs::text
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND pg_column_size(args) + pg_column_size(kwargs) < 16000
"""

# Sent by acknowledge. Acknowledges a cause. Returns a row if the cause is known. Index: the primary key of the
# failures.
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

# Sent by unacknowledge. Takes the acknowledgement of a cause back. Returns a row if the cause was acknowledged. Index:
# the primary key of the failures.
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


MOST_CAUSES_RANKED = 1_000
"""A statement reads this many of the latest causes, to find the most frequent causes."""

LONGEST_NOTE = 500
"""The maximum length of a note, in characters."""

NEW_CAUSE_AGE = timedelta(hours=1)
"""A cause counts as new up to this age. After a deployment, new causes matter most."""


class Standing(IntEnum):
    """How urgent a cause is. Lists of causes are sorted by urgency."""

    FAILING = 0
    """An attempt failed with this cause in the last ten minutes."""
    OPEN = 1
    """No attempt failed with the cause in the last ten minutes, and its task has not run since the last failure."""
    STOPPED = 2
    """No attempt failed with the cause in the last ten minutes, although its task has run since the last failure."""
    ACKNOWLEDGED = 3


class FailureCounts(NamedTuple):
    """How often attempts failed with one cause. A job whose attempt failed may still be retried."""

    cause: Cause
    standing: Standing
    first_at: datetime
    last_at: datetime
    last_line: int | None
    """The number of the source line at which the last attempt failed."""
    last_job_id: int
    first_deployment: str
    """The setting `DEPLOYMENT` of the worker of the first failed attempt, or empty."""
    last_deployment: str
    acknowledged_at: datetime | None
    """The time of the last acknowledgement, even if the cause has come back since."""
    acknowledged_by: str
    note: str
    in_ten_minutes: int
    in_hour: int
    in_day: int
    """The number of failed attempts in the current hour and the 23 hours before."""
    in_week: int
    """The number of failed attempts in the current hour and the 167 hours before."""
    by_hour: Mapping[int, int]
    """The number of failed attempts in each of these 168 hours, without zeros. Keys count hours since the epoch."""
    now: datetime
    """The time by the database's clock."""

    @property
    def key(self) -> str:
        """A short hash that names the cause on the command line."""
        return hashlib.sha256("\0".join(self.cause).encode()).hexdigest()[:8]

    @property
    def task(self) -> str:
        return self.cause.task

    @property
    def exception(self) -> str:
        return self.cause.exception.removeprefix("builtins.")

    @property
    def place(self) -> str:
        """The function and line that raised the exception, such as `shop.jobs.send:42`; empty if unknown."""
        place, line = self.cause.place, self.last_line
        return f"{place}:{line}" if place and line else place

    @property
    def is_new(self) -> bool:
        return self.now - self.first_at < NEW_CAUSE_AGE

    @property
    def is_other(self) -> bool:
        """Whether this entry stands for all causes beyond the limit, so that no single job has it."""
        return self.task == OTHER_NAME

    @property
    def is_acknowledged(self) -> bool:
        return self.standing == Standing.ACKNOWLEDGED


def failing_causes(store: Store, *, limit: int, task: str = "") -> list[FailureCounts]:
    """Return the causes of the last 7 days in the order of `Standing`, of one task or of all tasks.

    Causes with the same standing are sorted by their failures in the last ten minutes, then by the latest failure.
    """
    values = {"among": MOST_CAUSES_RANKED, "limit": limit, "task": task}
    return [_failure_counts(row) for row in store.rows(FAILING_OF_TASK if task else FAILING, values)]


def failures_of(store: Store, cause: Cause) -> FailureCounts | None:
    return next((_failure_counts(row) for row in store.rows(FAILURES_OF, {**cause._asdict(), "limit": 1})), None)


def _failure_counts(row: tuple[Any, ...]) -> FailureCounts:
    task, exception, place, standing, *values, hours, numbers, now = row
    by_hour = dict(zip(hours or (), numbers or (), strict=True))
    return FailureCounts._make([Cause(task, exception, place), Standing(standing), *values, by_hour, now])


def last_messages(store: Store, causes: Iterable[FailureCounts]) -> dict[Cause, str]:
    """Return the first line of the last error of each cause, with its secrets masked.

    Leaves out a cause if its last job no longer exists, or has had another error since.
    """
    by_job = {counts.last_job_id: counts.cause for counts in causes}
    messages: dict[Cause, str] = {}
    if not by_job:
        return messages
    for id, exception, place, message, args, kwargs in store.rows(LAST_ERRORS, {"ids": list(by_job)}):
        cause = by_job[id]
        if (exception, place) == (cause.exception, cause.place) and message:
            text = redacted(cause.task, json.loads(args), json.loads(kwargs)).text(message)
            messages[cause] = text.strip().partition("\n")[0]
    return messages


def acknowledge(store: Store, cause: Cause, *, by: str, note: str = "") -> bool:
    """Move the cause to the end of lists until it comes back. Return whether the cause is known."""
    return bool(store.rows(ACKNOWLEDGE, {**cause._asdict(), "by": by, "note": note}))


def unacknowledge(store: Store, cause: Cause) -> bool:
    """Take the acknowledgement back. Return whether the cause was acknowledged."""
    return bool(store.rows(UNACKNOWLEDGE, cause._asdict()))

"""Read the failed attempts by their cause, from the roll-ups: for pages.

Invariant: the cost does not grow with the number of jobs or of failed attempts.

Used by pages.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ...values.records import Cause

if TYPE_CHECKING:
    from ...queue.store import Store

# pages → the causes of the failed attempts of 7 days, those first that failed most often in the last hour, then in 24
# hours. The columns are those of `FailureCounts`. `among`: the causes that are looked at, the last ones first.
# Reads the row of each cause (index: prune of the failures), then its minutes and hours (index: the primary key).
FAILING = """
WITH cause AS MATERIALIZED (
    SELECT task, exception, place, first_at, last_at, last_line, last_job_id
    FROM skipqueue_failure_rollup
    WHERE span = 0 AND last_at > statement_timestamp() - interval '7 days'
    ORDER BY last_at DESC
    LIMIT %(among)s
),
ranked AS MATERIALIZED (
    SELECT cause.*, in_hour.number AS in_hour, in_day.number AS in_day
    FROM
        cause,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS number
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 60
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '1 hour'
                AND cause.last_at > statement_timestamp() - interval '1 hour'
        ) AS in_hour,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS number
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 3600
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '24 hours'
                AND cause.last_at > statement_timestamp() - interval '24 hours'
        ) AS in_day
    ORDER BY in_hour.number DESC, in_day.number DESC, cause.last_at DESC
    LIMIT %(limit)s
)
SELECT
    ranked.task, ranked.exception, ranked.place, ranked.first_at, ranked.last_at, ranked.last_line, ranked.last_job_id,
    ranked.in_hour, ranked.in_day, COALESCE(hourly.number, 0)::bigint, hourly.hours, hourly.numbers,
    statement_timestamp()
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
ORDER BY ranked.in_hour DESC, ranked.in_day DESC, ranked.last_at DESC
"""

# pages → the same of one cause; no row if none of its attempts is known. Index: the primary key of the failures.
FAILURES_OF = """
SELECT
    cause.task, cause.exception, cause.place, cause.first_at, cause.last_at, cause.last_line, cause.last_job_id,
    in_hour.number, hourly.in_day, hourly.number, hourly.hours, hourly.numbers, statement_timestamp()
FROM
    skipqueue_failure_rollup AS cause,
    LATERAL (
        SELECT COALESCE(sum(number), 0)::bigint AS number
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 60
            AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
            AND rollup.starts_at > statement_timestamp() - interval '1 hour'
    ) AS in_hour,
    LATERAL (
        SELECT
            COALESCE(sum(number) FILTER (WHERE starts_at > statement_timestamp() - interval '24 hours'), 0)::bigint
                AS in_day,
            COALESCE(sum(number), 0)::bigint AS number,
            array_agg(date_part('epoch', starts_at)::bigint / 3600) AS hours,
            array_agg(number) AS numbers
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 3600
            AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
            AND rollup.starts_at > statement_timestamp() - interval '7 days'
    ) AS hourly
WHERE
    cause.span = 0 AND cause.task = %(task)s AND cause.exception = %(exception)s AND cause.place = %(place)s
LIMIT 1
"""


MOST_RANKED = 1_000
"""Causes that are looked at to find those that fail most often."""


class FailureCounts(NamedTuple):
    """The failed attempts with one cause. A failed attempt may be retried: these are not failed jobs."""

    cause: Cause
    first_at: datetime
    last_at: datetime
    last_line: int | None
    """In the file of the place, of the last attempt."""
    last_job_id: int
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


def failing_causes(store: "Store", *, limit: int) -> list[FailureCounts]:
    """The causes of the last 7 days, those first that failed most often in the last hour, then in 24 hours."""
    return [_counts(row) for row in store.rows(FAILING, {"among": MOST_RANKED, "limit": limit})]


def failures_of(store: "Store", cause: Cause) -> FailureCounts | None:
    return next((_counts(row) for row in store.rows(FAILURES_OF, cause._asdict())), None)


def _counts(row: tuple[Any, ...]) -> FailureCounts:
    task, exception, place, *values, hours, numbers, now = row
    by_hour = dict(zip(hours or (), numbers or (), strict=True))
    return FailureCounts._make([Cause(task, exception, place), *values, by_hour, now])

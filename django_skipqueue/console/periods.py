"""A period of time, with the first and last id of the jobs that were enqueued in it.

No index on `enqueued_at` is needed, because ids ascend in the order of enqueueing. A binary search in the primary key
finds the first and last id of a period. A job gets its id shortly after its `enqueued_at`, for which `LONGEST_ENQUEUE`
allows.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from django.db.models import Q
from django.db.models.functions import Now

from ..queue.store import Store

Moment = timedelta | datetime
"""A time, or how long ago it was, by the database's clock."""

LONGEST_ENQUEUE = timedelta(minutes=1)
"""The longest expected time from the start of an INSERT, which is `enqueued_at`, until the job gets its id."""

# Sent by Period.ids. Returns the first id of a job that was enqueued at or after a time; no row if there is no job. The
# time is `moment`, which may be infinite, or lies `ago` before now; in both cases, `allowance` is added. The statement
# is a binary search: each lookup halves the range of ids, so at most 63 rows are read. Index: the primary key.
FIRST_ID_SINCE = """
WITH RECURSIVE wanted (moment) AS MATERIALIZED (
    SELECT COALESCE(%(moment)s::timestamptz, statement_timestamp() - %(ago)s::interval) + %(allowance)s::interval
),
bisected (low, high) AS (
    SELECT first.id, last.id + 1
    FROM
        (SELECT id FROM skipqueue_job ORDER BY id LIMIT 1) AS first,
        (SELECT id FROM skipqueue_job ORDER BY id DESC LIMIT 1) AS last
    UNION ALL
    SELECT
        CASE WHEN probe.enqueued_at < wanted.moment THEN probe.id + 1 ELSE bisected.low END,
        CASE WHEN probe.enqueued_at < wanted.moment THEN bisected.high ELSE (bisected.low + bisected.high) / 2 END
    FROM
        bisected,
        wanted,
        LATERAL (
            SELECT id, enqueued_at
            FROM skipqueue_job
            WHERE id >= (bisected.low + bisected.high) / 2
            ORDER BY id
            LIMIT 1
        ) AS probe
    WHERE bisected.low < bisected.high
)
SELECT low FROM bisected WHERE low >= high LIMIT 1
"""


@dataclass(frozen=True)
class Period:
    since: Moment | None = None
    """The beginning; `None` if the period has no beginning."""
    before: Moment | None = None
    """The end; `None` if the period has no end."""

    def __bool__(self) -> bool:
        return self.since is not None or self.before is not None

    def of(self, column: str) -> Q:
        """Return the condition that the time in this column is in the period."""
        bounds = {f"{column}__gte": self.since, f"{column}__lt": self.before}
        return Q(
            **{
                lookup: Now() - moment if isinstance(moment, timedelta) else moment
                for lookup, moment in bounds.items()
                if moment is not None
            }
        )

    @cached_property
    def ids(self) -> tuple[int, int]:
        """The range of ids of jobs that were enqueued in this period, as (first, last + 1)."""
        first = _first_id(self.since, otherwise="-infinity", allowance=-LONGEST_ENQUEUE)
        return first, _first_id(self.before, otherwise="infinity", allowance=LONGEST_ENQUEUE)

    @property
    def has_ids(self) -> Q:
        """The condition that a job's id is in the range `ids`."""
        first, end = self.ids
        return Q(pk__gte=first) if self.before is None else Q(pk__gte=first, pk__lt=end)


def _first_id(time: Moment | None, *, otherwise: str, allowance: timedelta) -> int:
    is_ago = isinstance(time, timedelta)
    values = {"moment": None if is_ago else time or otherwise, "ago": time if is_ago else None, "allowance": allowance}
    rows = Store.default().rows(FIRST_ID_SINCE, values)
    return int(rows[0][0]) if rows else 0

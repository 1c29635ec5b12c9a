"""Read the keys of rates as they are now, by a few probes of indexes for each: for pages, commands, metrics.

`parts.rates.admit` says what a bucket is, which jobs wait for a token, and which rate a key has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...queue.fragments import joined
from ..keyed.sql import indented
from ..keyed.states import KeyNow, read_keys
from .admit import RATED, WAITS_FOR_RATE

if TYPE_CHECKING:
    from ...queue.store import Store

# pages, commands → for each of these keys that has waiting jobs: the key; the id, the task and the arguments of the
# next job; the seconds for each job and the burst, NULL for any number; the tokens that can be taken now; the number of
# waiting jobs, counted up to `limit`; the seconds until the next one is admitted, NULL if nobody knows; the seconds
# since the first of the counted jobs was due. Index: rate_waiting, rate_queued and the primary key of the buckets, once
# for each key; for the key of a queue the primary key of queues.
RATE_KEYS_NOW = joined(
    """
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text,
    rated.seconds, rated.burst,
    CASE
        WHEN rated.burst IS NOT NULL
        THEN GREATEST(0, floor(
            rated.burst + 0.000001 - GREATEST(
                COALESCE(extract(epoch FROM rate.full_at - statement_timestamp())::float8 / rated.seconds, 0),
                queued.number
            )
        ))::integer
    END,
    waiting.number,
    date_part('epoch', rate.due_at - statement_timestamp()),
    date_part('epoch', statement_timestamp() - waiting.since)
FROM
    unnest((SELECT %(keys)s::text[])) WITH ORDINALITY AS key (name, place)
    LEFT JOIN skipqueue_rate AS rate ON rate.key = key.name
    CROSS JOIN LATERAL (
        SELECT id, task, args, kwargs, rate_interval, rate_burst
        FROM skipqueue_job
        WHERE
            {waits}
            AND rate_key = key.name
        ORDER BY (-priority), run_after, id
        LIMIT 1
    ) AS head
    {rated}
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(run_after) AS since
        FROM (
            SELECT run_after
            FROM skipqueue_job
            WHERE
                {waits_within}
                AND rate_key = key.name
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
        ) AS job
    ) AS waiting
ORDER BY key.place
""",
    rated=indented(RATED, 4),
    waits=indented(WAITS_FOR_RATE, 12),
    waits_within=indented(WAITS_FOR_RATE, 16),
)


@dataclass(frozen=True)
class RateNow(KeyNow):
    interval: float | None
    """Seconds for each job; `None`: any number, if the rate of a queue was removed."""
    burst: int | None
    tokens: int | None
    """How many jobs may start now; `None`: any number."""
    due_in: float | None
    """Seconds until the next one is admitted, below 0 if it is late; `None`: a supervisor has not looked yet."""


def rate_keys_now(store: "Store", keys: Sequence[str]) -> list[RateNow]:
    columns = ("interval", "burst", "tokens", "waiting", "due_in", "oldest")
    return read_keys(store, RATE_KEYS_NOW, keys, RateNow, *columns)

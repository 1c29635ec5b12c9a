"""Measure how many pages and index entries a claim reads. The numbers rise when the index has many dead entries.

A supervisor measures. Rules and metrics show the numbers. A measurement locks no row and delays no claim.
"""

import json
from typing import TYPE_CHECKING, NamedTuple

from django.db import OperationalError
from psycopg.errors import QueryCanceled

from ...queue.session import short_transaction

if TYPE_CHECKING:
    from ...queue.store import Store

# Sent by the supervisor, for the deepest queues. Runs the same search as a claim, and returns its plan with the number
# of pages that the search read. Locks nothing. Index: claim.
EXPLAIN_CLAIM = """
EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)
SELECT ctid
FROM skipqueue_job
WHERE status = 'queued' AND queue_name = %(queue_name)s
ORDER BY (-priority), run_after, id
LIMIT %(limit)s
"""

# Sent by the supervisor, before and after EXPLAIN_CLAIM. Returns how many entries of the index claim this transaction
# has read, including entries of dead rows.
ENTRIES_READ = "SELECT COALESCE(pg_stat_get_xact_tuples_returned(to_regclass('skipqueue_job_claim')), 0)"

# Sent by the doctor, metrics. For each queue that was measured in the last five minutes, returns its name, and the
# numbers of pages and index entries that the search of a claim read. Index: the primary key of the roll-ups, one range
# for the names, and one range per queue.
CLAIM_COSTS = """
SELECT known.queue_name, sample.claim_pages, sample.claim_rows
FROM
    (
        SELECT queue_name
        FROM skipqueue_rollup
        WHERE span = 0 AND task = '' AND queue_name > ''
        ORDER BY queue_name
        LIMIT %(limit)s
    ) AS known,
    LATERAL (
        SELECT claim_pages, claim_rows
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = known.queue_name
            AND task = ''
            AND starts_at > statement_timestamp() - interval '5 minutes'
            AND claim_pages IS NOT NULL
        ORDER BY starts_at DESC
        LIMIT 1
    ) AS sample
"""


CLAIM_LIMIT = 100
"""The maximum number of jobs that the measured search finds."""

MEASURE_SECONDS = 1.0
"""The statement timeout of the measured search."""


class ClaimCost(NamedTuple):
    queue_name: str
    pages: int
    rows: int
    """How many entries of the index `skipqueue_job_claim` were read, including entries of dead rows."""


def measure_claim(store: "Store", queue_name: str) -> ClaimCost | None:
    """Search the queue as a claim does, and measure what this reads. Return `None` if the search takes too long."""
    try:
        with short_transaction(store, MEASURE_SECONDS):
            ((entries_before,),) = store.rows(ENTRIES_READ)
            ((plan,),) = store.rows(EXPLAIN_CLAIM, {"queue_name": queue_name, "limit": CLAIM_LIMIT})
            ((entries_after,),) = store.rows(ENTRIES_READ)
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            return None
        raise
    document = json.loads(plan) if isinstance(plan, str) else plan
    root = document[0]["Plan"]
    pages = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
    return ClaimCost(queue_name, pages, entries_after - entries_before)


def claim_costs(store: "Store", *, limit: int = 200) -> list[ClaimCost]:
    """Return the measurements of the last five minutes. A supervisor measures the deepest queues once a minute."""
    return [ClaimCost(*row) for row in store.rows(CLAIM_COSTS, {"limit": limit})]

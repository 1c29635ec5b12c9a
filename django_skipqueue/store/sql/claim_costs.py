"""Measure what a claim reads: dead index entries show here before they hurt."""

# supervisor, for the deepest queues → the plan of the search of a claim, as it ran, with the pages that it read. Locks
# nothing. Index: claim.
EXPLAIN_CLAIM = """
EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)
SELECT ctid
FROM skipqueue_job
WHERE status = 'queued' AND queue_name = %(queue_name)s
ORDER BY (-priority), run_after, id
LIMIT %(limit)s
"""

# supervisor, before and after it → the entries of the claim index that this transaction has read, those of dead rows
# among them.
ENTRIES_READ = "SELECT COALESCE(pg_stat_get_xact_tuples_returned(to_regclass('skipqueue_job_claim')), 0)"

# doctor, metrics → for each queue that was measured in the last five minutes: its name, and the pages and index entries
# that the search of a claim has read. Index: the primary key of the roll-ups, one range for the names, and one for each
# queue.
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

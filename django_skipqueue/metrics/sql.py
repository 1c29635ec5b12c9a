"""Every statement of the metrics that is not the store's or the doctor's own, as a literal. Each only reads."""

# queues → the names of the queues of which anything was ever counted. Index: the primary key of the roll-ups.
KNOWN_QUEUES = """
SELECT queue_name
FROM skipqueue_rollup
WHERE span = 0 AND task = '' AND queue_name > ''
ORDER BY queue_name
LIMIT %(limit)s
"""

# jobs → the counts of each task in each queue since the beginning, the busiest first. Index: the primary key of the
# roll-ups.
ROLLED_UP = """
SELECT
    queue_name, task, enqueued, recovered, lost, completed, retried, snoozed, failed, discarded,
    array_to_json(waited)::text, waited_seconds, array_to_json(ran)::text, ran_seconds
FROM skipqueue_rollup
WHERE span = 0 AND task > ''
ORDER BY GREATEST(enqueued, completed + retried + snoozed + failed + discarded) DESC, queue_name, task
LIMIT %(limit)s
"""

# claims → the durations of all claims since the beginning, and their sum. Index: the primary key of the roll-ups.
CLAIMS = """
SELECT array_to_json(claim_times)::text, claim_seconds
FROM skipqueue_rollup
WHERE span = 0 AND queue_name = '' AND task = '' AND starts_at = to_timestamp(0)
LIMIT 1
"""

# sizes → the bytes of each index, with its table. Those of partitions are left out.
INDEX_SIZES = """
SELECT ours.name, class.relname, pg_relation_size(class.oid)
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    JOIN pg_index AS index ON index.indrelid = to_regclass(ours.name)
    JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE class.relkind = 'i'
ORDER BY ours.name, class.relname
LIMIT 200
"""

# batches → the number of open batches, of at most 10,000 of them, and the seconds since the first was made. Index: open
# of batches.
OPEN_BATCHES = """
SELECT
    count(*),
    coalesce(
        date_part(
            'epoch',
            statement_timestamp()
            - (SELECT created_at FROM skipqueue_batch WHERE finished_at IS NULL ORDER BY id LIMIT 1)
        ),
        0
    )
FROM (SELECT FROM skipqueue_batch WHERE finished_at IS NULL LIMIT 10000) AS open
LIMIT 1
"""

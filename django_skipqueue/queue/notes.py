"""Write the progress and the log lines that running attempts have noted. Workers call this."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..values.records import Noted
from .fragments import joined
from .parameters import notes_as_values

if TYPE_CHECKING:
    from .store import Store

# Sent by workers about once a second. Returns the ids of the written jobs. `notes` may have an object `progress`, which
# replaces the progress in the row, and an object `log`, which becomes this attempt's entry in `logs`; `logs` keeps the
# entries of the last three attempts. Both objects contain the lease of their attempt. By the lease, a reader recognises
# the notes of an earlier attempt, so that they need not be cleared. `logs - -1` is `logs` without its last entry,
# `logs - 0` without its first. `logs -> 2` is the third entry.
# If the lease is no longer valid, no row matches. A locked row is skipped, because the task itself may hold the lock in
# a long transaction, or because the outcome is about to be written. No indexed column changes, so that no index is
# written. Index: the primary key.
_NOTE_ATTEMPTS = """
WITH held AS MATERIALIZED (
    SELECT job.id, noted.started, noted.notes -> 'progress' AS progress, noted.notes -> 'log' AS log
    FROM
        unnest(
            (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
            (SELECT %(notes)s::text[]::jsonb[])
        ) AS noted (id, lease, started, notes)
        JOIN skipqueue_job AS job ON job.id = noted.id AND job.lease = noted.lease
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET (progress, logs) = (
        SELECT
            CASE
                WHEN held.progress IS NULL THEN job.progress
                ELSE held.progress || jsonb_build_object('at', statement_timestamp())
            END,
            CASE
                WHEN held.log IS NULL THEN job.logs
                ELSE (
                    CASE
                        WHEN job.logs -> -1 -> 'lease' = held.log -> 'lease' THEN job.logs - -1
                        WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                        ELSE COALESCE(job.logs, '[]')
                    END
                ) || (
                    held.log || jsonb_build_object(
                        'started', statement_timestamp() - held.started * interval '1 microsecond'
                    )
                )
            END
        FROM held
        WHERE held.id = job.id
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM held)){only}
RETURNING job.id
"""

NOTE_ATTEMPTS = joined(_NOTE_ATTEMPTS, only="")


def note_attempts(store: "Store", notes: Iterable[Noted]) -> set[int]:
    """Write the notes of many attempts in one statement. Returns the ids of the jobs that were written.

    Skips jobs whose lease is no longer valid, and jobs whose rows are locked. So it never waits for a lock.
    """
    statement = store.guarded(NOTE_ATTEMPTS, notes_as_values(notes))
    return {id for (id,) in store.rows(*statement)}

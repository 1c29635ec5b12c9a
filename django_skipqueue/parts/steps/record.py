"""Record the steps of jobs, and read them.

Invariant: only the holder of the job's lease records. Each statement that records something locks the job's row, and
writes nothing if the lease is no longer valid. Until the commit, no other process can take the job from the worker.

A record resets the job's number of attempts to 1, so that `max_attempts` limits the attempts at one step, not at the
whole task.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from ...queue.fragments import joined, recording
from ...values.records import LeaseRef

if TYPE_CHECKING:
    from ...queue.store import Store

# Sent by an attempt, at its first step. Returns the steps of the job in their order. A sleep or a wait also has the
# seconds that are left. Index: the primary key of steps.
STEPS = """
SELECT
    name, kind, number, attempt, result::text, error::text, recorded_at IS NOT NULL,
    extract(epoch FROM wakes_at - statement_timestamp())::float8
FROM skipqueue_step
WHERE job_id = %(job_id)s
ORDER BY number
"""

# If the lease is valid, locks the row of the job until the commit.
HELD = """held AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = %(job_id)s AND lease = %(lease)s
    FOR NO KEY UPDATE
)"""

_CHANGES_ROW = "%(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL)"
"""Whether the record changes the number of attempts, or the deaths of workers, in the job's row."""

# The columns of the job that a record sets.
_RESET = joined(
    """attempts = CASE WHEN {changes_row} THEN 1 ELSE job.attempts END,
        deaths = CASE WHEN {changes_row} THEN NULL ELSE job.deaths END,
        operations = CASE WHEN {changes_row} THEN {operations} ELSE job.operations END""",
    changes_row=_CHANGES_ROW,
    operations=recording("reset", more={"attempts_after": "1"}),
)

# Records a step. If the step has a row that was open, such as the cursor of a loop, the row is updated.
_RECORD_STEP = """
WITH {held}{reset}
INSERT INTO skipqueue_step AS step
    (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at)
SELECT
    held.id, %(name)s, %(kind)s, %(number)s, %(attempt)s,
    statement_timestamp() - make_interval(secs => %(seconds)s::float8),
    CASE WHEN NOT %(is_open)s::boolean THEN statement_timestamp() END,
    %(result)s::text::jsonb, %(error)s::text::jsonb,
    statement_timestamp() + make_interval(secs => %(delay)s::float8)
FROM held
ON CONFLICT (job_id, name) DO UPDATE
SET attempt = excluded.attempt, recorded_at = excluded.recorded_at, result = excluded.result, error = excluded.error
RETURNING 1
"""

# Sent by an attempt, after a step, if its last record has reset the row of the job. Returns a row if the step was
# recorded; none if the lease is no longer valid. Index: the primary keys.
RECORD_STEP = joined(_RECORD_STEP, held=HELD, reset="")

# Sent by an attempt, after its first step, and after a step that has held the job. Returns what RECORD_STEP returns.
# Also resets the row of the job. Index: the primary keys.
RECORD_STEP_AND_RESET = joined(
    _RECORD_STEP,
    held=HELD,
    reset=joined(
        """,
reset AS (
    UPDATE skipqueue_job AS job
    SET {reset},
        held = NULL
    FROM held
    WHERE job.id = held.id AND ({changes_row} OR job.held)
)""",
        reset=_RESET,
        changes_row=_CHANGES_ROW,
    ),
)

# Sent by an attempt, at a wait. Takes the signal if it has come, or records the timeout if it has passed; otherwise
# holds the job, so that the settle of the attempt blocks it. Returns whether the wait is over, its result and its
# error; no row if the lease is no longer valid. The error of a timeout is an empty object. The timeout counts from the
# first attempt that waits. Index: the primary keys.
TAKE_SIGNAL = joined(
    """
WITH {held},
taken AS (
    UPDATE skipqueue_signal AS signal
    SET taken_at = statement_timestamp()
    FROM held
    WHERE signal.job_id = held.id AND signal.name = %(name)s AND signal.taken_at IS NULL
    RETURNING signal.payload
),
found AS MATERIALIZED (
    SELECT
        held.id,
        (SELECT payload FROM taken) AS payload,
        EXISTS (SELECT FROM taken) AS is_taken,
        due.wakes_at,
        COALESCE(due.wakes_at <= statement_timestamp(), false) AS is_over
    FROM
        held,
        LATERAL (
            SELECT COALESCE(
                (SELECT wakes_at FROM skipqueue_step WHERE job_id = held.id AND name = %(name)s),
                statement_timestamp() + make_interval(secs => %(delay)s::float8)
            )
        ) AS due (wakes_at)
),
reset AS (
    UPDATE skipqueue_job AS job
    SET {reset},
        held = CASE WHEN NOT (found.is_taken OR found.is_over) THEN true END
    FROM found
    WHERE job.id = found.id AND ({changes_row} OR job.held OR NOT (found.is_taken OR found.is_over))
)
INSERT INTO skipqueue_step AS step
    (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at, is_waiting)
SELECT
    id, %(name)s, 'wait', %(number)s, %(attempt)s, statement_timestamp(),
    CASE WHEN is_taken OR is_over THEN statement_timestamp() END,
    payload,
    CASE WHEN is_over AND NOT is_taken THEN '{}'::jsonb END,
    wakes_at,
    CASE WHEN NOT (is_taken OR is_over) THEN true END
FROM found
ON CONFLICT (job_id, name) DO UPDATE
SET attempt = excluded.attempt, recorded_at = excluded.recorded_at, result = excluded.result, error = excluded.error,
    wakes_at = excluded.wakes_at, is_waiting = excluded.is_waiting
RETURNING step.recorded_at IS NOT NULL, step.result::text, step.error::text
""",
    held=HELD,
    reset=_RESET,
    changes_row=_CHANGES_ROW,
)


class RecordedStep(NamedTuple):
    name: str
    kind: str
    number: int
    attempt: int
    """The number of the attempt that has recorded the step, counted over the whole life of the job."""
    result: str | None
    """JSON, not yet decoded."""
    error: str | None
    """A JSON object if the step has failed and is not tried again; otherwise `None`."""
    is_over: bool
    """False while the job is at this step."""
    left: float | None
    """Seconds until a sleep, or the time to wait for a signal, is over; `None` if there is no such time."""


class Entry(NamedTuple):
    """What to write about a step."""

    name: str
    kind: str
    number: int
    attempt: int
    resets: bool
    """Whether the record resets the number of attempts."""
    by: str
    """The name of the worker."""
    seconds: float = 0.0
    """How many seconds the step has taken."""
    result: str | None = None
    error: str | None = None
    delay: float | None = None
    """Seconds until a sleep, or the time to wait for a signal, is over."""
    is_open: bool = False
    needs_no_reset: bool = False
    """Whether the row of the job needs no reset, because the last record of this attempt has reset it."""


def steps_of(store: "Store", job_id: int) -> list[RecordedStep]:
    """Return the steps of the job in their order."""
    return [RecordedStep._make(row) for row in store.rows(STEPS, {"job_id": job_id})]


def record_step(store: "Store", ref: LeaseRef, entry: Entry) -> bool:
    """Record a step in the open transaction, or at once if none is open. Returns False if the lease is not valid."""
    statement = RECORD_STEP if entry.needs_no_reset else RECORD_STEP_AND_RESET
    return bool(store.rows(statement, _values(ref, entry)))


def take_signal(store: "Store", ref: LeaseRef, entry: Entry) -> RecordedStep | None:
    """Take the signal of this name, or make the job wait for it. Returns `None` if the lease is no longer valid."""
    for is_over, result, error in store.rows(TAKE_SIGNAL, _values(ref, entry)):
        return RecordedStep(entry.name, entry.kind, entry.number, entry.attempt, result, error, is_over, None)
    return None


def _values(ref: LeaseRef, entry: Entry) -> dict[str, Any]:
    job_id, lease = ref
    return {**entry._asdict(), "job_id": job_id, "lease": lease, "reason": entry.name}

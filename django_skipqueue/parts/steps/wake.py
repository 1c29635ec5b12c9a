"""Wake jobs that wait for a signal, once the signal has come or the time to wait for it is over.

Invariant: no wake-up is lost. Three processes send WAKE: the sender of a signal after its commit, a worker after it has
settled a job that waits, and supervisors at intervals (the gate). The first two are only faster: the gate wakes every
job that they miss. WAKE skips a running job, because the job's attempt either takes the signal, or is settled, and then
WAKE is sent again.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from django.db import transaction

from ...events.events import AttemptsEnded, AttemptsRetrying, Event, JobsAdmitted
from ...queue.fragments import entering, joined
from ...queue.notify import GATES_PAYLOAD, notify_supervisors, wake
from ...queue.parameters import BATCH_ROWS, as_array
from ...values.records import NEVER, Attempt, ClaimedJob, GateResult
from ...worker.loop import Periodic

if TYPE_CHECKING:
    from ...queue.store import Store

# Sent by the sender of a signal, after its commit; by the worker, after a settle; by the gate. Among the jobs `ids`,
# wakes the jobs whose signal has come, or whose time to wait is over. Returns the queue and status of each woken job.
# If somebody has finished a job while it waited, its status stays, and it only stops waiting. The commit does not wait
# for the disk: if a crash of the server loses the wake-up, the gate repeats it. COALESCE keeps the planner from reading
# the index of all waiting jobs. Index: the primary keys, and untaken of signals.
WAKE = joined(
    """
WITH ready AS MATERIALIZED (
    SELECT step.name, job.id
    FROM
        set_config('synchronous_commit', 'off', true),
        skipqueue_step AS step
        JOIN skipqueue_job AS job ON job.id = step.job_id
    WHERE
        step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND COALESCE(step.is_waiting, false)
        AND job.status <> 'running'
        AND (
            step.wakes_at <= statement_timestamp()
            OR EXISTS (
                SELECT
                FROM skipqueue_signal AS signal
                WHERE signal.job_id = step.job_id AND signal.name = step.name AND signal.taken_at IS NULL
            )
        )
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
gone AS (
    DELETE FROM skipqueue_step AS step
    WHERE
        step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND COALESCE(step.is_waiting, false)
        AND NOT EXISTS (SELECT FROM skipqueue_job AS job WHERE job.id = step.job_id)
),
woken AS (
    UPDATE skipqueue_step AS step
    SET is_waiting = NULL
    FROM ready
    WHERE step.job_id = ready.id AND step.name = ready.name
)
UPDATE skipqueue_job AS job
SET held = NULL,
    status = CASE WHEN job.status = 'blocked' AND job.gate = 'held' THEN {status} ELSE job.status END,
    gate = CASE WHEN job.status = 'blocked' AND job.gate = 'held' THEN {gate} ELSE job.gate END
WHERE job.id = ANY (ARRAY (SELECT id FROM ready))
RETURNING job.queue_name, job.status
""",
    **entering(column="job.{}", past="held"),
)

# Sent by the gate. Returns two lists in one: the jobs whose time to wait is over; and the next signals, after a place
# in their order, that nobody has taken, each with whether its job waits for it. Deletes signals of deleted jobs.
# Indexes: due of steps, untaken of signals, the primary keys.
READY = """
WITH untaken AS MATERIALIZED (
    SELECT job_id, name
    FROM skipqueue_signal
    WHERE taken_at IS NULL AND (job_id, name) > (%(after_id)s, %(after_name)s)
    ORDER BY job_id, name
    LIMIT %(limit)s
),
gone AS (
    DELETE FROM skipqueue_signal AS signal
    USING untaken
    WHERE
        signal.job_id = untaken.job_id
        AND signal.name = untaken.name
        AND NOT EXISTS (SELECT FROM skipqueue_job AS job WHERE job.id = untaken.job_id)
)
SELECT job_id, NULL, false
FROM (
    SELECT job_id
    FROM skipqueue_step
    WHERE is_waiting AND wakes_at <= statement_timestamp()
    ORDER BY wakes_at
    LIMIT %(limit)s
) AS over
UNION ALL
SELECT
    untaken.job_id,
    untaken.name,
    (
        SELECT COALESCE(step.is_waiting, false)
        FROM skipqueue_step AS step
        WHERE step.job_id = untaken.job_id AND step.name = untaken.name
    ) IS TRUE
FROM untaken
"""

# Sent by the gate. Returns the seconds until the first wait for a signal times out, and whether there is a signal that
# nobody has taken. Indexes: due of steps, untaken of signals.
NEXT_READY = """
SELECT
    (
        SELECT extract(epoch FROM wakes_at - statement_timestamp())::float8
        FROM skipqueue_step
        WHERE is_waiting AND wakes_at IS NOT NULL
        ORDER BY wakes_at
        LIMIT 1
    ),
    (SELECT true FROM skipqueue_signal WHERE taken_at IS NULL ORDER BY job_id, name LIMIT 1) IS TRUE
"""

WAKE_CHECK = 1.0
"""Seconds between two checks of the gate for signals that nobody has taken."""


def wake_jobs(store: "Store", ids: Collection[int], *, limit: int = BATCH_ROWS) -> dict[str, int]:
    """Wake the jobs whose signal has come or whose time is over. Returns the number of queued jobs by queue."""
    rows = store.rows(WAKE, {"ids": as_array(ids), "limit": limit}) if ids else []
    counts: dict[str, int] = {}
    for queue_name, status in rows:
        if status == "queued":
            counts[queue_name] = counts.get(queue_name, 0) + 1
    if any(status == "blocked" for _, status in rows):  # these jobs now wait at the gate of limits
        notify_supervisors(store, GATES_PAYLOAD)
    return counts


def wake_and_notify(store: "Store", ids: Collection[int]) -> bool:
    """Wake jobs as `wake_jobs` does, and notify the workers. Returns whether any job was queued."""
    counts = wake_jobs(store, ids)
    wake(store, counts)
    if counts:
        store.send(JobsAdmitted(store.alias, counts))
    return bool(counts)


def wake_after_commit(store: "Store", ids: Collection[int]) -> None:
    """Wake these jobs once the caller's transaction is committed. If this fails, the gate does it later."""
    transaction.on_commit(lambda: wake_and_notify(store, ids), using=store.alias, robust=True)


class SignalGate:
    """Wakes, at intervals, the jobs that wait for signals and that nobody else has woken."""

    name = "held"

    def __init__(self) -> None:
        self._after: dict[str, tuple[int, str]] = {}  # the signal after which the next check begins, by database

    def admit(self, store: "Store", *, limit: int) -> GateResult:
        after_id, after_name = self._after.get(store.alias, (0, ""))
        rows = store.rows(READY, {"after_id": after_id, "after_name": after_name, "limit": limit})
        signals = [(id, name) for id, name, _ in rows if name is not None]
        self._after[store.alias] = signals[-1] if len(signals) == limit else (0, "")
        ready_ids = {id for id, name, is_awaited in rows if name is None or is_awaited}  # without a name: timed out
        return GateResult(wake_jobs(store, ready_ids, limit=limit))

    def next_due(self, store: "Store") -> float | None:
        ((until_timeout, has_untaken_signal),) = store.rows(NEXT_READY)  # `None`: no wait has a timeout
        until_check = WAKE_CHECK if has_untaken_signal else None
        return min((seconds for seconds in (until_timeout, until_check) if seconds is not None), default=None)


class WaitObserver:
    """Notes the settled jobs that wait for a signal, because the signal may have come before the settle."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Do nothing: a claimed job does not wait."""

    def ended(self, kind: type[AttemptsEnded], attempts: Iterable[Attempt]) -> None:
        """Note the ids of the jobs whose attempts ended with a wait."""
        if kind is AttemptsRetrying:
            self.ids.update(attempt.job.id for attempt in attempts if attempt.outcome.is_held)

    def sent(self, event: Event) -> None:
        """Do nothing: no event concerns jobs that wait."""


class WakeSettled(Periodic):
    """Wakes jobs whose signal came while they were settled. Only the control loop's thread uses it."""

    name = "wake_settled"

    def __init__(self, store: "Store", observer: WaitObserver) -> None:
        self._store, self._observer = store, observer
        self._retry_at = 0.0

    @property
    def due_at(self) -> float:
        """Due at once after the settle of a job that waits."""
        return self._retry_at if self._observer.ids else NEVER

    @due_at.setter
    def due_at(self, at: float) -> None:
        self._retry_at = at

    def run(self, now: float) -> None:
        ids, self._observer.ids = self._observer.ids, set()
        wake_and_notify(self._store, ids)

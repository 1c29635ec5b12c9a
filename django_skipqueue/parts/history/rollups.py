"""Count what happens to jobs, in rows per minute, per hour and since the beginning: the roll-ups.

Each worker and supervisor counts in a `RollUpTally`: the attempts and claims of each task, and the causes of failures.
The memory is limited: at most `MOST_TASKS_COUNTED` tasks and `MOST_CAUSES_COUNTED` causes are counted separately.

Every few seconds the process writes its counts to the database. So that workers do not stop settling jobs, a write
never waits longer than `ROLL_UP_LOCK_TIMEOUT` for another transaction. A process that dies loses the counts of at most
one interval. If a write fails, the process writes the counts again later, unless PostgreSQL refuses their values. If
the connection breaks after the commit, the counts of one interval are added twice.

`.defer()` counts nothing, because all callers would update the same row and wait for each other. Instead, a supervisor
counts new rows of the job table by their ids. Once a minute, a supervisor also records the depths of all queues, and
how much a claim from the deepest queues reads.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from typing import Any

from django.db import DatabaseError

from ...conf import settings
from ...events.events import (
    AttemptsCancelled,
    AttemptsCompleted,
    AttemptsDiscarded,
    AttemptsEnded,
    AttemptsFailed,
    AttemptsRetrying,
    Event,
    JobsRecovered,
    LeasesLost,
)
from ...queue.fragments import joined
from ...queue.observe import QueueNow, queues_now
from ...queue.parameters import BATCH_ROWS, Cursor, Rows, Statement, is_refused, pipelined
from ...queue.session import SET_LOCK_TIMEOUT
from ...queue.store import Store
from ...values.bounds import DAY_SECONDS
from ...values.counting import added, histogram
from ...values.records import Attempt, Cause, ClaimedJob, RecoveredJob
from ...worker.loop import Periodic
from .claim_costs import ClaimCost, measure_claim
from .deployments import prune_deployments


@dataclass(slots=True)
class AttemptCounts:
    """The number of attempts by outcome, the number of claims, and histograms of durations: columns of `RollUp`."""

    completed: int = 0
    retried: int = 0
    snoozed: int = 0
    failed: int = 0
    discarded: int = 0
    recovered: int = 0
    deaths: int = 0
    lost: int = 0
    waited: list[int] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    waited_seconds: float = 0.0
    ran_seconds: float = 0.0
    waited_longest: float = 0.0
    ran_longest: float = 0.0
    claims: int = 0
    claim_times: list[int] = field(default_factory=list)
    claim_seconds: float = 0.0

    def add(self, other: "AttemptCounts") -> None:
        for name in self.__slots__:
            own_value, other_value = getattr(self, name), getattr(other, name)
            if isinstance(own_value, list):  # a histogram
                setattr(self, name, added(own_value, other_value))
            else:
                is_longest = name.endswith("_longest")
                setattr(self, name, max(own_value, other_value) if is_longest else own_value + other_value)


MinuteQueueTask = tuple[int, str, str]
"""A minute since the epoch, a queue and a task."""

MinuteCause = tuple[int, Cause]
"""A minute since the epoch, and the cause of failures."""

SPANS = 0, 60, 3600
"""How many seconds a row covers; 0 stands for all time since the beginning."""


def _start_of(span: int, minute: int) -> int:
    """Return the start of the span that contains a minute, in seconds since the epoch."""
    return minute * 60 // span * span if span else 0


def rows_of_counts(counted: Mapping[MinuteQueueTask, AttemptCounts]) -> Iterator[dict[str, Any]]:
    """Yield one row for each span and each level: the task in its queue, all tasks of the queue, and all queues."""
    total: dict[tuple[int, str, str, int], AttemptCounts] = {}
    for (minute, queue_name, task), counts in counted.items():
        for span in SPANS:
            for level in {(queue_name, task), (queue_name, ""), ("", "")}:
                # One death may count for several tasks, so a queue's row does not add up the deaths of its tasks.
                takes_deaths = level == (queue_name, task)
                added_counts = counts if takes_deaths or not counts.deaths else replace(counts, deaths=0)
                total.setdefault((span, *level, _start_of(span, minute)), AttemptCounts()).add(added_counts)
    for (span, queue_name, task, starts_at), counts in total.items():
        yield {"span": span, "queue_name": queue_name, "task": task, "starts_at": starts_at, **asdict(counts)}


@dataclass(slots=True)
class FailedAttempts:
    """Counts of attempts that failed with one cause. Times are seconds since the epoch."""

    number: int
    first_at: float
    last_at: float
    last_line: int | None
    last_job_id: int

    def add(self, other: "FailedAttempts") -> None:
        if other.last_at >= self.last_at:
            self.last_line, self.last_job_id = other.last_line, other.last_job_id
        self.number += other.number
        self.first_at, self.last_at = min(self.first_at, other.first_at), max(self.last_at, other.last_at)


def rows_of_failures(counted: Mapping[MinuteCause, FailedAttempts]) -> Iterator[dict[str, Any]]:
    total: dict[tuple[int, Cause, int], FailedAttempts] = {}
    for (minute, cause), failures in counted.items():
        for span in SPANS:
            key = (span, cause, _start_of(span, minute))
            if key in total:
                total[key].add(failures)
            else:
                total[key] = replace(failures)
    for (span, cause, starts_at), failures in total.items():
        yield {"span": span, **cause._asdict(), "starts_at": starts_at, **asdict(failures)}


MOST_TASKS_COUNTED = 1_000
"""A process counts at most this many pairs of queue and task separately between two writes."""

MOST_CAUSES_COUNTED = 200
"""A process counts at most this many causes separately between two writes."""

OTHER_NAME = "(other)"
"""The name of the queue, task and cause that count everything beyond these two limits."""

WORKER_DIED = "django_skipqueue.exceptions.WorkerDied"
"""The exception that a recovery records in a job's errors."""

COLUMN_OF_EVENT: dict[type[AttemptsEnded], str] = {
    AttemptsCompleted: "completed",
    AttemptsRetrying: "retried",
    AttemptsFailed: "failed",
    AttemptsDiscarded: "discarded",
    AttemptsCancelled: "discarded",
    LeasesLost: "lost",
}
"""Which column counts the attempts of an event."""


class RollUpTally:
    """The counts of a process since its last write. Only the control loop's thread uses it."""

    def __init__(self) -> None:
        self._counts: dict[MinuteQueueTask, AttemptCounts] = {}
        self._failures: dict[MinuteCause, FailedAttempts] = {}

    @property
    def is_empty(self) -> bool:
        return not self._counts

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        """Count attempts, after the database has accepted or rejected their outcomes."""
        # A snooze gives the attempt back to the job: see `Outcome.refund`.
        snoozed = [attempt for attempt in attempts if attempt.outcome.refund] if kind is AttemptsRetrying else []
        not_snoozed = [attempt for attempt in attempts if not attempt.outcome.refund] if snoozed else attempts
        self._count_attempts("snoozed", snoozed)
        self._count_attempts(COLUMN_OF_EVENT[kind], not_snoozed)
        for attempt in attempts if kind is not AttemptsCompleted else ():
            if error := attempt.outcome.error:
                ended_at = _ended_at(attempt)
                cause = Cause(attempt.job.task, error["exception"], error.get("place", ""))
                failure = FailedAttempts(1, ended_at, ended_at, error.get("line"), attempt.job.id)
                self._count_failure(cause, failure)

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Count a claim that returned these jobs. The claim's duration counts once, for the last job."""
        if jobs:
            seconds = jobs[-1].claim_seconds
            counts = self._counts_of(int(jobs[0].locked_at // 60), "", "")
            counts.claims += 1
            counts.claim_seconds += seconds
            counts.claim_times = added(counts.claim_times, histogram([seconds]))

    def recovered(self, jobs: Sequence[RecoveredJob]) -> None:
        """Count jobs recovered from dead workers. If the recovery has failed a job, the job also counts as failed.

        The death of a worker counts once for all queues together, and once for each task that the worker was running,
        in one of the task's queues.
        """
        deaths: dict[tuple[str, str], MinuteQueueTask] = {}  # by worker and task
        for job in jobs:
            recovered_at = job.recovered_at.timestamp()
            minute = int(recovered_at // 60)
            counts = self._counts_of(minute, job.queue_name, job.task)
            deaths.setdefault((job.locked_by, ""), (minute, "", ""))
            deaths.setdefault((job.locked_by, job.task), (minute, job.queue_name, job.task))
            counts.recovered += 1
            counts.failed += job.status == "failed"
            self._count_failure(
                Cause(job.task, WORKER_DIED, ""), FailedAttempts(1, recovered_at, recovered_at, None, job.id)
            )
        for minute, queue_name, task in deaths.values():
            self._counts_of(minute, queue_name, task).deaths += 1

    def sent(self, event: Event) -> None:
        """Count the jobs of an event about recovered jobs. Ignores other events."""
        if isinstance(event, JobsRecovered):
            self.recovered(event.jobs)

    def take(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the counts since the last call, as rows for `roll_up`."""
        counts, self._counts = self._counts, {}
        failures, self._failures = self._failures, {}
        return list(rows_of_counts(counts)), list(rows_of_failures(failures))

    def _count_attempts(self, column: str, attempts: Sequence[Attempt]) -> None:
        durations: defaultdict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        queue_name = task = ""
        for job, _, started, ended, _, _, _ in attempts:  # unpacking is faster than access by name
            if job.task != task or job.queue_name != queue_name:  # most attempts have the task of the attempt before
                queue_name, task = job.queue_name, job.task
                waited, ran = durations[queue_name, task]
            # the wait for the claim, by the database's clock; then the wait in this process, by its own clock
            waited.append(max(job.locked_at - job.run_after, 0.0) + started - (job.claimed_at or started))
            ran.append(ended - started)
        for (queue_name, task), (waited, ran) in durations.items():
            counts = self._counts_of(int(_ended_at(attempts[-1]) // 60), queue_name, task)
            setattr(counts, column, getattr(counts, column) + len(ran))
            counts.waited = added(counts.waited, histogram(waited))
            counts.ran = added(counts.ran, histogram(ran))
            counts.waited_seconds += sum(waited)
            counts.ran_seconds += sum(ran)
            counts.waited_longest = max(counts.waited_longest, *waited)
            counts.ran_longest = max(counts.ran_longest, *ran)

    def _counts_of(self, minute: int, queue_name: str, task: str) -> AttemptCounts:
        key = minute, queue_name, task
        if key not in self._counts and len(self._counts) >= MOST_TASKS_COUNTED:
            key = minute, OTHER_NAME, OTHER_NAME
        return self._counts.setdefault(key, AttemptCounts())

    def _count_failure(self, cause: Cause, failures: FailedAttempts) -> None:
        key = int(failures.last_at // 60), cause
        if key not in self._failures and len(self._failures) >= MOST_CAUSES_COUNTED:
            key = key[0], Cause(OTHER_NAME, OTHER_NAME, "")
        known = self._failures.setdefault(key, failures)
        if known is not failures:
            known.add(failures)


def _ended_at(attempt: Attempt) -> float:
    """Return when the attempt ended by the database's clock, in seconds since the epoch."""
    job = attempt.job
    return job.locked_at + attempt.ended - (job.claimed_at or attempt.ended)


# Adds the new histogram to the row's histogram, bucket by bucket.
_ADDED_BUCKETS = """ARRAY (
        SELECT COALESCE(old_count, 0) + COALESCE(added_count, 0)
        FROM unnest(rollup.{column}, EXCLUDED.{column}) WITH ORDINALITY AS bucket (old_count, added_count, place)
        ORDER BY place
    )"""

# Sent by the worker, the supervisor. Adds counts to the rows of the minute, the hour and all time. All writers lock the
# rows in the order of the primary key. Index: the primary key of the roll-ups.
ROLL_UP = joined(
    """
INSERT INTO skipqueue_rollup AS rollup (
    span, queue_name, task, starts_at, completed, retried, snoozed, failed, discarded, recovered, deaths, lost, waited,
    ran, waited_seconds, ran_seconds, waited_longest, ran_longest, claims, claim_times, claim_seconds
)
SELECT
    span, queue_name, task, to_timestamp(starts_at), completed, retried, snoozed, failed, discarded, recovered, deaths,
    lost, waited, ran, waited_seconds, ran_seconds, waited_longest, ran_longest, claims, claim_times, claim_seconds
FROM json_to_recordset(%(rows)s::json) AS counted (
    span smallint, queue_name text, task text, starts_at bigint, completed bigint, retried bigint, snoozed bigint,
    failed bigint, discarded bigint, recovered bigint, deaths bigint, lost bigint, waited bigint[], ran bigint[],
    waited_seconds float8, ran_seconds float8, waited_longest float8, ran_longest float8, claims bigint,
    claim_times bigint[], claim_seconds float8
)
ORDER BY span, queue_name, task, starts_at
ON CONFLICT (span, queue_name, task, starts_at) DO UPDATE
SET changed_at = statement_timestamp(),
    completed = rollup.completed + EXCLUDED.completed,
    retried = rollup.retried + EXCLUDED.retried,
    snoozed = rollup.snoozed + EXCLUDED.snoozed,
    failed = rollup.failed + EXCLUDED.failed,
    discarded = rollup.discarded + EXCLUDED.discarded,
    recovered = rollup.recovered + EXCLUDED.recovered,
    deaths = rollup.deaths + EXCLUDED.deaths,
    lost = rollup.lost + EXCLUDED.lost,
    waited = {waited},
    ran = {ran},
    waited_seconds = rollup.waited_seconds + EXCLUDED.waited_seconds,
    ran_seconds = rollup.ran_seconds + EXCLUDED.ran_seconds,
    waited_longest = GREATEST(rollup.waited_longest, EXCLUDED.waited_longest),
    ran_longest = GREATEST(rollup.ran_longest, EXCLUDED.ran_longest),
    claims = rollup.claims + EXCLUDED.claims,
    claim_times = {claim_times},
    claim_seconds = rollup.claim_seconds + EXCLUDED.claim_seconds
""",
    waited=joined(_ADDED_BUCKETS, column="waited"),
    ran=joined(_ADDED_BUCKETS, column="ran"),
    claim_times=joined(_ADDED_BUCKETS, column="claim_times"),
)

# The condition that an attempt of the task has ended between the times `after` and `before`. For the first hour after
# `after`, reads the rows that count a minute; for the time after this hour, the rows that count an hour. Index: the
# primary key of the roll-ups, for each queue at most 60 minutes, and the hours after them.
HAS_ENDED = """EXISTS (
    SELECT
    FROM
        (VALUES (60, {after} + interval '1 hour'), (3600, {before})) AS width (seconds, newest_start)
        JOIN skipqueue_rollup AS ended ON ended.span = width.seconds
    WHERE
        ended.queue_name = ANY ({queue_names})
        AND ended.task = {task}
        AND ended.starts_at > {after}
        AND ended.starts_at <= LEAST(width.newest_start, {before} - make_interval(secs => width.seconds))
        AND ended.completed + ended.retried + ended.failed + ended.discarded > 0
)"""

# Sent by the worker, the supervisor. Adds failed attempts to the rows of the minute, the hour and all time. A row keeps
# the line, job and deployment of the newest attempt. If the cause was acknowledged, its row records when the cause came
# back. A cause comes back if it fails again after ten minutes in which its task ran without this failure. Index: the
# primary key of the failures, and for an acknowledged cause the primary key of the roll-ups.
ROLL_UP_FAILURES = joined(
    """
INSERT INTO skipqueue_failure_rollup AS rollup (
    span, task, exception, place, starts_at, number, first_at, last_at, last_line, last_job_id, first_deployment,
    last_deployment
)
SELECT
    span, task, exception, place, to_timestamp(starts_at), number, to_timestamp(first_at), to_timestamp(last_at),
    last_line, last_job_id, %(deployment)s, %(deployment)s
FROM json_to_recordset(%(rows)s::json) AS counted (
    span smallint, task text, exception text, place text, starts_at bigint, number bigint, first_at float8,
    last_at float8, last_line integer, last_job_id bigint
)
ORDER BY span, task, exception, place, starts_at
ON CONFLICT (span, task, exception, place, starts_at) DO UPDATE
SET number = rollup.number + EXCLUDED.number,
    first_at = LEAST(rollup.first_at, EXCLUDED.first_at),
    last_at = GREATEST(rollup.last_at, EXCLUDED.last_at),
    last_line = EXCLUDED.last_line,
    last_job_id = EXCLUDED.last_job_id,
    last_deployment = EXCLUDED.last_deployment,
    came_back_at = CASE
        WHEN
            rollup.acknowledged_at IS NOT NULL
            AND EXCLUDED.first_at > rollup.last_at + interval '10 minutes'
            AND {has_ended}
        THEN EXCLUDED.first_at
        ELSE rollup.came_back_at
    END
""",
    has_ended=joined(
        HAS_ENDED,
        task="rollup.task",
        after="rollup.last_at",
        before="EXCLUDED.first_at",
        queue_names="ARRAY (SELECT queue_name FROM skipqueue_rollup WHERE span = 0 AND task = rollup.task)",
    ),
)

# Sent by the supervisor. Starts the count of enqueued jobs, unless a supervisor has started it before. Index: the
# primary key.
START_COUNTING = """
INSERT INTO skipqueue_rollup_progress (id, counted_to, ready_to, ready_xid, seen_to, ready_at, changed_at)
SELECT 1, newest.id, newest.id, 0, newest.id, statement_timestamp(), '-infinity'
FROM (SELECT COALESCE(max(id), 0) AS id FROM skipqueue_job) AS newest
ON CONFLICT (id) DO NOTHING
"""

# Sent by the supervisor. Adds at most `limit` jobs with ids after `counted_to` to the roll-ups. Returns whether there
# are more jobs to count right now; no row if it is too early, or another supervisor is counting. A job may be committed
# after a job with a higher id, so an id is counted only once no lower id can be committed any more. Step 1: store the
# highest id as `seen_to`. Step 2, in a later call: `seen_to` becomes `ready_to`, and the next transaction id is stored
# with it. The interval between the calls is needed because a transaction gets its own id just after its job's id. Step
# 3: once all transactions before the stored transaction id have ended, count the jobs up to `ready_to`. If a
# transaction takes longer than `patience` seconds from its INSERT to its commit, the statement does not wait for it,
# and does not count its jobs. Index: the primary key of the jobs, and the primary key of the roll-ups.
COUNT_ENQUEUED = """
WITH progress AS MATERIALIZED (
    SELECT id, counted_to, ready_to, seen_to
    FROM skipqueue_rollup_progress
    WHERE
        changed_at <= statement_timestamp() - make_interval(secs => %(interval)s)
        AND (
            pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= ready_xid
            OR ready_at <= statement_timestamp() - make_interval(secs => %(patience)s)
        )
    FOR NO KEY UPDATE SKIP LOCKED
),
step AS MATERIALIZED (
    SELECT
        id,
        counted_to,
        COALESCE(
            (
                SELECT job.id
                FROM skipqueue_job AS job
                WHERE job.id > progress.counted_to AND job.id <= progress.ready_to
                ORDER BY job.id
                OFFSET %(limit)s - 1
                LIMIT 1
            ),
            ready_to
        ) AS end_at,
        ready_to,
        seen_to
    FROM progress
),
counted AS MATERIALIZED (
    SELECT job.queue_name, job.task, floor(date_part('epoch', job.enqueued_at) / 60) * 60 AS minute, count(*) AS number
    FROM step, LATERAL (
        SELECT queue_name, task, enqueued_at
        FROM skipqueue_job
        WHERE id > step.counted_to AND id <= step.end_at
    ) AS job
    GROUP BY 1, 2, 3
),
written AS (
    INSERT INTO skipqueue_rollup AS rollup (span, queue_name, task, starts_at, enqueued)
    SELECT
        span.seconds, level.queue_name, level.task,
        to_timestamp(COALESCE(floor(counted.minute / NULLIF(span.seconds, 0)) * span.seconds, 0)) AS starts_at,
        sum(counted.number)
    FROM
        counted,
        (VALUES (0), (60), (3600)) AS span (seconds),
        LATERAL (
            VALUES (counted.queue_name, counted.task), (counted.queue_name, ''), ('', '')
        ) AS level (queue_name, task)
    GROUP BY 1, 2, 3, 4
    ORDER BY 1, 2, 3, 4
    ON CONFLICT (span, queue_name, task, starts_at) DO UPDATE
    SET changed_at = statement_timestamp(), enqueued = rollup.enqueued + EXCLUDED.enqueued
)
UPDATE skipqueue_rollup_progress AS progress
SET counted_to = step.end_at,
    ready_to = CASE WHEN step.end_at = step.ready_to THEN step.seen_to ELSE step.ready_to END,
    ready_xid = CASE
        WHEN step.end_at = step.ready_to THEN pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        ELSE progress.ready_xid
    END,
    ready_at = CASE WHEN step.end_at = step.ready_to THEN statement_timestamp() ELSE progress.ready_at END,
    seen_to = CASE
        WHEN step.end_at = step.ready_to THEN COALESCE((SELECT max(id) FROM skipqueue_job), step.seen_to)
        ELSE progress.seen_to
    END,
    changed_at = CASE WHEN step.end_at = step.ready_to THEN statement_timestamp() ELSE progress.changed_at END
FROM step
WHERE progress.id = step.id
RETURNING step.end_at < step.ready_to
"""

# Sent by the supervisor. Returns whether the depths of this minute are still missing. Index: the primary key.
DEPTHS_ARE_DUE = """
SELECT NOT EXISTS (
    SELECT FROM skipqueue_rollup
    WHERE
        span = 60
        AND queue_name = ''
        AND task = ''
        AND starts_at = to_timestamp(floor(date_part('epoch', statement_timestamp()) / 60) * 60)
        AND depth IS NOT NULL
)
"""

# Sent by the supervisor. Writes the depths of the queues and the costs of claims. A row keeps the greatest value of its
# minute or hour. Index: the primary key.
ROLL_UP_DEPTHS = """
INSERT INTO skipqueue_rollup AS rollup (
    span, queue_name, task, starts_at, depth, oldest_seconds, claim_pages, claim_rows
)
SELECT
    span.seconds, queue_name, '',
    to_timestamp(floor(date_part('epoch', statement_timestamp()) / span.seconds) * span.seconds), depth, oldest_seconds,
    claim_pages, claim_rows
FROM
    json_to_recordset(%(rows)s::json) AS sample (
        queue_name text, depth bigint, oldest_seconds float8, claim_pages bigint, claim_rows bigint
    ),
    (VALUES (60), (3600)) AS span (seconds)
ORDER BY 1, 2
ON CONFLICT (span, queue_name, task, starts_at) DO UPDATE
SET depth = GREATEST(rollup.depth, EXCLUDED.depth),
    oldest_seconds = GREATEST(rollup.oldest_seconds, EXCLUDED.oldest_seconds),
    claim_pages = GREATEST(rollup.claim_pages, EXCLUDED.claim_pages),
    claim_rows = GREATEST(rollup.claim_rows, EXCLUDED.claim_rows)
"""

# Sent by the supervisor. Deletes rows of this span that started, and were last changed, more than `age` seconds ago.
# Returns the number of deleted rows. Index: prune of the table.
_PRUNE = """
WITH old AS MATERIALIZED (
    SELECT ctid AS place
    FROM {table}
    WHERE
        span = %(span)s
        AND starts_at < statement_timestamp() - make_interval(secs => %(age)s)
        AND {changed_at} < statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY starts_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {table} AS rollup WHERE rollup.ctid = ANY (ARRAY (SELECT place FROM old)) RETURNING 1
)
SELECT count(*) FROM deleted
"""
PRUNE_ROLLUPS = joined(_PRUNE, table="skipqueue_rollup", changed_at="changed_at")
PRUNE_FAILURES = joined(_PRUNE, table="skipqueue_failure_rollup", changed_at="last_at")


ROLL_UP_LOCK_TIMEOUT = "500ms"
"""How long a statement about roll-ups waits for a lock, in PostgreSQL's notation."""

MOST_ENQUEUED_COUNTED = 100_000
"""The maximum number of enqueued jobs that one statement counts."""

LONGEST_COMMIT = 60.0
"""A job that is committed more than this many seconds after its INSERT may not be counted."""


def roll_up(store: Store, rows: Sequence[Mapping[str, Any]], failures: Sequence[Mapping[str, Any]]) -> None:
    """Add the rows of a `RollUpTally` to the roll-ups, in one transaction."""
    statements: list[Statement] = []
    if rows:
        statements.append((ROLL_UP, {"rows": json.dumps(rows)}))
    if failures:
        deployment = settings.deployment or ""
        statements.append((ROLL_UP_FAILURES, {"rows": json.dumps(failures), "deployment": deployment}))
    _run(store, *statements)


def start_counting(store: Store) -> None:
    """Start the count of enqueued jobs, unless a supervisor has started it before."""
    _run(store, (START_COUNTING, {}))


def count_enqueued(store: Store, *, interval: float) -> bool:
    """Count enqueued jobs, unless a supervisor did so in the last `interval` seconds. Return whether there are more."""
    values = {"interval": interval, "patience": LONGEST_COMMIT, "limit": MOST_ENQUEUED_COUNTED}
    (rows,) = _run(store, (COUNT_ENQUEUED, values))
    return any(has_more for (has_more,) in rows)


def depths_are_due(store: Store) -> bool:
    (rows,) = _run(store, (DEPTHS_ARE_DUE, {}))
    ((is_due,),) = rows
    return bool(is_due)


def roll_up_depths(store: Store, queues: Sequence[QueueNow], costs: Sequence[ClaimCost] = ()) -> None:
    """Write the depth of each queue and of all queues together, and the costs of claims."""
    waits = [queue.oldest for queue in queues if queue.oldest is not None]
    all_queues = ("", sum(queue.queued for queue in queues), max(waits, default=0.0))
    by_queue = {cost.queue_name: {"claim_pages": cost.pages, "claim_rows": cost.rows} for cost in costs}
    by_queue[""] = max(by_queue.values(), key=itemgetter("claim_pages"), default={})
    rows = [
        {"queue_name": name, "depth": depth, "oldest_seconds": oldest, **by_queue.get(name, {})}
        for name, depth, oldest in (all_queues, *((queue.name, queue.queued, queue.oldest or 0.0) for queue in queues))
    ]
    _run(store, (ROLL_UP_DEPTHS, {"rows": json.dumps(rows)}))


def prune_rollups(store: Store, ages: Mapping[int, float], *, limit: int = BATCH_ROWS) -> bool:
    """Delete rows of the history that are older than `ages`, seconds by span. Return whether there may be more."""
    has_more = False
    for span, age in ages.items():
        for statement in (PRUNE_ROLLUPS, PRUNE_FAILURES):
            (rows,) = _run(store, (statement, {"span": span, "age": age, "limit": limit}))
            ((number_deleted,),) = rows
            has_more = has_more or number_deleted >= limit
    return has_more


def _run(store: Store, *statements: Statement) -> list[Rows | Cursor]:
    """Run the statements in one transaction and one round trip, with a short lock timeout. Return the rows of each."""
    connection = store.connection
    connection.ensure_connection()
    with connection.wrap_database_errors:
        set_lock_timeout = SET_LOCK_TIMEOUT, {"timeout": ROLL_UP_LOCK_TIMEOUT}
        return pipelined(connection.connection, [set_lock_timeout, *statements], None)[1:]


WRITE_INTERVAL = 10.0
"""Seconds between two writes."""


class WriteRollUps(Periodic):
    """Writes the counts of a worker or supervisor, if there are any."""

    name = "write_roll_ups"

    def __init__(self, store: Store, tally: RollUpTally) -> None:
        self._store = store
        self._tally = tally
        self._unwritten: tuple[list[dict[str, Any]], list[dict[str, Any]]] | None = None
        self.run_again_in(WRITE_INTERVAL)

    def run(self, now: float) -> None:
        """Write the counts that the last run could not write, then the new counts."""
        while self._unwritten or not self._tally.is_empty:
            self._unwritten = self._unwritten or self._tally.take()
            roll_up(self._store, *self._unwritten)
            self._unwritten = None
        self.run_again_in(WRITE_INTERVAL)

    def refused(self, error: BaseException) -> None:
        """Try again later. Drops the counts if PostgreSQL cannot store their values."""
        if isinstance(error, DatabaseError) and is_refused(error):
            self._unwritten = None
        super().refused(error)


ENQUEUED_COUNT_INTERVAL = 10.0
"""Seconds between two counts, by any supervisor. A count includes a job two to three intervals after its commit."""

PRUNE_GRACE_SECONDS = 6 * ENQUEUED_COUNT_INTERVAL
"""A supervisor keeps a job for this many seconds after its retention, so that it is counted first. Otherwise, a job
with a retention of 0 would be deleted within a second."""


class CountEnqueued(Periodic):
    name = "count_enqueued"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_started = False

    def run(self, now: float) -> None:
        """Count one batch of jobs, unless another supervisor has just done so."""
        if not self._has_started:
            start_counting(self._store)
            self._has_started = True
        has_more = count_enqueued(self._store, interval=ENQUEUED_COUNT_INTERVAL - 1.0)
        self.run_again_in(0.0 if has_more else ENQUEUED_COUNT_INTERVAL)


SAMPLE_INTERVAL = 20.0
"""Seconds between two checks whether the depths of this minute have been written."""

MOST_CLAIMS_MEASURED = 3
"""A supervisor measures the cost of a claim for at most this many queues: the deepest."""


class SampleDepths(Periodic):
    """Writes the depths of the queues once a minute. Any supervisor may do this; two writes at once do no harm."""

    name = "sample_depths"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        if depths_are_due(self._store):
            queues = queues_now(self._store)
            deepest = sorted(queues, key=lambda queue: queue.queued, reverse=True)[:MOST_CLAIMS_MEASURED]
            costs = [measure_claim(self._store, queue.name) for queue in deepest]
            roll_up_depths(self._store, queues, [cost for cost in costs if cost])
        self.run_again_in(SAMPLE_INTERVAL)


KEPT_SECONDS = {60: 3.0 * DAY_SECONDS, 3600: 90.0 * DAY_SECONDS, 0: 90.0 * DAY_SECONDS}
"""How many seconds supervisors keep rows, by their span. For span 0, this time counts from the row's last change."""

ROLL_UP_PRUNE_INTERVAL = 300.0
"""Seconds between two prunes, if the last prune has deleted all old rows."""


class PruneRollUps(Periodic):
    name = "prune_roll_ups"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        prune_deployments(self._store, KEPT_SECONDS[3600])
        self.run_again_in(0.0 if prune_rollups(self._store, KEPT_SECONDS) else ROLL_UP_PRUNE_INTERVAL)

"""Jobs that do not come forward: unknown tasks, long runs, dead holders, late pruning.

Every statement of the doctor on the job table is here, as a literal. Each reads a bounded number of rows, by an index.
"""

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext

from ...conf import settings
from ...events.log_format import job_name, printable
from ...jobs.registry import registry
from ...queue.store import Store
from ...values.records import worker_name
from ..durations import span
from .finding import Finding, Severity

# no-worker → whether a scheduled job is due. Index: admit.
IS_OVERDUE = """
SELECT
FROM skipqueue_job
WHERE status = 'scheduled' AND run_after <= statement_timestamp()
ORDER BY run_after
LIMIT 1
"""

# unknown-task → the tasks of the first jobs of each of these queues, and of the scheduled jobs that are due first.
# Index: claim, once for each queue, and admit.
TASKS = """
SELECT DISTINCT task
FROM (
    SELECT job.task
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name)
        CROSS JOIN LATERAL (
            SELECT task
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT 200
        ) AS job
    UNION ALL
    (
        SELECT task
        FROM skipqueue_job
        WHERE status = 'scheduled'
        ORDER BY run_after
        LIMIT 1000
    )
) AS first_jobs
ORDER BY task
LIMIT 1000
"""

# long-job → the jobs that have run for longer than `seconds`, the longest first. Those that run elsewhere are not
# among them: nobody knows how long they have run, and how long they have waited there. Index: recover.
LONG_JOBS = """
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age
FROM skipqueue_job
WHERE
    status = 'running'
    AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
ORDER BY locked_at
LIMIT 100
"""

# orphaned-job → running jobs that were claimed longer than `seconds` ago, and whose worker has written no heartbeat
# since. What is held elsewhere is not orphaned. Index: recover.
ORPHANED_JOBS = """
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age
FROM (
    SELECT id, task, locked_by, locked_at
    FROM skipqueue_job
    WHERE
        status = 'running'
        AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
        AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
    ORDER BY locked_at
    LIMIT 5000
) AS job
WHERE NOT EXISTS (
    SELECT
    FROM skipqueue_worker AS worker
    WHERE
        worker.id = job.locked_by
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(seconds)s)
)
ORDER BY locked_at
LIMIT 100
"""

NAMED = 5
"""How many jobs or tasks one finding names, at most."""

MOST = 100
"""How many jobs a statement returns, at most."""

LONG_RUN = 3_600.0
"""Seconds that a job may run before it is reported."""

PRUNE_LAG = 3_600.0
"""Seconds by which the oldest finished job may be past its retention."""


def unknown_tasks(store: Store) -> Iterator[Finding]:
    queue_names = store.queues_with_jobs(limit=100)
    known = {task.name for task in registry}
    unknown = [task for (task,) in store.rows(TASKS, {"queue_names": queue_names}) if task not in known]
    if unknown:
        yield Finding(
            "unknown-task",
            Severity.WARNING,
            gettext("Jobs wait whose task this process does not have"),
            gettext("Tasks that are not registered: %(number)s (%(names)s). A worker with this code cannot run them.")
            % {"number": len(unknown), "names": ", ".join(map(printable, unknown[:NAMED]))},
            gettext(
                "During a deploy, wait. Otherwise see whether the app of the task is in INSTALLED_APPS, and whether "
                "the task was renamed: @job(name=…) keeps the old name."
            ),
        )


def long_jobs(store: Store) -> Iterator[Finding]:
    """Jobs that have run for long. Those that run outside of the workers are not among them."""
    rows = store.rows(LONG_JOBS, {"seconds": LONG_RUN})
    if rows:
        yield Finding(
            "long-job",
            Severity.WARNING,
            gettext("Jobs have run for more than an hour"),
            listed(store, rows),
            gettext("If a job hangs, cancel it. A timeout on its task keeps that from happening again."),
            f"python manage.py skipqueue cancel {job_name(store.alias, rows[0][0])} --reason 'it hung'",
        )


def orphaned_jobs(store: Store) -> Iterator[Finding]:
    seconds = settings.worker_timeout * 2
    rows = store.rows(ORPHANED_JOBS, {"seconds": seconds})
    if rows:
        yield Finding(
            "orphaned-job",
            Severity.CRITICAL,
            gettext("Running jobs whose worker is gone"),
            listed(store, rows),
            gettext(
                "A supervisor recovers such jobs after the worker timeout (%(timeout)s), so none runs on this "
                "database, or it fails: look at its log. Start one."
            )
            % {"timeout": span(settings.worker_timeout)},
            "python manage.py runworker",
        )


def prune_lag(store: Store) -> Iterator[Finding]:
    lag = store.prune_lag()
    if lag > PRUNE_LAG:
        yield Finding(
            "prune-lag",
            Severity.WARNING,
            gettext("Finished jobs are not deleted in time"),
            gettext("The retention of the oldest finished job has been over for %(lag)s.") % {"lag": span(lag)},
            gettext("Supervisors prune all the time. Without one, or after a long backlog, prune by hand."),
            "python manage.py prunejobs",
        )


def listed(store: Store, rows: Sequence[tuple[int, str, str, float]]) -> str:
    shown = (
        gettext("job %(id)s (%(task)s) on %(worker)s for %(age)s")
        % {
            "id": job_name(store.alias, job_id),
            "task": printable(task),
            "worker": printable(worker_name(locked_by)) or "?",
            "age": span(age),
        }
        for job_id, task, locked_by, age in rows[:NAMED]
    )
    return gettext("Jobs: %(number)s. %(jobs)s") % {"number": number_of(rows), "jobs": "; ".join(shown)}


def number_of(rows: Sequence[object]) -> str:
    return f"{len(rows)}+" if len(rows) >= MOST else str(len(rows))

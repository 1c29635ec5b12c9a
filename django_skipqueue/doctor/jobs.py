"""Jobs that do not come forward: unknown tasks, long runs, dead holders, stuck keys, late pruning."""

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext

from ..conf import settings
from ..events.log_format import printable
from ..job_names import job_name
from ..models import Job
from ..operators.arguments import redacted
from ..operators.durations import span
from ..store import Store
from ..tasks.registry import registry
from ..values.records import worker_name
from ..values.redaction import MASK
from . import job_sql
from .finding import Finding, Severity

NAMED = 5
"""How many jobs or tasks one finding names, at most."""

MOST = 100
"""How many jobs a statement returns, at most."""

LONG_RUN = 3_600.0
"""Seconds that a job may run before it is reported."""

LONG_HELD = 3 * 86_400.0
"""Seconds after its due time for which an unfinished job may hold a unique key."""

PRUNE_LAG = 3_600.0
"""Seconds by which the oldest finished job may be past its retention."""


def unknown_tasks(store: Store) -> Iterator[Finding]:
    queue_names = store.queues_with_jobs(limit=100)
    known = {task.name for task in registry}
    unknown = [task for (task,) in store.rows(job_sql.TASKS, {"queue_names": queue_names}) if task not in known]
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
    """Jobs that have run for long. A carrier's are not among them: see `carriers.lost_jobs`."""
    rows = store.rows(job_sql.LONG_JOBS, {"seconds": LONG_RUN})
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
    rows = store.rows(job_sql.ORPHANED_JOBS, {"seconds": seconds})
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


def stuck_keys(store: Store) -> Iterator[Finding]:
    rows = store.rows(job_sql.STUCK_KEYS, {"seconds": LONG_HELD})
    if rows:
        job_id, task, key, status, age = rows[0]
        job = job_name(store.alias, job_id)
        yield Finding(
            "stuck-key",
            Severity.WARNING,
            gettext("A unique key is held for days"),
            gettext(
                "Job %(id)s (%(task)s, %(status)s) has been due for %(age)s, and still holds the key %(key)s. "
                "Meanwhile .defer() with this key enqueues nothing. Such jobs: %(number)s."
            )
            % {
                "id": job,
                "task": printable(task),
                "status": status,
                "key": printable(_shown_key(store, job_id, key)),
                "age": span(age),
                "number": _number(rows),
            },
            gettext("See on the job's page why it does not finish. If it is not needed any more, cancel it."),
            f"python manage.py skipqueue cancel {job} --reason 'it holds its unique key'",
        )


def stuck_dependants(store: Store) -> Iterator[Finding]:
    """Jobs that wait for one that is not there any more, and had not completed."""
    rows = store.rows(job_sql.STUCK_DEPENDANTS)
    if rows:
        job_id, task, needs_job_id = rows[0]
        job, needed = (job_name(store.alias, id) for id in (job_id, needs_job_id))
        yield Finding(
            "stuck-dependant",
            Severity.WARNING,
            gettext("Jobs wait for a deleted job"),
            gettext(
                "Job %(id)s (%(task)s) waits for job %(needed)s, which was deleted, or pruned, before it had "
                "completed. Such jobs: %(number)s."
            )
            % {"id": job, "task": printable(task), "needed": needed, "number": _number(rows)},
            gettext("They wait for ever, and so does what waits for them. Discard them."),
            f"python manage.py skipqueue discard {job} --reason 'it waits for a deleted job'",
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
    return gettext("Jobs: %(number)s. %(jobs)s") % {"number": _number(rows), "jobs": "; ".join(shown)}


def _shown_key(store: Store, job_id: int, key: str) -> str:
    """The key of this job with its secrets masked; nothing of it if the job has gone meanwhile."""
    job = Job.objects.using(store.alias).filter(pk=job_id).first()
    return MASK if job is None else redacted(job.task, job.args, job.kwargs).text(key)


def _number(rows: Sequence[object]) -> str:
    return f"{len(rows)}+" if len(rows) >= MOST else str(len(rows))

"""Rules about jobs that do not run, and about workers that are late, dead, or do not serve a queue.

Each statement reads a bounded number of rows of the job table, by an index.
"""

import math
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models.functions import Now
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from psycopg.sql import Identifier

from ...conf import settings
from ...events.log_format import job_name, printable
from ...jobs.registry import registry
from ...models import Worker
from ...queue import queues as queue_verbs
from ...queue.fragments import KEY_COLUMNS, joined
from ...queue.observe import QueueNow, queues_now
from ...queue.store import Store
from ...values.records import worker_name
from ..durations import clock_time, span
from ..parts import usual_runs, usual_waits
from ..queues_and_workers import WorkerHealth, Workforce, recovered
from .rule import Finding, PageLink, Rule, Severity, Threshold, database_time, statement

WORKERS_PAGE = PageLink("worker_changelist")
"""The page to which findings about several workers link."""

# Sent by no-worker. Returns a row without columns if a scheduled job is due. Index: admit.
IS_OVERDUE = """
SELECT
FROM skipqueue_job
WHERE status = 'scheduled' AND run_after <= statement_timestamp()
ORDER BY run_after
LIMIT 1
"""

# Sent by unknown-task. Reads the first jobs of each of these queues, and the scheduled jobs that are due first. Returns
# their tasks: each with the number of these jobs, the due time of the first of them, and the current time. Index:
# claim, once for each queue; admit.
WAITING_TASKS = """
SELECT task, count(*), min(run_after), statement_timestamp()
FROM (
    SELECT job.task, job.run_after
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name)
        CROSS JOIN LATERAL (
            SELECT task, run_after
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT 200
        ) AS job
    UNION ALL
    (
        SELECT task, run_after
        FROM skipqueue_job
        WHERE status = 'scheduled'
        ORDER BY run_after
        LIMIT 1000
    )
) AS first_jobs
GROUP BY task
ORDER BY task
LIMIT 1000
"""

# Sent by long-job. Returns the jobs that have run for longer than `seconds`, the longest first. Jobs that an external
# system runs are left out, because it is unknown how long they have run. Index: recover.
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

# Sent by orphaned-job. Returns running jobs that were claimed longer than `seconds` ago, and whose worker has written
# no heartbeat within `seconds`. Jobs that an external system runs are left out. Index: recover.
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

_IS_KEYED = " OR ".join(f"{key} IS NOT NULL" for key in KEY_COLUMNS.values()) or "false"

# Sent by long-wait. Returns for each queue the job that has been due longest, if it has been due for `seconds`: the
# queue, the job's id, its due time, and the current time.
# Step 1: find the first job of each pair of queue and priority, for at most 2,000 pairs.
# Step 2: leave out jobs that may not have waited for a worker. A job with a key, such as a limit's, may have waited for
# this limit. A job whose row is newer than the last heartbeat of a live worker was admitted, released or recovered just
# now, so no worker may have had the time to claim it.
# Step 3: take from the remaining jobs of each queue the one that has been due longest.
# Index: claim, one probe for each pair.
OLDEST_WAITING = joined(
    """
WITH RECURSIVE first_jobs AS (
    (
        SELECT id, queue_name, (-priority) AS rank, run_after, {is_keyed} AS is_keyed, xmin AS written_by
        FROM skipqueue_job
        WHERE status = 'queued'
        ORDER BY queue_name, (-priority), run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.id, next.queue_name, next.rank, next.run_after, next.is_keyed, next.written_by
    FROM
        first_jobs,
        LATERAL (
            SELECT id, queue_name, (-priority) AS rank, run_after, {is_keyed} AS is_keyed, xmin AS written_by
            FROM skipqueue_job
            WHERE status = 'queued' AND (queue_name, (-priority)) > (first_jobs.queue_name, first_jobs.rank)
            ORDER BY queue_name, (-priority), run_after, id
            LIMIT 1
        ) AS next
)
SELECT DISTINCT ON (queue_name) queue_name, id, run_after, statement_timestamp()
FROM (SELECT id, queue_name, run_after, is_keyed, written_by FROM first_jobs LIMIT 2000) AS first_job
WHERE
    NOT is_keyed
    AND run_after <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND age(written_by) > (
        SELECT COALESCE(max(age(xmin)), 0)
        FROM skipqueue_worker
        WHERE heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
    )
ORDER BY queue_name, run_after
LIMIT 2000
""",
    is_keyed=_IS_KEYED,
)

MOST_IDS = 50
"""A command contains at most this many ids."""

MOST_SUBJECTS_NAMED = 5
"""A finding names at most this many jobs, tasks or queues."""

MOST_JOBS_OF_FINDING = 100
"""A statement returns at most this many jobs."""

LONG_RUN_SECONDS = 3_600.0
"""Seconds that a job may run before it is reported."""

PRUNE_LAG_SECONDS = 3_600.0
"""Seconds by which the oldest finished job may be past its retention."""

LONGEST_WAIT = Threshold("long-wait", 300.0, "seconds", has_queues=True)

USUAL_WAIT_FACTOR = 1.5
"""A job may wait this many times as long as jobs of its queue usually wait at this hour."""

SECOND_LOOK = 0.05
"""Seconds between two looks for a job that seems to have waited for long.

One look is not enough, because a long transaction may have committed the job only just now. PostgreSQL does not store
when a transaction was committed, unless `track_commit_timestamp` is on. The job's times and its transaction id are from
before the commit.
"""

MOST_WORKERS_NAMED = 10
"""A finding names at most this many workers."""

MOST_QUEUES_NAMED = 20
"""A rule has findings about at most this many queues."""

MOST_QUEUED_OF_FINDING = 1_000
"""At most this many queued jobs of a queue are counted."""


def unknown_tasks(store: Store) -> Iterator[Finding]:
    queue_names = store.queues_with_jobs(limit=100)
    known_tasks = {task.name for task in registry}
    unregistered = [row for row in store.rows(WAITING_TASKS, {"queue_names": queue_names}) if row[0] not in known_tasks]
    for task, job_count, due_at, now in unregistered[:MOST_SUBJECTS_NAMED]:  # the columns of WAITING_TASKS
        since = min(due_at, now)
        yield Finding.of(
            Severity.WARNING,
            gettext("Jobs of %(task)s have waited since %(time)s, %(number)s in all, and the task is not registered"),
            gettext(
                "A worker with the code of this process cannot run them. Number of tasks that are not registered: "
                "%(tasks)s."
            ),
            gettext(
                "During a deploy, wait. Otherwise see whether the app of the task is in INSTALLED_APPS, and whether "
                "the task was renamed: @job(name=…) keeps the old name. If nobody needs the jobs, discard them."
            ),
            shlex.join(["python", "manage.py", "skipqueue", "discard", "--task", task]),
            facts={
                "task": printable(task),
                "number": job_count,
                "time": clock_time(since, now),
                "tasks": len(unregistered),
            },
            subject=task,
            since=since,
            link=PageLink("job_changelist", query={"task": task}),
        )


def long_jobs(store: Store) -> Iterator[Finding]:
    """Find jobs that have run for long, except jobs that an external system runs."""
    rows = store.rows(LONG_JOBS, {"seconds": LONG_RUN_SECONDS})
    if rows:
        yield Finding.of(
            Severity.WARNING,
            gettext("Jobs have run for more than an hour"),
            jobs_in_words(store, rows),
            gettext("If a job hangs, cancel it. A timeout on its task keeps that from happening again."),
            f"python manage.py skipqueue cancel {job_name(store.alias, rows[0][0])} --reason 'it hung'",
            link=PageLink("job_changelist", query={"status": "running", "runs": "1h"}),
        )


def orphaned_jobs(store: Store) -> Iterator[Finding]:
    rows = store.rows(ORPHANED_JOBS, {"seconds": settings.worker_timeout * 2})
    if rows:
        yield Finding.of(
            Severity.CRITICAL,
            gettext("Running jobs whose worker is gone"),
            jobs_in_words(store, rows),
            gettext(
                "A supervisor recovers such jobs after the worker timeout (%(timeout)s), so no supervisor runs on this "
                "database, or it fails. Start a runworker. If one is running, look at its log."
            )
            % {"timeout": span(settings.worker_timeout)},
            "python manage.py runworker",
            link=PageLink("job_changelist", query={"status": "running"}),
        )


def prune_lag(store: Store) -> Iterator[Finding]:
    lag = store.prune_lag()
    if lag > PRUNE_LAG_SECONDS:
        yield Finding.of(
            Severity.WARNING,
            gettext("Finished jobs are not deleted in time"),
            gettext("The retention of the oldest finished job has been over for %(lag)s."),
            gettext("Supervisors prune all the time. Without one, or after a long backlog, prune by hand."),
            "python manage.py prunejobs",
            facts={"lag": span(lag)},
        )


def jobs_in_words(store: Store, rows: Sequence[tuple[int, str, str, float]]) -> str:
    named_jobs = (
        gettext("job %(id)s (%(task)s) on %(worker)s for %(age)s")
        % {
            "id": job_name(store.alias, job_id),
            "task": printable(task),
            "worker": printable(worker_name(locked_by)) or "?",
            "age": span(age),
        }
        for job_id, task, locked_by, age in rows[:MOST_SUBJECTS_NAMED]
    )
    return gettext("Jobs: %(number)s. %(jobs)s") % {"number": number_of(rows), "jobs": "; ".join(named_jobs)}


def number_of(rows: Sequence[object]) -> str:
    return f"{len(rows)}+" if len(rows) >= MOST_JOBS_OF_FINDING else str(len(rows))


def no_worker(store: Store) -> Iterator[Finding]:
    workforce = Workforce.now(using=store.alias)
    if workforce.not_dead:
        return
    heartbeat_ages = [worker.age for worker in workforce.workers]  # the youngest heartbeat first
    own_queue_names = [name for name in store.queues_with_jobs() if name not in settings.external_queues]
    is_needed = bool(own_queue_names or store.rows(IS_OVERDUE))  # a live supervisor would have admitted an overdue job
    yield Finding.of(
        Severity.CRITICAL if is_needed else Severity.WARNING,
        gettext("No worker is alive, and jobs wait") if is_needed else gettext("No worker is alive"),
        gettext("Nothing runs the jobs that wait.") if is_needed else gettext("No job is waiting."),
        gettext("Start a worker."),
        "python manage.py runworker",
        since=database_time(store) - heartbeat_ages[0] if heartbeat_ages else None,
    )


def late_workers(store: Store) -> Iterator[Finding]:
    late_workers = [worker for worker in Workforce.now(using=store.alias).not_dead if worker.state == "late"]
    if late_workers:
        title = ngettext(
            "The worker %(name)s is late with its heartbeat",
            "%(number)s workers are late with their heartbeats, %(name)s among them",
            len(late_workers),
        )
        yield Finding.of(
            Severity.WARNING,
            title % {"number": len(late_workers), "name": printable(late_workers[0].name)},
            _heartbeats_in_words(late_workers),
            gettext(
                "Look at their machines and logs. Usual causes are a machine that swaps or sleeps, a lost network, and "
                "a task that keeps Python's interpreter lock. Once a worker counts as dead, its jobs are recovered."
            ),
            link=_link_to(late_workers),
        )


DEPLOY_SECONDS = 600.0
"""Seconds that a deploy may take. If the last worker started longer ago, workers of two versions are a warning."""


def worker_versions(store: Store) -> Iterator[Finding]:
    """Find live workers of several versions of the package. An older version may not know a new feature."""
    workers: list[Any] = list(Worker.objects.using(store.alias).live().order_by("name").annotate(now=Now()))
    by_version: defaultdict[str, list[Worker]] = defaultdict(list)
    for worker in workers:
        by_version[worker.version].append(worker)
    if len(by_version) < 2:
        return
    newest = max(worker.started_at for worker in workers)
    age = (workers[0].now - newest).total_seconds()
    yield Finding.of(
        Severity.WARNING if age > DEPLOY_SECONDS else Severity.INFO,
        gettext("Workers of several versions of django_skipqueue run"),
        " ".join(
            gettext("%(version)s: %(workers)s.")
            % {"version": version or gettext("unknown"), "workers": printable(", ".join(_shown_names(of_version)))}
            for version, of_version in sorted(by_version.items())
        ),
        gettext("Restart the workers of the older versions. During a deploy this is expected."),
    )


def _shown_names(workers: Sequence[Worker]) -> list[str]:
    names = [worker.name for worker in workers[:NAMED_WORKERS]]
    return names if len(names) == len(workers) else [*names, "…"]


NAMED_WORKERS = 5
"""The finding names at most this many workers of each version."""

# Sent by unendable-session. Returns pairs of roles: a supervisor connects as the first role, worker processes connect
# as the second, and the first role may not end the sessions of the second.
UNENDABLE_SESSIONS = """
SELECT DISTINCT supervisor_role.rolname, worker_role.rolname
FROM
    pg_stat_activity AS supervisor_session
    JOIN pg_roles AS supervisor_role ON supervisor_role.oid = supervisor_session.usesysid
    JOIN pg_stat_activity AS worker_session ON worker_session.datname = supervisor_session.datname
    JOIN pg_roles AS worker_role ON worker_role.oid = worker_session.usesysid
WHERE
    supervisor_session.datname = current_database()
    AND starts_with(supervisor_session.application_name, 'skipqueue supervisor')
    AND starts_with(worker_session.application_name, 'skipqueue:')
    AND NOT supervisor_role.rolsuper
    AND (worker_role.rolsuper OR NOT pg_has_role(supervisor_role.oid, worker_role.oid, 'USAGE'))
ORDER BY 1, 2
LIMIT 5
"""


def unendable_sessions(store: Store) -> Iterator[Finding]:
    """Find supervisors that may not end the sessions of workers. A frozen machine leaves sessions that lock jobs."""
    for supervisor_role, worker_role in store.rows(UNENDABLE_SESSIONS):
        yield Finding.of(
            Severity.WARNING,
            gettext("A supervisor may not end the sessions of dead workers"),
            gettext(
                "Supervisors connect as %(supervisor)s, and workers as %(worker)s. If a machine freezes, its open "
                "transactions keep its jobs locked until the server gives up."
            ),
            gettext(
                "Let all machines connect as one role, or make the role of the supervisors a member of the role of the "
                "workers. Workers must not connect as a superuser."
            ),
            statement(
                "GRANT {worker} TO {supervisor};",
                worker=Identifier(worker_role),
                supervisor=Identifier(supervisor_role),
            ),
            facts={"supervisor": supervisor_role, "worker": worker_role},
        )


def _link_to(workers: Sequence[WorkerHealth]) -> PageLink:
    return PageLink("worker_change", (workers[0].id,)) if len(workers) == 1 else WORKERS_PAGE


def dead_workers(store: Store) -> Iterator[Finding]:
    """Find dead workers, whether or not their jobs are already recovered."""
    workforce = Workforce.now(using=store.alias)
    recovered_workers = recovered(workforce, using=store.alias)
    unrecovered_workers = [
        worker for worker in workforce.workers if not worker.is_live and worker not in recovered_workers
    ]
    if unrecovered_workers:
        now = database_time(store)
        since = now - unrecovered_workers[0].age  # the worker that has sent a heartbeat last
        yield Finding.of(
            Severity.WARNING,
            ngettext(
                "%(number)s worker has been dead since %(time)s, and its jobs are not recovered: %(names)s",
                "%(number)s workers are dead, the last since %(time)s, and their jobs are not recovered: %(names)s",
                len(unrecovered_workers),
            ),
            "%(heartbeats)s",
            gettext(
                "Start runworker again on these machines. Any running supervisor recovers their jobs within "
                "WORKER_TIMEOUT (%(timeout)s), and deletes their rows."
            ),
            "python manage.py runworker",
            facts={
                "number": len(unrecovered_workers),
                "time": clock_time(since, now),
                "names": ", ".join(printable(worker.name) for worker in unrecovered_workers[:MOST_SUBJECTS_NAMED]),
                "heartbeats": _heartbeats_in_words(unrecovered_workers),
                "timeout": span(settings.worker_timeout),
            },
            since=since,
            link=_link_to(unrecovered_workers),
        )
    if recovered_workers:
        yield Finding.of(
            Severity.INFO,
            gettext("Workers have died, and their jobs are recovered"),
            _heartbeats_in_words(recovered_workers),
            gettext("Nothing has to be done. The row of a worker is deleted an hour after its last heartbeat."),
            link=_link_to(recovered_workers),
        )


LONGEST_PAUSE = Threshold("paused-queue", 3_600.0, "seconds", has_queues=True)
"""How long a job may wait in a paused queue."""


def paused_queues(store: Store) -> Iterator[Finding]:
    paused = set(queue_verbs.paused_queues(store))
    paused_with_jobs = [queue for queue in _queues_with_jobs(store) if queue.name in paused] if paused else []
    for queue in paused_with_jobs[:MOST_QUEUES_NAMED]:
        longest_pause = LONGEST_PAUSE.of(queue.name)
        yield Finding.of(
            Severity.INFO if longest_pause is None or (queue.oldest or 0.0) < longest_pause else Severity.WARNING,
            ngettext(
                "%(number)s job waits in the paused queue %(queue)s",
                "%(number)s jobs wait in the paused queue %(queue)s",
                queue.queued,
            ),
            gettext("The first has waited for %(span)s."),
            gettext("Resume the queue when the reason for its pause is over."),
            shlex.join(["python", "manage.py", "skipqueue", "resume", queue.name]),
            facts={"number": _queued_number(queue), "queue": printable(queue.name), "span": span(queue.oldest or 0.0)},
            subject=queue.name,
            link=PageLink("queue_change", (queue.name,)),
        )


def queues_without_worker(store: Store) -> Iterator[Finding]:
    workforce = Workforce.now(using=store.alias)
    queues = {queue.name: queue for queue in _queues_with_jobs(store)} if workforce.not_dead else {}
    unserved_names = workforce.unserved(queues)
    paused = set(queue_verbs.paused_queues(store)) if unserved_names else set()
    unserved_names = [name for name in unserved_names if name not in paused]
    now = database_time(store)
    for name in unserved_names[:MOST_QUEUES_NAMED]:
        queue = queues[name]
        since = now - timedelta(seconds=queue.oldest or 0.0)
        yield Finding.of(
            Severity.CRITICAL,
            ngettext(
                "No worker serves queue %(queue)s: %(number)s job has waited since %(time)s",
                "No worker serves queue %(queue)s: %(number)s jobs have waited since %(time)s",
                queue.queued,
            ),
            gettext("The first job has waited for %(span)s."),
            gettext("Start a worker for it."),
            shlex.join(["python", "manage.py", "runworker", "--queues", ",".join(unserved_names[:MOST_WORKERS_NAMED])]),
            facts={
                "queue": printable(name),
                "number": _queued_number(queue),
                "time": clock_time(since, now),
                "span": span(queue.oldest or 0.0),
            },
            subject=name,
            since=since,
            link=PageLink("job_changelist", query={"status": "queued", "queue": name}),
        )


# Sent by no-free-slot, long-wait. Returns the jobs that workers have held for longer than `seconds`, with their leases
# and the current time. The jobs that were claimed first come first. Index: recover.
SLOT_HOLDERS = """
SELECT id, lease, task, locked_by, locked_at, statement_timestamp()
FROM skipqueue_job
WHERE
    status = 'running'
    AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
ORDER BY locked_at
LIMIT 5000
"""

LONGEST_HOLD = Threshold("no-free-slot", 60.0, "seconds")
"""How long jobs may hold all slots while other jobs wait."""


HANG_FACTOR = 10.0
"""An attempt probably hangs if it runs for this many times as long as attempts of its task usually do."""


class HeldJob(NamedTuple):
    """A job that holds a slot of a worker: a row of `SLOT_HOLDERS`."""

    id: int
    lease: int
    task: str
    worker: str
    since: datetime
    """When the worker claimed the job."""
    now: datetime

    @property
    def seconds(self) -> float:
        return (self.now - self.since).total_seconds()


class SlotTime(NamedTuple):
    """The task whose jobs have together held slots for the longest time."""

    task: str
    jobs: list[HeldJob]
    """The task's jobs, the first claimed first."""
    usual: float | None
    """How many seconds an attempt of the task usually takes at most; `None` if unknown."""

    @property
    def seconds(self) -> float:
        """How long the first job has run."""
        return self.jobs[0].seconds

    @property
    def hangs(self) -> bool | None:
        """Whether the first job probably hangs, and is not only slow; `None` if unknown."""
        return None if self.usual is None else self.seconds >= HANG_FACTOR * self.usual

    @property
    def in_words(self) -> str:
        """A text that says how long the jobs have run, and how long they usually run."""
        number = len(self.jobs)
        values = {"number": number, "longest": span(self.seconds), "usual": span(self.usual or 0.0)}
        text = ngettext(
            "its running job has run for %(longest)s",
            "its %(number)s running jobs have run for up to %(longest)s",
            number,
        )
        if self.hangs is not None:
            text = ngettext(
                "its running job has run for %(longest)s, and usually takes %(usual)s at most",
                "its %(number)s running jobs have run for up to %(longest)s, and usually take %(usual)s at most",
                number,
            )
        if self.hangs:
            text = ngettext(
                "its running job has run for %(longest)s, usually takes %(usual)s at most, and probably hangs",
                "its %(number)s running jobs have run for up to %(longest)s, usually take %(usual)s at most, and "
                "probably hang",
                number,
            )
        return text % values


def slot_time(held_jobs: Iterable[HeldJob], usual_seconds: Mapping[str, float]) -> SlotTime:
    """Return the task whose jobs have together held slots longest. `usual_seconds`: the usual run times by task."""
    jobs_by_task: defaultdict[str, list[HeldJob]] = defaultdict(list)
    for job in held_jobs:
        jobs_by_task[job.task].append(job)
    seconds_by_task = {task: sum(job.seconds for job in jobs) for task, jobs in jobs_by_task.items()}
    longest_task = max(seconds_by_task, key=seconds_by_task.__getitem__)
    return SlotTime(longest_task, jobs_by_task[longest_task], usual_seconds.get(longest_task))


class FullPool(NamedTuple):
    """Workers whose slots are all held by jobs that have run for long, and their queues, where jobs wait for long."""

    workers: tuple[WorkerHealth, ...]
    queues: list[QueueNow]
    jobs: list[HeldJob]
    """The jobs that have run for long, the first claimed first."""


def full_pools(store: Store) -> Iterator[FullPool]:
    """Yield groups of workers that serve the same queues and whose slots are all held by jobs that run for long.

    A job whose row somebody has locked does not count, because it may only wait until its outcome can be written.
    """
    longest_hold = LONGEST_HOLD.of()
    if longest_hold is None:
        return
    paused = set(queue_verbs.paused_queues(store))
    waiting_queues = [
        queue
        for queue in _queues_with_jobs(store)
        if (queue.oldest or 0.0) >= longest_hold and queue.name not in paused
    ]
    held_jobs = [HeldJob(*row) for row in store.rows(SLOT_HOLDERS, {"seconds": longest_hold})] if waiting_queues else []
    workforce = Workforce.now(using=store.alias) if held_jobs else Workforce(())
    queues_by_workers: dict[tuple[WorkerHealth, ...], list[QueueNow]] = {}
    for queue in waiting_queues:
        queues_by_workers.setdefault(tuple(workforce.serving(queue.name)), []).append(queue)
    for workers, queues in queues_by_workers.items():
        worker_ids = {worker.id for worker in workers}
        jobs = [job for job in held_jobs if job.worker in worker_ids]
        if _are_full(workers, jobs):  # only then is it worth a statement to look for locked rows
            locked_ids = store.locked([(job.id, job.lease) for job in jobs])
            jobs = [job for job in jobs if job.id not in locked_ids]
            if _are_full(workers, jobs):
                yield FullPool(workers, queues, jobs)


def no_free_slot(store: Store) -> Iterator[Finding]:
    pools = list(full_pools(store))
    usual_seconds = usual_runs(store, (job.task for pool in pools for job in pool.jobs))
    for workers, queues, jobs in pools:
        busiest_task = slot_time(jobs, usual_seconds)
        job_names = [job_name(store.alias, job.id) for job in busiest_task.jobs][:MOST_IDS]
        longest_wait = max(queue.oldest or 0.0 for queue in queues)
        advice = gettext(
            "If these jobs hang, cancel them: a timeout on the task keeps that from happening again. If they are only "
            "slow, start more workers."
        )
        command = ["skipqueue", "cancel", *job_names]
        if busiest_task.hangs:
            advice = gettext("Cancel the jobs that hang. A timeout on the task keeps that from happening again.")
        elif busiest_task.hangs is False:
            advice = gettext("Start more workers, or find out what makes the task slow.")
            command = ["runworker", "--queues", ",".join(queue.name for queue in queues)]
        yield Finding.of(
            Severity.CRITICAL,
            gettext("%(task)s holds the slots of queue %(queues)s (%(slots)s in all), and jobs wait: %(runs)s"),
            gettext("The next job has waited for %(waits)s."),
            advice,
            shlex.join(["python", "manage.py", *command]),
            facts={
                "task": printable(busiest_task.task),
                "queues": ", ".join(printable(queue.name) for queue in queues[:MOST_SUBJECTS_NAMED]),
                "slots": sum(worker.slots for worker in workers),
                "runs": busiest_task.in_words,
                "waits": span(longest_wait),
            },
            subject=queues[0].name,
            since=jobs[0].now - timedelta(seconds=longest_wait),
            link=PageLink("job_changelist", query={"task": busiest_task.task, "status": "running"}),
        )


def _are_full(workers: Sequence[WorkerHealth], jobs: Sequence[HeldJob]) -> bool:
    """Return whether each worker runs jobs itself, and all of its threads or all of its coroutines are taken."""
    taken_slots = Counter((job.worker, registry.is_async(job.task)) for job in jobs)  # async tasks run in coroutines
    return bool(workers) and all(
        worker.slots and max(taken_slots[worker.id, False], taken_slots[worker.id, True]) >= worker.slots
        for worker in workers
    )


# Sent by long-wait. Counts the statements that workers and supervisors are running on the queue's tables, and that have
# already taken more than a second.
SLOW_STATEMENTS = """
SELECT count(*)
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND starts_with(application_name, 'skipqueue')
    AND state = 'active'
    AND query LIKE '%%skipqueue\\_%%'
    AND query_start < clock_timestamp() - interval '1 second'
LIMIT 1
"""


def long_waits(store: Store) -> Iterator[Finding]:
    """Find queues whose oldest job has waited for long, if no other rule names the cause.

    `queue-without-worker` names the queues without a worker, and `no-free-slot` the queues whose slots one task holds.
    """
    waiting_jobs = _waiting_for_long(store)
    if not waiting_jobs:
        return
    explained_queues = {queue.name for pool in full_pools(store) for queue in pool.queues}
    workforce = Workforce.now(using=store.alias)
    workers_by_queue = {name: workforce.serving(name) for name in waiting_jobs.keys() - explained_queues}
    workers_by_queue = {
        name: workers for name, workers in workers_by_queue.items() if any(worker.slots for worker in workers)
    }
    if not workers_by_queue:
        return
    time.sleep(SECOND_LOOK)
    waiting_at_second_look = _waiting_for_long(store)
    held_jobs = [HeldJob(*row) for row in store.rows(SLOT_HOLDERS, {"seconds": 0.0})]
    usual_seconds = usual_runs(store, (job.task for job in held_jobs))
    queues = {queue.name: queue for queue in _queues_with_jobs(store)}
    for name in sorted(workers_by_queue.keys() & queues.keys()):
        job_id, since, now = waiting_jobs[name]
        if name not in waiting_at_second_look or waiting_at_second_look[name][0] != job_id:
            continue  # the job that was the oldest at the first look no longer waits
        worker_ids = {worker.id for worker in workers_by_queue[name]}
        jobs = [job for job in held_jobs if job.worker in worker_ids]
        slots = sum(worker.slots for worker in workers_by_queue[name])
        busiest_task = slot_time(jobs, usual_seconds) if jobs else None
        ((slow_statements,),) = store.rows(SLOW_STATEMENTS, {})
        facts = {
            "queue": printable(name),
            "number": _queued_number(queues[name]),
            "span": span(now - since),
            "time": clock_time(since, now),
            "slots": slots,
            "task": printable(busiest_task.task) if busiest_task else "",
            "runs": busiest_task.in_words if busiest_task else "",
            "slow": slow_statements,
        }
        title, advice, command = _cause_of_wait(name, are_slots_taken=len(jobs) >= slots, is_slow=bool(slow_statements))
        yield Finding.of(
            Severity.CRITICAL,
            title,
            gettext("The oldest job is %(job)s. It has been due for %(span)s. Slots of the workers: %(slots)s."),
            advice,
            command,
            facts={**facts, "job": job_name(store.alias, job_id)},
            subject=name,
            since=since,
            link=PageLink("job_changelist", query={"status": "queued", "queue": name}),
        )


def _waiting_for_long(store: Store) -> dict[str, tuple[int, datetime, datetime]]:
    """Return for each queue with a long wait its oldest job: the id, since when it is due, and the current time."""
    values = {"seconds": LONGEST_WAIT.least, "timeout": settings.worker_timeout}
    rows = [] if LONGEST_WAIT.least is None else store.rows(OLDEST_WAITING, values)
    queue_names = {name for name, *_ in rows} - settings.external_queues.keys()
    queue_names.difference_update(queue_verbs.paused_queues(store) if queue_names else ())
    usual_seconds = usual_waits(store, sorted(queue_names)) if queue_names else {}
    longest_waits = {
        name: max(LONGEST_WAIT.of(name) or math.inf, USUAL_WAIT_FACTOR * usual_seconds.get(name, 0.0))
        for name in queue_names
    }
    return {
        name: (job_id, since, now)
        for name, job_id, since, now in rows
        if name in queue_names and (now - since).total_seconds() >= longest_waits[name]
    }


def _cause_of_wait(queue_name: str, *, are_slots_taken: bool, is_slow: bool) -> tuple[str, str, str]:
    """Return the title, the advice and the command of a finding about the waiting jobs of this queue."""
    if is_slow:
        return (
            gettext(
                "Jobs of queue %(queue)s have waited since %(time)s, %(number)s in all: PostgreSQL is slow, %(slow)s "
                "statements of workers take more than a second"
            ),
            gettext("See what PostgreSQL does, and the other findings."),
            "SELECT pid, application_name, wait_event_type, wait_event, query FROM pg_stat_activity\n"
            "WHERE state = 'active' ORDER BY query_start;",
        )
    if are_slots_taken:
        return (
            gettext(
                "Jobs of queue %(queue)s have waited since %(time)s, %(number)s in all: the %(slots)s slots are taken, "
                "for the longest time by %(task)s: %(runs)s"
            ),
            gettext("Start more workers for this queue, or give long tasks their own queue. Cancel jobs that hang."),
            shlex.join(["python", "manage.py", "runworker", "--queues", queue_name]),
        )
    return (
        gettext("Jobs of queue %(queue)s have waited since %(time)s, %(number)s in all, although slots are free"),
        gettext("Look at the other findings, and at the log of the workers: why do the workers not claim these jobs?"),
        "python manage.py skipqueue status",
    )


def _queues_with_jobs(store: Store) -> list[QueueNow]:
    return [queue for queue in queues_now(store, most=MOST_QUEUED_OF_FINDING, most_running=1) if queue.queued]


def _queued_number(queue: QueueNow) -> str:
    return f"{MOST_QUEUED_OF_FINDING}+" if queue.is_estimate else str(queue.queued)


def _heartbeats_in_words(workers: list[WorkerHealth]) -> str:
    named_workers = (
        gettext("%(name)s, last heartbeat %(age)s ago") % {"name": printable(worker.name), "age": span(worker.age)}
        for worker in workers[:MOST_WORKERS_NAMED]
    )
    return "; ".join([*named_workers, *(["…"] if len(workers) > MOST_WORKERS_NAMED else [])])


JOB_AND_WORKER_RULES = (
    Rule("no-worker", no_worker, _("Workers are alive"), is_watched=True),
    Rule("queue-without-worker", queues_without_worker, _("Every queue with jobs has a worker"), is_watched=True),
    Rule(
        "no-free-slot",
        no_free_slot,
        _("No job waits for the end of long ones"),
        is_watched=True,
        threshold=LONGEST_HOLD,
    ),
    Rule("paused-queue", paused_queues, _("No job waits in a paused queue"), is_watched=True, threshold=LONGEST_PAUSE),
    Rule("late-worker", late_workers, _("No worker is late"), is_watched=True),
    Rule("worker-versions", worker_versions, _("All workers have one version")),
    Rule("dead-worker", dead_workers, _("No worker is dead"), is_watched=True),
    Rule("unendable-session", unendable_sessions, _("Every supervisor may end the sessions of dead workers")),
    Rule("orphaned-job", orphaned_jobs, _("Every running job has a worker"), is_watched=True),
    Rule("unknown-task", unknown_tasks, _("The tasks of the next jobs are registered"), is_watched=True),
    Rule("long-job", long_jobs, _("No job has run for more than an hour")),
    Rule("long-wait", long_waits, _("No job has waited for long"), is_watched=True, threshold=LONGEST_WAIT),
    Rule("prune-lag", prune_lag, _("Finished jobs are deleted in time")),
)

"""Jobs that do not come forward, and workers that are late, dead, or do not serve a queue.

Every statement of the doctor on the job table is here, as a literal. Each reads a bounded number of rows, by an index.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.utils.translation import gettext, ngettext
from psycopg.sql import Identifier

from ...conf import settings
from ...events.log_format import job_name, printable
from ...jobs.registry import registry
from ...queue import queues as queue_verbs
from ...queue.observe import QueueNow, queues_now
from ...queue.store import Store
from ...values.records import worker_name
from ..durations import span
from ..queues_and_workers import WorkerHealth, Workforce, recovered
from . import sql
from .rule import Finding, PageLink, Severity, Threshold, statement

WORKERS, QUEUES = PageLink("worker_changelist"), PageLink("queue_changelist")
"""The pages to which findings link."""

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

MOST_JOBS = 100
"""How many jobs a statement returns, at most."""

LONG_RUN = 3_600.0
"""Seconds that a job may run before it is reported."""

PRUNE_LAG = 3_600.0
"""Seconds by which the oldest finished job may be past its retention."""

NAMED_WORKERS = 10
"""How many workers one finding names, at most."""

NAMED_QUEUES = 20
"""How many queues have findings of one rule, at most. The others have them when these are served."""

MOST_COUNTED = 1_000
"""How many jobs of a queue are counted."""

SKEW = 2.0
"""Seconds by which the clock of this process may differ from the database's."""


def unknown_tasks(store: Store) -> Iterator[Finding]:
    queue_names = store.queues_with_jobs(limit=100)
    known = {task.name for task in registry}
    unknown = [task for (task,) in store.rows(TASKS, {"queue_names": queue_names}) if task not in known]
    if unknown:
        yield Finding.of(
            Severity.WARNING,
            gettext("Jobs wait whose task this process does not have"),
            gettext("Tasks that are not registered: %(number)s (%(names)s). A worker with this code cannot run them."),
            gettext(
                "During a deploy, wait. Otherwise see whether the app of the task is in INSTALLED_APPS, and whether "
                "the task was renamed: @job(name=…) keeps the old name."
            ),
            facts={"number": len(unknown), "names": ", ".join(map(printable, unknown[:NAMED]))},
        )


def long_jobs(store: Store) -> Iterator[Finding]:
    """Jobs that have run for long. Those that run outside of the workers are not among them."""
    rows = store.rows(LONG_JOBS, {"seconds": LONG_RUN})
    if rows:
        yield Finding.of(
            Severity.WARNING,
            gettext("Jobs have run for more than an hour"),
            listed(store, rows),
            gettext("If a job hangs, cancel it. A timeout on its task keeps that from happening again."),
            f"python manage.py skipqueue cancel {job_name(store.alias, rows[0][0])} --reason 'it hung'",
        )


def orphaned_jobs(store: Store) -> Iterator[Finding]:
    rows = store.rows(ORPHANED_JOBS, {"seconds": settings.worker_timeout * 2})
    if rows:
        yield Finding.of(
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
        yield Finding.of(
            Severity.WARNING,
            gettext("Finished jobs are not deleted in time"),
            gettext("The retention of the oldest finished job has been over for %(lag)s."),
            gettext("Supervisors prune all the time. Without one, or after a long backlog, prune by hand."),
            "python manage.py prunejobs",
            facts={"lag": span(lag)},
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
    return f"{len(rows)}+" if len(rows) >= MOST_JOBS else str(len(rows))


def no_worker(store: Store) -> Iterator[Finding]:
    if Workforce.now(using=store.alias).not_dead:
        return
    own = [name for name in store.queues_with_jobs() if name not in settings.external_queues]
    is_needed = bool(own or store.rows(IS_OVERDUE))  # a live supervisor would have admitted an overdue job
    yield Finding.of(
        Severity.CRITICAL if is_needed else Severity.WARNING,
        gettext("No worker is alive, and jobs wait") if is_needed else gettext("No worker is alive"),
        gettext("Nothing runs the jobs that wait.") if is_needed else gettext("No job is waiting."),
        gettext("Start one."),
        "python manage.py runworker",
    )


def late_workers(store: Store) -> Iterator[Finding]:
    late = [each for each in Workforce.now(using=store.alias).not_dead if each.state == "late"]
    if late:
        title = ngettext(
            "The worker %(name)s is late with its heartbeat",
            "%(number)s workers are late with their heartbeats, %(name)s among them",
            len(late),
        )
        yield Finding.of(
            Severity.WARNING,
            title % {"number": len(late), "name": printable(late[0].name)},
            _heartbeats(late),
            gettext(
                "Look at their machines and logs: a machine that swaps or sleeps, a lost network, or a task that keeps "
                "Python's interpreter lock. Their jobs are recovered once they count as dead."
            ),
            link=WORKERS,
        )


def unendable_sessions(store: Store) -> Iterator[Finding]:
    """Supervisors whose role may not end what a machine that freezes leaves: a transaction with locks on its jobs."""
    for supervisor, worker in store.rows(sql.UNENDABLE_SESSIONS):
        yield Finding.of(
            Severity.WARNING,
            gettext("A supervisor may not end the sessions of dead workers"),
            gettext(
                "Supervisors connect as %(supervisor)s, and workers as %(worker)s. If a machine freezes, its open "
                "transactions keep its jobs locked until the server gives up."
            ),
            gettext("Let all machines connect as one role, or make the one a member of the other. No superuser."),
            statement("GRANT {worker} TO {supervisor};", worker=Identifier(worker), supervisor=Identifier(supervisor)),
            facts={"supervisor": supervisor, "worker": worker},
        )


def dead_workers(store: Store) -> Iterator[Finding]:
    """Workers that count as dead, and whose rows are still there: with jobs to recover, or without."""
    workforce = Workforce.now(using=store.alias)
    gone = recovered(workforce, using=store.alias)
    dead = [each for each in workforce.workers if not each.is_live and each not in gone]
    if dead:
        yield Finding.of(
            Severity.WARNING,
            ngettext("The worker %(name)s has died", "%(number)s workers have died, %(name)s among them", len(dead))
            % {"number": len(dead), "name": printable(dead[0].name)},
            _heartbeats(dead),
            gettext(
                "Start runworker again on these machines. Any running supervisor recovers their jobs within "
                "WORKER_TIMEOUT (%(timeout)s), and deletes their rows."
            )
            % {"timeout": span(settings.worker_timeout)},
            "python manage.py runworker",
            link=WORKERS,
        )
    if gone:
        yield Finding.of(
            Severity.INFO,
            gettext("Workers have died, and their jobs are recovered"),
            _heartbeats(gone),
            gettext("Nothing has to be done. Each row goes an hour after its last heartbeat."),
        )


LONG_PAUSE = Threshold("paused-queue", 3_600.0, "seconds", has_queues=True)
"""For how long a job may wait in a paused queue."""


def paused_queues(store: Store) -> Iterator[Finding]:
    paused = set(queue_verbs.paused_queues(store))
    held = [queue for queue in _queues_with_jobs(store) if queue.name in paused] if paused else []
    for queue in held[:NAMED_QUEUES]:
        long = LONG_PAUSE.of(queue.name)
        yield Finding.of(
            Severity.INFO if long is None or (queue.oldest or 0.0) < long else Severity.WARNING,
            _jobs_wait(
                queue,
                ngettext(
                    "%(number)s job waits in the paused queue %(queue)s",
                    "%(number)s jobs wait in the paused queue %(queue)s",
                    queue.queued,
                ),
            ),
            _first_waits(queue),
            gettext("Resume the queue when the reason for its pause is over."),
            shlex.join(["python", "manage.py", "skipqueue", "resume", queue.name]),
            subject=queue.name,
            link=QUEUES,
        )


def queues_without_worker(store: Store) -> Iterator[Finding]:
    workforce = Workforce.now(using=store.alias)
    queues = {queue.name: queue for queue in _queues_with_jobs(store)} if workforce.not_dead else {}
    names = workforce.unserved(queues)
    paused = set(queue_verbs.paused_queues(store)) if names else set()
    for queue in [queues[name] for name in names if name not in paused][:NAMED_QUEUES]:
        yield Finding.of(
            Severity.CRITICAL,
            _jobs_wait(
                queue,
                ngettext(
                    "%(number)s job waits in the queue %(queue)s, which no worker serves",
                    "%(number)s jobs wait in the queue %(queue)s, which no worker serves",
                    queue.queued,
                ),
            ),
            _first_waits(queue),
            gettext("Start a worker for it."),
            shlex.join(["python", "manage.py", "runworker", "--queues", queue.name]),
            subject=queue.name,
            link=PageLink("job_changelist", query={"queue": queue.name, "status": "queued"}),
        )


# no-free-slot → the jobs that workers have held for longer than `seconds`, with their leases and the time now, the
# first claimed first. Index: recover.
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

LONG_HOLD = Threshold("no-free-slot", 60.0, "seconds")
"""For how long jobs may hold all slots while others wait."""


class HeldJob(NamedTuple):
    """A row of `SLOT_HOLDERS`."""

    id: int
    lease: int
    task: str
    worker: str
    since: datetime
    now: datetime


def no_free_slot(store: Store) -> Iterator[Finding]:
    """Jobs wait, and long ones hold every slot of the workers that serve their queues: a finding for the same workers.

    A job whose row somebody has locked holds no slot, or only waits until its outcome can be written.
    """
    seconds = LONG_HOLD.of() or 0.0
    paused = set(queue_verbs.paused_queues(store))
    waiting = [each for each in _queues_with_jobs(store) if (each.oldest or 0.0) >= seconds and each.name not in paused]
    held = [HeldJob(*row) for row in store.rows(SLOT_HOLDERS, {"seconds": seconds})] if waiting else []
    workforce = Workforce.now(using=store.alias) if held else Workforce(())
    pools: dict[tuple[WorkerHealth, ...], list[QueueNow]] = {}
    for queue in waiting:
        pools.setdefault(tuple(workforce.serving(queue.name)), []).append(queue)
    for workers, queues in pools.items():
        ids = {worker.id for worker in workers}
        jobs = [job for job in held if job.worker in ids]
        if not _are_full(workers, jobs):
            continue
        locked = store.locked([(job.id, job.lease) for job in jobs])
        jobs = [job for job in jobs if job.id not in locked]
        if not _are_full(workers, jobs):
            continue
        ((task, number),) = Counter(job.task for job in jobs).most_common(1)
        slots, waits = sum(worker.slots for worker in workers), max(queue.oldest or 0.0 for queue in queues)
        yield Finding.of(
            Severity.CRITICAL,
            gettext("%(task)s holds the slots for %(queues)s: all %(slots)s are taken, and jobs wait"),
            gettext(
                "Of the jobs that have run for long, %(number)s are of this task, the longest for %(longest)s. The "
                "next job has waited for %(waits)s."
            ),
            gettext(
                "If they hang, cancel them: a timeout on the task keeps that from happening again. If they are only "
                "slow, start more workers."
            ),
            shlex.join(["python", "manage.py", "skipqueue", "cancel", "--task", task]),
            facts={
                "task": printable(task),
                "queues": ", ".join(printable(queue.name) for queue in queues[:NAMED]),
                "slots": slots,
                "number": number,
                "longest": span(jobs[0].now - jobs[0].since),
                "waits": span(waits),
            },
            subject=queues[0].name,
            since=jobs[0].now - timedelta(seconds=waits),
            link=PageLink("job_changelist", query={"task": task, "status": "running"}),
        )


def _are_full(workers: Sequence[WorkerHealth], jobs: Sequence[HeldJob]) -> bool:
    """Whether none of the workers has both a free thread and a free coroutine, or hands its jobs on."""
    taken = Counter((job.worker, registry.is_async(job.task)) for job in jobs)
    return bool(workers) and all(
        each.slots and max(taken[each.id, False], taken[each.id, True]) >= each.slots for each in workers
    )


def clock_skew(store: Store) -> Iterator[Finding]:
    before = datetime.now(UTC)
    ((clock,),) = store.rows(sql.CLOCK)
    after = datetime.now(UTC)
    skew = max((before - clock).total_seconds(), (clock - after).total_seconds())
    if skew > SKEW:
        yield Finding.of(
            Severity.WARNING,
            gettext("This machine's clock is wrong, or the database's"),
            gettext(
                "They differ by %(skew)s: here it is %(here)s, there %(there)s. The queue uses the database's clock "
                "alone, but a job with a run_after that was computed here starts too early or too late."
            ),
            gettext("Synchronize both clocks (NTP)."),
            "timedatectl status",
            facts={"skew": span(skew), "here": f"{after:%H:%M:%S}", "there": f"{clock:%H:%M:%S}"},
        )


def _queues_with_jobs(store: Store) -> list[QueueNow]:
    return [queue for queue in queues_now(store, most=MOST_COUNTED, most_running=1) if queue.queued]


def _jobs_wait(queue: QueueNow, text: str) -> str:
    number = f"{MOST_COUNTED}+" if queue.is_estimate else queue.queued
    return text % {"number": number, "queue": printable(queue.name)}


def _first_waits(queue: QueueNow) -> str:
    return gettext("The first has waited for %(span)s.") % {"span": span(queue.oldest or 0.0)}


def _heartbeats(workers: list[WorkerHealth]) -> str:
    shown = (
        gettext("%(name)s, last heartbeat %(age)s ago") % {"name": printable(each.name), "age": each.age_in_words}
        for each in workers[:NAMED_WORKERS]
    )
    return "; ".join([*shown, *(["…"] if len(workers) > NAMED_WORKERS else [])])

"""The worker processes: whether there are any, whether they are on time, and whether they serve every queue."""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

from django.utils.translation import gettext
from psycopg.sql import Identifier

from ...conf import settings
from ...events.log_format import printable
from ...queue import queues as queue_verbs
from ...queue.observe import QueueNow, queues_now
from ...queue.store import Store
from ..durations import span
from ..worker_health import WorkerHealth, Workforce, recovered
from . import jobs, sql
from .finding import Finding, Severity, statement

NAMED = 10
"""How many workers or queues one finding names, at most."""

MOST_COUNTED = 1_000
"""How many jobs of a queue are counted."""

SKEW = 2.0
"""Seconds by which the clock of this process may differ from the database's."""


def no_worker(store: Store) -> Iterator[Finding]:
    if Workforce.now(using=store.alias).not_dead:
        return
    is_needed = bool(store.queues_with_jobs(limit=1) or store.rows(jobs.IS_OVERDUE))
    yield Finding(
        "no-worker",
        Severity.CRITICAL if is_needed else Severity.WARNING,
        gettext("No worker is alive"),
        gettext("Jobs are waiting, and nothing runs them.") if is_needed else gettext("No job is waiting."),
        gettext("Start one."),
        "python manage.py runworker",
    )


def late_workers(store: Store) -> Iterator[Finding]:
    late = [each for each in Workforce.now(using=store.alias).not_dead if each.state == "late"]
    if late:
        yield Finding(
            "late-worker",
            Severity.WARNING,
            gettext("Workers are late with their heartbeats"),
            _heartbeats(late),
            gettext(
                "Look at their machines and logs: a machine that swaps or sleeps, a lost network, or a task that keeps "
                "Python's interpreter lock. Their jobs are recovered once they count as dead."
            ),
        )


def unendable_sessions(store: Store) -> Iterator[Finding]:
    """Supervisors whose role may not end what a machine that freezes leaves: a transaction with locks on its jobs."""
    for supervisor, worker in store.rows(sql.UNENDABLE_SESSIONS):
        yield Finding(
            "unendable-session",
            Severity.WARNING,
            gettext("A supervisor may not end the sessions of dead workers"),
            gettext(
                "Supervisors connect as %(supervisor)s, and workers as %(worker)s. If a machine freezes, its open "
                "transactions keep its jobs locked until the server gives up."
            )
            % {"supervisor": supervisor, "worker": worker},
            gettext("Let all machines connect as one role, or make the one a member of the other. No superuser."),
            statement("GRANT {worker} TO {supervisor};", worker=Identifier(worker), supervisor=Identifier(supervisor)),
        )


def dead_workers(store: Store) -> Iterator[Finding]:
    """Workers that count as dead, and whose rows are still there: with jobs to recover, or without."""
    workforce = Workforce.now(using=store.alias)
    gone = recovered(workforce, using=store.alias)
    dead = [each for each in workforce.workers if not each.is_live and each not in gone]
    if dead:
        yield Finding(
            "dead-worker",
            Severity.WARNING,
            gettext("Workers have died"),
            _heartbeats(dead),
            gettext(
                "Start runworker again on these machines. Any running supervisor recovers their jobs within "
                "WORKER_TIMEOUT (%(timeout)s), and deletes their rows."
            )
            % {"timeout": span(settings.worker_timeout)},
            "python manage.py runworker",
        )
    if gone:
        yield Finding(
            "dead-worker",
            Severity.INFO,
            gettext("Workers have died, and their jobs are recovered"),
            _heartbeats(gone),
            gettext("Nothing has to be done. Each row goes an hour after its last heartbeat."),
        )


def paused_queues(store: Store) -> Iterator[Finding]:
    paused = set(queue_verbs.paused_queues(store))
    held = [queue for queue in _queues_with_jobs(store) if queue.name in paused] if paused else []
    if held:
        yield Finding(
            "paused-queue",
            Severity.INFO,
            gettext("Jobs wait in paused queues"),
            _with_their_jobs(held),
            gettext("Resume a queue when the reason for its pause is over."),
            "\n".join(shlex.join(["python", "manage.py", "skipqueue", "resume", queue.name]) for queue in held[:NAMED]),
        )


def queues_without_worker(store: Store) -> Iterator[Finding]:
    workforce = Workforce.now(using=store.alias)
    queues = _queues_with_jobs(store) if workforce.not_dead else []
    external = settings.external_queues
    unserved = [queue for queue in queues if queue.name not in external and not workforce.serving(queue.name)]
    paused = set(queue_verbs.paused_queues(store)) if unserved else set()
    unserved = [queue for queue in unserved if queue.name not in paused]
    if unserved:
        yield Finding(
            "queue-without-worker",
            Severity.CRITICAL,
            gettext("Jobs wait in queues that no worker serves"),
            _with_their_jobs(unserved),
            gettext("Start a worker for them."),
            shlex.join(
                ["python", "manage.py", "runworker", "--queues", ",".join(queue.name for queue in unserved[:NAMED])]
            ),
        )


def clock_skew(store: Store) -> Iterator[Finding]:
    before = datetime.now(UTC)
    ((clock,),) = store.rows(sql.CLOCK)
    after = datetime.now(UTC)
    skew = max((before - clock).total_seconds(), (clock - after).total_seconds())
    if skew > SKEW:
        yield Finding(
            "clock-skew",
            Severity.WARNING,
            gettext("This machine's clock is wrong, or the database's"),
            gettext(
                "They differ by %(skew)s: here it is %(here)s, there %(there)s. The queue uses the database's clock "
                "alone, but a job with a run_after that was computed here starts too early or too late."
            )
            % {"skew": span(skew), "here": f"{after:%H:%M:%S}", "there": f"{clock:%H:%M:%S}"},
            gettext("Synchronize both clocks (NTP)."),
            "timedatectl status",
        )


def _queues_with_jobs(store: Store) -> list[QueueNow]:
    return [queue for queue in queues_now(store, most=MOST_COUNTED) if queue.queued]


def _with_their_jobs(queues: list[QueueNow]) -> str:
    shown = (
        gettext("%(name)s (jobs: %(number)s, the first for %(age)s)")
        % {
            "name": printable(queue.name),
            "number": f"{MOST_COUNTED}+" if queue.is_estimate else queue.queued,
            "age": span(queue.oldest or 0.0),
        }
        for queue in queues[:NAMED]
    )
    return gettext("Queues: %(number)s. %(queues)s") % {"number": len(queues), "queues": "; ".join(shown)}


def _heartbeats(workers: list[WorkerHealth]) -> str:
    shown = (
        gettext("%(name)s, last heartbeat %(age)s ago") % {"name": printable(each.name), "age": each.age_in_words}
        for each in workers[:NAMED]
    )
    return "; ".join([*shown, *(["…"] if len(workers) > NAMED else [])])

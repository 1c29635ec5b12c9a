"""Finds jobs whose rows a database session outside of the queue has locked.

Workers skip a locked row: no worker claims such a job or writes its outcome. Nothing else would show why the next job
does not run although a slot is free.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...events.log_format import job_name, printable
from ...queue.fragments import joined
from ...queue.store import Store
from ..counts import grouped
from ..durations import clock_time
from .rule import Finding, PageLink, Rule, Severity, Threshold, named, statement, without_values

LOCKED_FOR = Threshold("locked-rows", 10.0, "seconds")

MOST_QUEUES_CHECKED = 100
"""The first jobs of at most this many queues are read."""

MOST_LOCKED_JOBS_NAMED = 5
"""A finding names at most this many jobs."""

# Finds who has locked the rows that the query `rows` returns.
# `xmax` of a row is the id of the transaction that has locked the row. If several transactions have locked it, `xmax`
# is the number of a MultiXact, whose members are these transactions. PostgreSQL raises an error for a number that was
# never a MultiXact, or no longer is one, so the statement first checks the number's age.
# A transaction in progress holds a lock on its own id, and this lock (`id_lock`) names its session. Each savepoint
# has an id of its own, which is locked only until the savepoint is released. After the release, nothing names the
# session. The statement then takes the `likely_locker`: the session that has locked rows of the table, and whose
# transaction was the last to begin before the savepoint. A prepared transaction has no session.
# Two kinds of locks are left out: key-share locks (`keysh`), which an INSERT with a foreign key takes, because they do
# not prevent a claim; and the locks of the queue's own sessions, whose `application_name` begins with `skipqueue`.
_LOCKED = """
WITH looked_at AS MATERIALIZED ({rows}
),
locked AS MATERIALIZED (
    SELECT looked_at.id, looked_at.task, looked_at.queue_name, looked_at.is_running,
        COALESCE(member.xid, looked_at.xmax) AS xid
    FROM
        looked_at
        LEFT JOIN LATERAL (
            SELECT member.xid
            FROM
                pg_class AS job,
                pg_get_multixact_members(
                    CASE WHEN mxid_age(looked_at.xmax) BETWEEN 1 AND mxid_age(job.relminmxid) THEN looked_at.xmax END
                ) AS member
            WHERE job.oid = 'skipqueue_job'::regclass AND member.mode <> 'keysh'
            LIMIT 20
        ) AS member ON true
    WHERE looked_at.xmax <> '0'::xid
)
SELECT
    locked.id, locked.task, locked.queue_name, locked.is_running, session.pid, COALESCE(session.application_name, ''),
    COALESCE(session.state, ''), COALESCE(session.xact_start, prepared.prepared),
    COALESCE(left(session.query, 120), ''), COALESCE(prepared.gid, ''), statement_timestamp()
FROM
    locked
    LEFT JOIN pg_locks AS id_lock
        ON id_lock.locktype = 'transactionid' AND id_lock.granted AND id_lock.transactionid = locked.xid
    LEFT JOIN LATERAL (
        SELECT other_session.pid
        FROM pg_stat_activity AS other_session JOIN pg_locks AS table_lock ON table_lock.pid = other_session.pid
        WHERE
            id_lock.transactionid IS NULL
            AND age(other_session.backend_xid) >= age(locked.xid)
            AND table_lock.relation = 'skipqueue_job'::regclass
            AND table_lock.mode IN ('RowShareLock', 'RowExclusiveLock')
        ORDER BY age(other_session.backend_xid)
        LIMIT 1
    ) AS likely_locker ON true
    LEFT JOIN pg_stat_activity AS session ON session.pid = COALESCE(id_lock.pid, likely_locker.pid)
    LEFT JOIN pg_prepared_xacts AS prepared ON id_lock.pid IS NULL AND prepared.transaction = id_lock.transactionid
WHERE
    session.pid IS DISTINCT FROM pg_backend_pid()
    AND NOT starts_with(COALESCE(session.application_name, ''), 'skipqueue')
    AND COALESCE(session.xact_start, prepared.prepared) <= statement_timestamp() - make_interval(secs => %(seconds)s)
LIMIT 5000
"""

# Sent by locked-rows. Returns jobs whose rows are locked by a transaction that began more than `seconds` ago, each with
# the session of this transaction. Reads the first jobs of each of these queues, the scheduled jobs that are due, and
# the jobs that have run longest. Leaves out jobs that have been due, or have run, for less than `seconds`, because an
# old transaction may have locked their rows only just now. Some of the locks that it returns do not prevent a claim.
# Index: claim, once for each queue; admit; recover.
LOCKED_JOBS = joined(
    _LOCKED,
    rows="""
    SELECT job.id, job.task, job.queue_name, false AS is_running, job.xmax
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name)
        CROSS JOIN LATERAL (
            SELECT id, task, queue_name, run_after, xmax
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT 20
        ) AS job
    WHERE job.run_after <= statement_timestamp() - make_interval(secs => %(seconds)s)
    UNION ALL
    (
        SELECT id, task, queue_name, false, xmax
        FROM skipqueue_job
        WHERE status = 'scheduled' AND run_after <= statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY run_after, id
        LIMIT 200
    )
    UNION ALL
    (
        SELECT id, task, queue_name, true, xmax
        FROM skipqueue_job
        WHERE status = 'running' AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY locked_at
        LIMIT 200
    )""",
)

# Sent by job-page, verbs. Returns this job, if a transaction has locked its row. Index: the primary key.
LOCKED_JOB = joined(
    _LOCKED,
    rows="""
    SELECT id, task, queue_name, status = 'running' AS is_running, xmax
    FROM skipqueue_job
    WHERE id = %(id)s""",
)

# Sent by locked-rows, job-page, verbs. Returns the ids, among `ids`, of jobs that a worker could claim or settle. Locks
# the rows of these jobs until the end of the transaction, as a claim would. Index: the primary key.
FREE_JOBS = """
SELECT id FROM skipqueue_job WHERE id = ANY (%(ids)s::bigint[]) FOR NO KEY UPDATE SKIP LOCKED LIMIT 5000
"""


class Locker(NamedTuple):
    """A session or a prepared transaction that has locked rows."""

    pid: int | None
    """The process id of the session; `None` for a prepared transaction."""
    application: str
    state: str
    since: datetime
    """When the transaction began, or was prepared."""
    query: str
    """The start of the last statement."""
    gid: str
    """The name of the prepared transaction."""
    now: datetime

    @property
    def in_words(self) -> str:
        if self.pid is None:
            return gettext("the prepared transaction %(gid)s") % {"gid": named(self.gid)}
        values = {"pid": self.pid, "application": named(self.application), "state": self.state or "?"}
        return gettext("session %(pid)s (%(application)s, %(state)s)") % values

    @property
    def command(self) -> str:
        """SQL that ends the session or the prepared transaction."""
        if self.pid is None:
            return statement("ROLLBACK PREPARED {gid};", gid=self.gid)
        return statement("SELECT pg_terminate_backend({pid});", pid=self.pid)


class LockedJob(NamedTuple):
    id: int
    task: str
    queue_name: str
    is_running: bool


def locker_of(store: Store, job_id: int) -> Locker | None:
    """Return who keeps workers from claiming or settling this job; `None` if nobody or a worker does.

    If nobody does, this function keeps the row locked until the end of the transaction.
    """
    lockers = _lockers(store, LOCKED_JOB, {"id": job_id, "seconds": 0.0})
    return next(iter(lockers), None)


def locked_rows(store: Store) -> Iterator[Finding]:
    """Find sessions that keep rows locked, such as a forgotten psql, a migration, or a request that waits."""
    seconds = LOCKED_FOR.of()
    if seconds is None:
        return
    values = {"queue_names": store.queues_with_jobs(limit=MOST_QUEUES_CHECKED), "seconds": seconds}
    for locker, jobs in _lockers(store, LOCKED_JOBS, values).items():
        running_count = sum(job.is_running for job in jobs)
        shown_names = [job_name(store.alias, job.id) for job in jobs[:MOST_LOCKED_JOBS_NAMED]]
        queue_names = ", ".join(sorted({printable(job.queue_name) for job in jobs})[:MOST_LOCKED_JOBS_NAMED])
        yield Finding.of(
            Severity.CRITICAL,
            ngettext(
                "%(number)s job has been locked since %(time)s by %(locker)s",
                "%(number)s jobs have been locked since %(time)s by %(locker)s",
                len(jobs),
            ),
            gettext(
                "Locked jobs, among the next jobs and the jobs that have run for longest: %(jobs)s. Queues: "
                "%(queues)s. Workers skip them: %(queued)s of these jobs are not run, and the outcomes of %(running)s "
                "are not written. The last statement of the transaction: %(query)s"
            ),
            gettext(
                "End the transaction, unless it ends soon. No job is lost: the jobs go on when the locks are gone."
            ),
            locker.command,
            facts={
                "number": grouped(len(jobs)),
                "time": clock_time(locker.since, locker.now),
                "locker": locker.in_words,
                "jobs": ", ".join([*shown_names, *["…"] * (len(jobs) > MOST_LOCKED_JOBS_NAMED)]),
                "queues": queue_names,
                "queued": len(jobs) - running_count,
                "running": running_count,
                "query": without_values(locker.query),
            },
            subject=locker.gid or str(locker.pid),
            since=locker.since,
            link=PageLink("job_change", (jobs[0].id,)),
        )


def _lockers(store: Store, query: str, values: Mapping[str, Any]) -> dict[Locker, list[LockedJob]]:
    """Return the jobs that no worker can claim or settle, by the session that has locked their rows."""
    rows = sorted(store.rows(query, values), key=itemgetter(0))
    jobs_and_lockers = [(LockedJob(*row[:4]), Locker(*row[4:])) for row in rows]
    ids = [job.id for job, _locker in jobs_and_lockers]
    free_ids = {job_id for (job_id,) in store.rows(FREE_JOBS, {"ids": ids})} if ids else set()
    jobs_by_locker: defaultdict[Locker, list[LockedJob]] = defaultdict(list)
    for job, locker in jobs_and_lockers:
        if job.id not in free_ids:
            jobs_by_locker[locker].append(job)
    return jobs_by_locker


LOCK_RULES = (
    Rule("locked-rows", locked_rows, _("No session keeps the next jobs locked"), is_watched=True, threshold=LOCKED_FOR),
)

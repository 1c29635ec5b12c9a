"""What operators see of unique keys: which job holds a key, and a rule about keys that are held for days."""

from collections.abc import Iterator

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.arguments import redacted
from ...console.durations import span
from ...console.parts import PartConsole, PartFact
from ...console.rules.jobs_and_workers import number_of
from ...console.rules.rule import Finding, Rule, Severity
from ...events.log_format import job_name, printable
from ...models import Job
from ...models.job import AbstractJob
from ...queue.fragments import joined
from ...queue.observe import QUEUED_HEADS
from ...queue.store import Store
from ...values.codec import shorten
from ...values.redaction import MASK
from ...values.statuses import UNFINISHED_STATUSES
from .models import KEY_IS_HELD

_FIRST_OF_STATUS = """(
        SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
        FROM skipqueue_job
        WHERE status = '{status}'
        ORDER BY {order}
        LIMIT 2000
    )"""

_ORDERS = {"scheduled": "run_after, id", "running": "locked_at"}
"""The order of the index that finds the jobs of a status. For a status that is missing here, the order of ids."""


def _first_of_each() -> str:
    """Return the SQL that reads the first jobs in each unfinished status except `queued`."""
    statuses = (status for status in UNFINISHED_STATUSES if status != "queued")
    return "\n    UNION ALL\n    ".join(
        joined(_FIRST_OF_STATUS, status=status, order=_ORDERS.get(status, "id")) for status in statuses
    )


# HOLDS_KEY for unfinished jobs: a job still holds its unique key, unless `unique_seconds` is 0. Then the job holds its
# key only until its first claim, which raises the lease from 0.
_HOLDS_ITS_KEY = "(unique_seconds IS NULL OR unique_seconds > 0 OR lease = 0)"

# Sent by stuck-key. Returns the unfinished jobs that hold a unique key and have been due for longer than `seconds`, the
# longest due first. Reads the first 2,000 jobs of each status except `queued`, and the first 200 queued jobs for each
# pair of queue and priority; `head` is the first job of a pair. Indexes: admit, blocked and recover; claim, with one
# probe for each pair, and one range for each pair whose first job has been due for that long.
STUCK_KEYS = joined(
    """
WITH RECURSIVE {queued_heads},
due_longest AS (
    {first_of_each}
    UNION ALL
    (
        SELECT job.*
        FROM
            (SELECT * FROM head LIMIT 1000) AS head,
            LATERAL (
                SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
                FROM skipqueue_job
                WHERE status = 'queued' AND queue_name = head.queue_name AND (-priority) = head.rank
                ORDER BY run_after, id
                LIMIT 200
            ) AS job
        WHERE head.run_after < statement_timestamp() - make_interval(secs => %(seconds)s)
        LIMIT 2000
    )
)
SELECT id, task, unique_key, status, date_part('epoch', statement_timestamp() - GREATEST(enqueued_at, run_after)) AS age
FROM due_longest
WHERE
    unique_key IS NOT NULL
    AND {holds_its_key}
    AND GREATEST(enqueued_at, run_after) < statement_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY age DESC
LIMIT 100
""",
    queued_heads=QUEUED_HEADS,
    first_of_each=_first_of_each(),
    holds_its_key=_HOLDS_ITS_KEY,
)


LONGEST_HELD = 3 * 86_400.0
"""Seconds an unfinished job may hold its unique key after it was due, before a rule reports it."""


def stuck_keys(store: Store) -> Iterator[Finding]:
    holders = store.rows(STUCK_KEYS, {"seconds": LONGEST_HELD})
    if holders:
        job_id, task, key, status, age = holders[0]
        job = job_name(store.alias, job_id)
        yield Finding.of(
            Severity.WARNING,
            gettext("A job has held its unique key for days"),
            gettext(
                "Job %(id)s (%(task)s, %(status)s) has been due for %(age)s and still holds the unique key %(key)s, so "
                ".defer() with this key enqueues nothing. Jobs like this: %(number)s."
            ),
            gettext("The job's page shows why it does not finish. If it is no longer needed, cancel it."),
            f"python manage.py skipqueue cancel {job} --reason 'it holds its unique key'",
            facts={
                "id": job,
                "task": printable(task),
                "status": status,
                "key": printable(_shown_key(store, job_id, key)),
                "age": span(age),
                "number": number_of(holders),
            },
        )


def _shown_key(store: Store, job_id: int, key: str) -> str:
    """Return the job's key with its secrets masked; only a mask if the job has been deleted in the meantime."""
    job = Job.objects.using(store.alias).filter(pk=job_id).first()
    return MASK if job is None else redacted(job.task, job.args, job.kwargs).text(key)


LONGEST_KEY_IN_MESSAGE = 200
"""A longer key is cut to this number of characters in a message."""


def why_its_key_is_taken(job_id: int) -> str:
    """Return a message that says which job holds this job's key; empty if no other job does. Index: unique."""
    job = Job.objects.filter(pk=job_id, unique_key__isnull=False).first()
    if job is None:
        return ""
    for holder in Job.objects.filter(KEY_IS_HELD, unique_key=job.unique_key).exclude(pk=job.pk):
        return key_is_held(job, holder)
    return ""


def key_is_held(job: Job, holder: Job) -> str:
    """Return a message that `holder` holds the unique key of `job`. The key may contain secrets of both jobs."""
    key = redacted(holder.task, holder.args, holder.kwargs).text(holder.unique_key or "")
    return gettext("Nothing was done, because job %(id)s, which is %(status)s, holds the unique key “%(key)s”.") % {
        "key": shorten(redacted(job.task, job.args, job.kwargs).text(key), LONGEST_KEY_IN_MESSAGE),
        "id": holder.shown_id,
        "status": holder.get_status_display(),
    }


LONGEST_KEY_ON_PAGE = 500
"""A longer key is cut to this number of characters on the job's page."""


def _of_job(job: AbstractJob) -> str:
    """Return the job's key with its secrets masked; empty if the job has no key."""
    return shorten(redacted(job.task, job.args, job.kwargs).text(job.unique_key or ""), LONGEST_KEY_ON_PAGE)


CONSOLE = PartConsole(
    rules=(Rule("stuck-key", stuck_keys, _("No job has held a unique key for days")),),
    job_facts=(PartFact(template="admin/django_skipqueue/unique/of_job.html", content=_of_job),),
    job_keys=("unique_key",),
    why_unchanged=why_its_key_is_taken,
    why_existing=key_is_held,
)

"""`JobManager`, which is `Job.objects`, and the query sets that it makes."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from django.db import connections, models

from ..conf import settings
from ..exceptions import InvalidOption
from ..parts.steps import verbs as step_verbs
from ..queue.parameters import claim_values
from ..queue.store import Store
from ..queue.unique_keys import unique_keys
from ..values.codec import decode, encode
from ..values.records import NO_COLUMNS, EncodedCall, EnqueuedJob, JobColumns, JobSpec, parse_handle
from .status import StatusFilters
from .verbs import QuerySetVerbs

if TYPE_CHECKING:
    from .job import Job


class JobQuerySet(
    step_verbs.QuerySetStepVerbs,
    StatusFilters,
    QuerySetVerbs,
    models.QuerySet["Job"],
):
    """A query set of jobs, with filters by status, and operations such as `retry`."""


_JobManager = models.Manager.from_queryset(JobQuerySet)


# Sent by Job.objects.claim. Claims jobs, and returns whole rows. Workers send `queue.claim.CLAIM` instead, which
# returns fewer columns and starts where the last claim has ended; its comment explains the rest of this statement.
# Index: claim, once for each queue.
CLAIM_ROWS = """
WITH found AS MATERIALIZED (
    SELECT job.ctid AS place, job.size
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name),
        LATERAL (
            SELECT ctid, pg_column_size(args) + pg_column_size(kwargs) AS size
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE
        (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
    LIMIT %(limit)s
),
chosen AS MATERIALIZED (
    SELECT place
    FROM (SELECT place, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS size_before FROM found) AS found
    WHERE size_before < 4000000
)
UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp()
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING job.*
"""


class JobManager(_JobManager["Job"]):
    """`Job.objects`: uses the database in `SKIPQUEUE["DATABASE"]`, and ignores the project's database routers.

    Its methods are for code that enqueues jobs by the name of a task, and for code that claims jobs in its own loop. A
    query set does not have these methods, because they would ignore its filters.
    """

    @property
    def db(self) -> str:
        """The alias of the database: the one given to `db_manager`, or else the setting."""
        return self._db or settings.database

    def get_queryset(self) -> JobQuerySet:
        """All jobs, in the queue's database."""
        return JobQuerySet(self.model, using=self.db)

    def by_handle(self, handle: str) -> "Job":
        """Return the job with a handle, such as `queue_1:42`, or with an id, in the database of this manager.

        Raises `InvalidOption` for a string that is not a handle, and `Job.DoesNotExist`.
        """
        reference = parse_handle(handle)
        alias = reference.database
        if alias not in (None, *connections):
            raise InvalidOption(f"{handle!r} names the database {alias!r}, and DATABASES has no such alias.")
        job: Job = self.db_manager(alias or self.db).get(pk=reference.id)
        return job

    def enqueue(
        self,
        task: str,
        *,
        args: str | Sequence[Any] = "[]",
        kwargs: str | Mapping[str, Any] = "{}",
        unique_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **columns: Unpack[JobColumns],
    ) -> "Job":
        """Insert one job on the caller's connection.

        args, kwargs: a list and a dict, or strings with their JSON. metadata: the caller's own data about the job.
        columns: queue_name, priority, max_attempts, run_after (a timedelta counts from now), timeout (in seconds).

        If another job holds `unique_key`, returns that job, with its attribute `created` set to False. Raises
        `InvalidOption` for a value that the table cannot store, and `InvalidArguments` for arguments that are not JSON.
        """
        spec = JobSpec(task, metadata=json.dumps(metadata or {}), **columns)
        args = args if isinstance(args, str) else encode("args", list(args))
        kwargs = kwargs if isinstance(kwargs, str) else encode("kwargs", dict(kwargs))
        keys = NO_COLUMNS if unique_key is None else {"unique_key": unique_key}
        return self.insert(spec, EncodedCall(args, kwargs, keys))

    def insert(self, spec: JobSpec, call: EncodedCall, *, database: str | None = None) -> "Job":
        """Enqueue a job from a spec and a call. Raises `UniqueKeyTaken` if `spec.on_conflict` is "raise".

        database: the alias of the database; by default the database of this manager.
        """
        store = Store(database or self.db)
        while True:
            enqueued = store.enqueue(spec, call)
            if enqueued and enqueued.is_new:
                return self._as_enqueued(store.alias, enqueued)
            if enqueued:
                holder = self.model._base_manager.using(store.alias).get(pk=enqueued.id)
            elif current_holder := unique_keys().holder(store, spec, call.unique_key or ""):
                holder = current_holder
            else:
                continue  # the key became free between the two statements, because its holder finished or was claimed
            if spec.on_conflict == "raise":
                raise unique_keys().taken_by(store.alias, [holder.pk])
            holder.created, holder.replaced = False, enqueued is not None
            return holder

    def claim(self, *, queue_names: Sequence[str], limit: int = 1, worker_id: str) -> list["Job"]:
        """Claim up to `limit` jobs: the queues in the listed order, within each queue the highest priority first.

        The caller must complete, fail or release each job, and until then call `Job.heartbeat`, or it is recovered.
        """
        values = claim_values(queue_names, after={}, limit=limit, worker_id=worker_id)
        positions = {name: position for position, name in enumerate(queue_names)}
        jobs = self.raw(CLAIM_ROWS, values, using=self.db)
        return sorted(jobs, key=lambda job: (positions[job.queue_name], -job.priority, job.run_after, job.pk))

    def _as_enqueued(self, alias: str, enqueued: EnqueuedJob) -> "Job":
        """Make the `Job` object from the sent values and the returned values, without another query."""
        spec, call = enqueued.spec, enqueued.call
        values = {
            **spec._asdict(),
            **spec.columns,
            **call.columns,
            **enqueued._asdict(),
            "held": True if enqueued.gate == "held" else None,
            "args": decode(call.args),
            "kwargs": decode(call.kwargs),
            "retention": spec.retention and decode(spec.retention),
            "metadata": decode(spec.metadata),
            "attempts": 0,
            "lease": 0,
            "locked_by": "",
            "last_error": "",
            "errors": [],
        }
        names = self._columns
        return self.model.from_db(alias, names, list(map(values.get, names)))  # all other columns are NULL

    @cached_property
    def _columns(self) -> list[str]:
        return [field.attname for field in self.model._meta.concrete_fields]

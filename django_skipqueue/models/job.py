"""`Job`: one request to run a task.

Only the methods of `Store` write a job's status, lease, attempts and times. The methods of the models call `Store`.
"""

from typing import Any

from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Now
from django.db.models.lookups import Exact, IsNull, LessThanOrEqual
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..events.log_format import job_name
from ..exceptions import LeaseLost
from ..parts.batches import models as batch_models
from ..parts.limits import models as limit_models
from ..parts.rates import models as rate_models
from ..parts.steps import verbs as step_verbs
from ..parts.unique import models as unique_key_models
from ..values.backoff import RetryPolicy
from ..values.bounds import MAX_KEY_BYTES
from ..values.codec import encode, shorten
from ..values.notes import Progress, progress_of
from ..values.outcomes import COMPLETED, Outcome, Settlement, error_entry
from ..values.records import LeaseRef, handle_of, worker_name
from .expressions import CAUSE, CLAIM_ORDER, END_OF_TIME, FIRST_TIME, are_times, is_number
from .managers import JobManager
from .status import FINISHED, UNFINISHED, WAITING, Status
from .stored_json import StoredJSON
from .verbs import JobVerbs

_UNFINISHED, _FINISHED = ([status.value for status in statuses] for statuses in (UNFINISHED, FINISHED))


def _bytes(column: str) -> Func:
    return Func(F(column), function="octet_length", output_field=models.IntegerField())


def _json_type(column: str) -> Func:
    return Func(F(column), function="jsonb_typeof", output_field=models.TextField())


class AbstractJob(
    unique_key_models.UniqueColumns,
    limit_models.LimitColumns,
    rate_models.RateColumns,
    models.Model,
):
    """The columns of both the job table and a table for pruned jobs. `Job` adds the columns for claims."""

    queue_name = models.TextField(_("queue"))
    task = models.TextField(_("task"))
    args = StoredJSON(_("positional arguments"), default=list)
    kwargs = StoredJSON(_("keyword arguments"), default=dict)
    status = models.TextField(_("status"), choices=Status)
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    attempts = models.SmallIntegerField(_("attempts"), db_default=0)
    max_attempts = models.SmallIntegerField(_("maximum of attempts"), db_default=10)
    run_after = models.DateTimeField(_("run after"), db_default=Now())
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())
    locked_by = models.TextField(_("worker"), db_default="")
    started_at = models.DateTimeField(_("started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    result = StoredJSON(_("result"), null=True)
    last_error = models.TextField(_("last error"), db_default="")
    errors = StoredJSON(_("errors"), db_default=models.Value([], models.JSONField()))
    progress = StoredJSON(_("progress"), null=True)
    logs = StoredJSON(_("logs"), null=True)
    timeout = models.FloatField(_("timeout"), null=True)
    retention = StoredJSON(_("retention"), null=True)
    metadata = StoredJSON(_("metadata"), db_default=models.Value({}, models.JSONField()))
    operations = StoredJSON(_("operations"), null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{shorten(self.task, 200)} #{self.pk}"

    @property
    def handle(self) -> str:
        """A string that names the job and its database, such as `queue_1:42`: see `Job.objects.by_handle`."""
        return handle_of(self._state.db or settings.database, self.pk)

    @property
    def shown_id(self) -> str:
        """The job's name for people: its id, or its handle if several databases hold queues."""
        return job_name(self._state.db or settings.database, self.pk)

    @property
    def current_progress(self) -> Progress | None:
        """The progress of the running attempt, or of the last attempt if the job is finished; `None` if it has none."""
        return progress_of(self.progress)

    @property
    def worker_name(self) -> str:
        """The name of the worker that holds or last held the job; for a job claimed by hand, the `worker_id`."""
        return worker_name(self.locked_by)


def _of_parts(attribute: str) -> list[Any]:
    """The `indexes` or the `constraints` of the columns that parts add to the job table."""
    bases = (
        batch_models.BatchColumn,
        *AbstractJob.__bases__,
    )
    metas = [getattr(base, "_meta", None) for base in bases]
    return [definition for meta in metas if meta for definition in getattr(meta, attribute)]


class Job(
    step_verbs.StepVerbs,
    JobVerbs,
    batch_models.BatchColumn,
    AbstractJob,
):
    """One request to run a task."""

    lease = models.BigIntegerField(_("lease"), db_default=0)
    locked_at = models.DateTimeField(_("locked at"), null=True)
    deaths = StoredJSON(_("deaths"), null=True)
    unknown_since = models.DateTimeField(_("unknown since"), null=True)
    held = models.BooleanField(_("is held"), null=True)
    """True while a part makes the job wait at the gate `held`, for example until other jobs end."""
    gate = models.TextField(_("gate"), null=True)  # noqa: DJ001 (NULL: it waits at no gate)
    """The gate at which a blocked job waits: `held`, `limit` or `rate`. On a running job, `ahead` means that a worker
    has claimed it before its limit had room for it."""

    objects = JobManager()

    created = True
    """False on a job that `.defer()` returned because this job already held the unique key of the call."""

    replaced = False
    """True on a job that already held the unique key of the call, and got the arguments and due time of the call."""

    class Meta:
        db_table = "skipqueue_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = (("retry_job", "Can retry job"), ("discard_job", "Can discard job"))
        indexes = (
            models.Index(*CLAIM_ORDER, name="skipqueue_job_claim", condition=Q(status="queued")),
            models.Index(fields=["run_after", "id"], name="skipqueue_job_admit", condition=Q(status="scheduled")),
            models.Index(fields=["id"], name="skipqueue_job_blocked", condition=Q(status="blocked")),
            models.Index(fields=["locked_at"], name="skipqueue_job_recover", condition=Q(status="running")),
            models.Index(
                # The admin's lists use this index as well, so it also has the jobs with their own retention.
                fields=["status", "finished_at"],
                name="skipqueue_job_prune",
                condition=Q(status__in=_FINISHED),
            ),
            models.Index(
                # The time at which a job with its own retention is to be deleted. It is in UTC, without a time zone,
                # because an index expression must not depend on the session's time zone.
                Func(
                    template=(
                        "((finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention->>status)::float8))"
                    ),
                    output_field=models.DateTimeField(),
                ),
                name="skipqueue_job_prune_own",
                condition=Q(status__in=_FINISHED, retention__isnull=False),
            ),
            models.Index(
                fields=["queue_name", "-finished_at"], name="skipqueue_job_failed", condition=Q(status="failed")
            ),
            models.Index(
                # The jobs that have failed or will be retried, by the cause of their last error.
                CAUSE,
                F("status"),
                F("id"),
                name="skipqueue_job_cause",
                condition=Q(status="failed") | Q(status="scheduled", attempts__gt=0),
            ),
            *_of_parts("indexes"),
        )
        constraints = (
            *_of_parts("constraints"),
            models.CheckConstraint(
                # The status is one of the seven statuses. `finished_at` is set if the job is finished, and only then.
                name="skipqueue_job_finished",
                condition=Q(IsNull(F("finished_at"), True), status__in=_UNFINISHED)
                | Q(IsNull(F("finished_at"), False), status__in=_FINISHED),
            ),
            models.CheckConstraint(
                # A blocked job without a gate would wait forever, because no gate would admit it.
                name="skipqueue_job_gate",
                condition=Q(Q(gate=None) | Q(gate="ahead"), ~Q(status="blocked"))
                | Q(IsNull(F("gate"), False), status="blocked"),
            ),
            # The constraints below refuse values that would break statements, if somebody writes them by hand: a
            # priority that no claim finds, or a time that Python cannot represent.
            models.CheckConstraint(name="skipqueue_job_priority", condition=Q(priority__gte=-100, priority__lte=100)),
            models.CheckConstraint(
                name="skipqueue_job_run_after",
                condition=Q(run_after__gte=FIRST_TIME, run_after__lt=END_OF_TIME),
            ),
            models.CheckConstraint(
                # Refuses NaN, infinity and negative numbers, which break Python or a statement.
                name="skipqueue_job_numbers",
                condition=Q(
                    is_number("timeout"),
                    enqueued_at__gte=FIRST_TIME,
                    enqueued_at__lt=END_OF_TIME,
                ),
            ),
            models.CheckConstraint(
                name="skipqueue_job_times",
                condition=are_times("started_at", "finished_at", "locked_at", "unknown_since"),
            ),
            models.CheckConstraint(
                # Tables of parts have these two columns in their primary key, and an index entry must fit into a third
                # of a page.
                name="skipqueue_job_names",
                condition=Q(
                    LessThanOrEqual(_bytes("queue_name"), MAX_KEY_BYTES),
                    LessThanOrEqual(_bytes("task"), MAX_KEY_BYTES),
                ),
            ),
            models.CheckConstraint(
                name="skipqueue_job_lists",
                condition=Q(*(Exact(_json_type(column), "array") for column in ("errors", "operations", "deaths"))),
            ),
        )

    @property
    def current_progress(self) -> Progress | None:
        """The progress of the running attempt, or of the last attempt if the job is finished; `None` if it has none."""
        if self.status in WAITING:
            return None
        return progress_of(self.progress, self.lease if self.status == Status.RUNNING else self.lease - 1)

    # The next methods are for code that has claimed the job by hand, and holds the lease. If the lease is no longer
    # valid, each method raises LeaseLost and writes nothing.

    def complete(self, result: Any = None) -> None:
        """Finish the job with `result`, which must be JSON."""
        self._settle(COMPLETED if result is None else Outcome("completed", result=encode("The result", result)))

    def fail(self, error: BaseException, *, policy: RetryPolicy | None = None) -> None:
        """Record a failed attempt. `policy` decides whether the job is retried; the default is exponential backoff."""
        entry = error_entry(error, attempt=self.attempts, worker=self.locked_by, duration_ms=0.0)
        decide = (policy or RetryPolicy()).decide
        self._settle(decide(error, entry, attempt=self.attempts, max_attempts=self.max_attempts))

    def release(self) -> None:
        """Put the job back into its queue. The attempt does not count."""
        self._require_running()
        self._require_lease(self._store().release([self._ref]))
        self.status = Status.QUEUED

    def heartbeat(self) -> None:
        """Write the job's heartbeat. A job without a heartbeat for `WORKER_TIMEOUT` seconds is recovered."""
        self._require_running()
        self._require_lease(self._store().heartbeat_job(self._ref))

    @property
    def _ref(self) -> LeaseRef:
        return self.pk, self.lease

    def _settle(self, outcome: Outcome) -> None:
        self._require_running()
        self._require_lease(self._store().settle([Settlement(*self._ref, outcome)]))
        self.status = Status(outcome.next_status)

    def _require_running(self) -> None:
        self._require_lease(self.status == Status.RUNNING)

    def _require_lease(self, is_held: object) -> None:
        if not is_held:
            raise LeaseLost(
                f"Job {self.shown_id} is no longer held by lease {self.lease}: "
                "it was settled, or somebody else has taken it."
            )

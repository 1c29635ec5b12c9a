"""`Job`: one request to run a task.

Only the methods of `Store` write a job's status, lease, attempts and times. The methods here call them.
"""

import math
from typing import Any

from django.db import models
from django.db.models import F, Func, Q
from django.db.models.lookups import Exact, IsNull, LessThanOrEqual
from django.utils.translation import gettext_lazy as _

from ..exceptions import LeaseLost
from ..values.backoff import RetryPolicy
from ..values.codec import encode
from ..values.columns import MAX_KEY_BYTES
from ..values.notes import Progress, progress_of
from ..values.outcomes import COMPLETED, Outcome, Settlement, error_entry
from ..values.rates import INTERVALS
from ..values.records import LeaseRef
from .abstract_job import AbstractJob
from .expressions import (
    CAUSE,
    CLAIM_ORDER,
    END_OF_TIME,
    FIRST_TIME,
    HALTS,
    HAS_BEGUN,
    HOLDS_KEY,
    LIMIT_RANK,
    MINUS_PRIORITY,
    are_times,
)
from .managers import JobManager
from .status import FINISHED, UNFINISHED, WAITING, Status
from .stored_json import StoredJSON
from .verbs import JobVerbs

SECONDS = ("timeout", "unique_seconds")
"""Columns with a number of seconds."""

_UNFINISHED, _FINISHED = ([status.value for status in statuses] for statuses in (UNFINISHED, FINISHED))


def _bytes(column: str) -> Func:
    return Func(F(column), function="octet_length", output_field=models.IntegerField())


def _json_type(column: str) -> Func:
    return Func(F(column), function="jsonb_typeof", output_field=models.TextField())


class Job(JobVerbs, AbstractJob):
    """One request to run a task."""

    lease = models.BigIntegerField(_("lease"), db_default=0)
    locked_at = models.DateTimeField(_("locked at"), null=True)
    deaths = StoredJSON(_("deaths"), null=True)
    unknown_since = models.DateTimeField(_("unknown since"), null=True)
    batch_id = models.BigIntegerField(_("batch"), null=True)
    held = models.BooleanField(_("is held"), null=True)
    """True while a part holds the job at the gate `held`, such as for the end of other jobs."""
    gate = models.TextField(_("gate"), null=True)  # noqa: DJ001 (NULL: it waits at none)
    """The gate at which a blocked job waits: `held`, `limit` or `rate`. `ahead`: it runs, and was claimed ahead of its
    permit."""

    objects = JobManager()

    created = True
    """False on a job that `.defer()` returned because it already held the unique key."""

    replaced = False
    """True on such a job if it waits, and has taken the arguments and the due time of the call."""

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
                # For the lists of the admin, too: they show the jobs with a retention of their own among the others.
                fields=["status", "finished_at"],
                name="skipqueue_job_prune",
                condition=Q(status__in=_FINISHED),
            ),
            models.Index(
                # The time at which a job with a retention of its own is to be deleted. In UTC, without a time zone: an
                # index expression must not depend on the time zone of the session.
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
                # The jobs that have failed, or will be tried again, by the cause of their last error.
                CAUSE,
                F("status"),
                F("id"),
                name="skipqueue_job_cause",
                condition=Q(status="failed") | Q(status="scheduled", attempts__gt=0),
            ),
            models.Index(
                # For the check whether a batch is finished, its progress, and the list of its jobs in the admin.
                fields=["batch_id", "status", "id"],
                name="skipqueue_job_batch",
                condition=Q(batch_id__isnull=False),
            ),
            models.Index(
                # The jobs that hold a permit of their key: `parts.limits.admit`.
                fields=["limit_key"],
                name="skipqueue_job_limit_held",
                condition=Q(limit_key__isnull=False)
                & (
                    Q(status__in=["queued", "running"])
                    | Q(HAS_BEGUN, status="scheduled", limit_kind__in=["sequence", "halting"])
                    | Q(limit_kind="halting", status="failed")
                    | Q(gate="rate")
                ),
            ),
            models.Index(
                "limit_key",
                LIMIT_RANK,
                "id",
                name="skipqueue_job_limit_waiting",
                condition=Q(gate="limit", limit_key__isnull=False),
            ),
            models.Index(
                # The jobs that wait for their rate, and those that have a token and wait for a worker:
                # `parts.rates.admit`.
                F("rate_key"),
                MINUS_PRIORITY,
                F("run_after"),
                F("id"),
                name="skipqueue_job_rate_waiting",
                condition=Q(gate="rate", rate_key__isnull=False),
            ),
            models.Index(
                fields=["rate_key"],
                name="skipqueue_job_rate_queued",
                condition=Q(status="queued", rate_key__isnull=False),
            ),
            models.Index(
                # The failed jobs for which their sequences have halted: `parts.limits.now`.
                fields=["finished_at", "id"],
                name="skipqueue_job_halted",
                condition=HALTS,
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["unique_key"],
                name="skipqueue_job_unique",
                condition=HOLDS_KEY,
            ),
            models.CheckConstraint(
                # The status is one of the seven, and it is a finished one exactly if `finished_at` is set.
                name="skipqueue_job_finished",
                condition=Q(IsNull(F("finished_at"), True), status__in=_UNFINISHED)
                | Q(IsNull(F("finished_at"), False), status__in=_FINISHED),
            ),
            models.CheckConstraint(
                # A blocked job without a gate would wait for ever: nothing admits it.
                name="skipqueue_job_gate",
                condition=Q(Q(gate=None) | Q(gate="ahead"), ~Q(status="blocked"))
                | Q(IsNull(F("gate"), False), status="blocked"),
            ),
            # Values that would break statements, even if written by hand: a priority that no claim finds, a time that
            # Python cannot represent, a list to which nothing can be appended.
            models.CheckConstraint(name="skipqueue_job_priority", condition=Q(priority__gte=-100, priority__lte=100)),
            models.CheckConstraint(
                name="skipqueue_job_run_after",
                condition=Q(run_after__gte=FIRST_TIME, run_after__lt=END_OF_TIME),
            ),
            models.CheckConstraint(
                # Numbers that break Python or a statement: NaN, infinity, less than 0. None of them is large to read.
                name="skipqueue_job_numbers",
                condition=Q(
                    *(
                        Q(**{column: None}) | Q(**{f"{column}__gte": 0, f"{column}__lt": math.inf})
                        for column in SECONDS
                    ),
                    Q(rate_interval=None) | Q(rate_interval__range=INTERVALS),
                    Q(capacity=None) | Q(capacity__gte=0),
                    enqueued_at__gte=FIRST_TIME,
                    enqueued_at__lt=END_OF_TIME,
                ),
            ),
            models.CheckConstraint(
                name="skipqueue_job_times",
                condition=are_times("started_at", "finished_at", "locked_at", "unknown_since"),
            ),
            models.CheckConstraint(
                # Roll-ups have both in their primary key, and an index entry must fit into a third of a page.
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
        """The progress of the attempt that runs, and once the job is finished, of the last one; `None` without any."""
        if self.status in WAITING:
            return None
        return progress_of(self.progress, self.lease if self.status == Status.RUNNING else self.lease - 1)

    # For the worker that holds the lease. Each raises LeaseLost, and writes nothing, if the lease is no longer valid.

    def complete(self, result: Any = None) -> None:
        """Finish the job with `result`, which must be JSON."""
        self._settle(COMPLETED if result is None else Outcome("completed", result=encode("The result", result)))

    def fail(self, error: BaseException, *, policy: RetryPolicy | None = None) -> None:
        """Record a failed attempt. `policy` decides whether the job is retried (default: with exponential backoff)."""
        entry = error_entry(error, attempt=self.attempts, worker=self.locked_by, duration_ms=0.0)
        decide = (policy or RetryPolicy()).decide
        self._settle(decide(error, entry, attempt=self.attempts, max_attempts=self.max_attempts))

    def release(self) -> None:
        """Put the job back into its queue without charging the attempt."""
        self._require_running()
        self._require_lease(self._store().release([self._ref]))
        self.status = Status.QUEUED

    def heartbeat(self) -> None:
        """Write the job's heartbeat. Without a heartbeat for the worker timeout, the job is recovered."""
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

    def _require_lease(self, changed: object) -> None:
        if not changed:
            raise LeaseLost(
                f"Job {self.shown_id} is no longer held by lease {self.lease}: "
                "it was settled, or somebody else has taken it."
            )

"""The Sentry integration, enabled by `sentry_sdk.init(integrations=[SkipqueueIntegration()])`.

Each attempt has its own scope, and its own Sentry transaction, which continues the trace of the request that deferred
the job. The headers of the trace are stored in the job's metadata under the key `sentry`. With cron monitors, each job
that a schedule makes has a check-in, which the job's attempts update. In the events of an attempt, secret arguments are
masked as in the admin. Each failure is captured once.
"""

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.utils.text import slugify

from .. import signals
from ..conf import settings
from ..events import tracing
from ..events.log_context import named_database
from ..events.log_format import job_name
from ..events.tracing import AfterInsert, Ended, TracedInsert, attempted_job
from ..exceptions import UnknownTask
from ..jobs.registry import registry
from ..values.codec import decode
from ..values.outcomes import Outcome
from ..values.records import ClaimedJob
from ..values.redaction import Redacted, redact

try:
    import sentry_sdk
    from sentry_sdk.consts import OP, SPANDATA, SPANSTATUS
    from sentry_sdk.crons import capture_checkin
    from sentry_sdk.integrations import Integration
    from sentry_sdk.scope import add_global_event_processor
    from sentry_sdk.tracing import Span
    from sentry_sdk.utils import event_from_exception
except ImportError as error:
    raise ImportError(
        'django_skipqueue.integrations.sentry needs Sentry\'s SDK: pip install "django-skipqueue[sentry]"'
    ) from error

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

ORIGIN = "auto.queue.skipqueue"

SENTRY_KEY = "sentry"
"""The key in a job's metadata under which the headers `sentry-trace` and `baggage` are."""

EVENT_ID = "sentry_event_id"
"""The key in an item of a job's `errors` under which the id of the Sentry event is."""

FLUSH_TIME = 2.0
"""How many seconds a stopping worker waits for its events to be sent."""

SCHEDULE_KEY = "schedule"
"""The key in a job's metadata under which the part `schedules` describes the schedule that made the job."""

MONITOR_SLUG_LIMIT = 50
"""How many characters Sentry allows in a monitor's slug."""

MONITORED_CRON_FIELDS = 5
"""How many fields Sentry understands in a cron expression. A schedule with a sixth field (seconds) has no monitor."""

INTERVAL_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))
"""The units in which Sentry takes an interval, and how many seconds each has."""

CHECK_IN_STATUSES = {"completed": "ok", "failed": "error", "discarded": "error"}
"""The check-in's status for each status of a finished job. Until the job is finished, its check-in is in progress."""


@dataclass(frozen=True)
class CheckIn:
    """The check-in of one job. Each attempt of the job computes the same id, whichever process runs it."""

    slug: str
    id: str
    config: dict[str, Any]

    def send(self, status: Any) -> None:
        """Send the check-in with its monitor's schedule. Sentry makes the monitor if it does not exist."""
        capture_checkin(monitor_slug=self.slug, check_in_id=self.id, status=status, monitor_config=self.config)  # type: ignore[arg-type]


def check_in_of(job: ClaimedJob) -> CheckIn | None:
    """Return the check-in of this job. `None` if no schedule made the job, or if Sentry cannot express the schedule."""
    if f'"{SCHEDULE_KEY}"' not in job.metadata:
        return None
    schedule = decode(job.metadata).get(SCHEDULE_KEY)
    config = config_of(schedule) if isinstance(schedule, dict) else None
    if config is None:
        return None
    id = uuid.uuid5(uuid.NAMESPACE_OID, f"{attempted_job(job)} {schedule.get('planned_at')}").hex
    slug = slugify(str(schedule.get("name")).replace(".", "-"))[:MONITOR_SLUG_LIMIT]
    return CheckIn(slug, id, config)


def config_of(schedule: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert a schedule in a job's metadata to a monitor's configuration. Returns `None` if Sentry cannot express it.

    Every type is checked, because a project may have written something else under this key of the metadata.
    """
    cron, seconds = schedule.get("cron"), schedule.get("every")
    if isinstance(cron, str):
        if len(cron.split()) != MONITORED_CRON_FIELDS:
            return None
        return {"schedule": {"type": "crontab", "value": cron}, "timezone": schedule.get("timezone")}
    for unit, unit_seconds in INTERVAL_UNITS:
        if isinstance(seconds, int | float) and seconds >= unit_seconds and seconds % unit_seconds == 0:
            return {"schedule": {"type": "interval", "value": int(seconds // unit_seconds), "unit": unit}}
    return None


class SkipqueueIntegration(Integration):
    """Captures the failure that ends a job, and with `capture_retries` also the failures that are retried.

    monitor_schedules: have Sentry make a cron monitor for each schedule in code and settings, with a check-in for each
    of the schedule's jobs.
    """

    identifier = "skipqueue"

    def __init__(self, *, capture_retries: bool = False, monitor_schedules: bool = False) -> None:
        self.capture_retries = capture_retries
        self.monitor_schedules = monitor_schedules

    @staticmethod
    def setup_once() -> None:
        """Connect to the queue. Sentry's SDK calls this once in each process."""
        tracing.use(SentryTracer())
        add_global_event_processor(_drop_logged)
        signals.worker_stopped.connect(_flush, dispatch_uid="django_skipqueue.integrations.sentry")

    def captures(self, status: str) -> bool:
        """Return whether to capture an exception that led to this status."""
        return status == "failed" or (status == "scheduled" and self.capture_retries)


def _integration() -> SkipqueueIntegration | None:
    return sentry_sdk.get_client().get_integration(SkipqueueIntegration)


class SentryTracer:
    """Makes Sentry spans and events. Implements `tracing.Tracer`."""

    def sending(self, batch: TracedInsert) -> AfterInsert | None:
        """Start a span for the INSERT, and add the headers of the trace to the metadata of the jobs."""
        if _integration() is None:
            return None
        with ExitStack() as stack:
            span = stack.enter_context(sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=batch.given.task, origin=ORIGIN))
            span.set_data(SPANDATA.MESSAGING_SYSTEM, "skipqueue")
            span.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, batch.given.queue_name)
            headers = dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers(span=span))
            if headers:
                batch.metadata[SENTRY_KEY] = headers
            return partial(_end_insert_span, batch, span, stack.pop_all())

    def attempt(self, job: ClaimedJob) -> Ended | None:
        """Start a scope and a transaction for the attempt, and send the job's check-in."""
        integration = _integration()
        if integration is None:
            return None
        with ExitStack() as stack:
            scope = stack.enter_context(sentry_sdk.isolation_scope())
            tags = {"task": job.task, "queue": job.queue_name, "attempt": job.attempt, "job_id": job.id}
            scope.set_tags(tags | named_database())
            scope.add_event_processor(partial(_add_job, job))
            transaction = sentry_sdk.continue_trace(
                _trace_headers(job), op=OP.QUEUE_PROCESS, name=job.task, source="task", origin=ORIGIN
            )
            sampling_context = {
                "job": {"id": job.id, "task": job.task, "queue_name": job.queue_name, **named_database()}
            }
            span = stack.enter_context(
                sentry_sdk.start_transaction(transaction, custom_sampling_context=sampling_context)
            )
            span.set_data(SPANDATA.MESSAGING_SYSTEM, "skipqueue")
            span.set_data(SPANDATA.MESSAGING_MESSAGE_ID, attempted_job(job))
            span.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, job.queue_name)
            span.set_data(SPANDATA.MESSAGING_MESSAGE_RETRY_COUNT, job.attempt - 1)
            span.set_data(SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY, job.waited_ms(monotonic()))
            check_in = check_in_of(job) if integration.monitor_schedules else None
            if check_in is not None:
                check_in.send("in_progress")
            return partial(_end_attempt_span, integration, span, stack.pop_all(), check_in)


def _end_insert_span(batch: TracedInsert, span: Span, stack: ExitStack, error: BaseException | None) -> None:
    with stack:
        span.set_status(SPANSTATUS.OK if error is None else SPANSTATUS.INTERNAL_ERROR)
        if batch.size > 1:
            span.set_data("messaging.batch.message_count", batch.size)
        elif batch.job_ids:
            span.set_data(SPANDATA.MESSAGING_MESSAGE_ID, job_name(batch.database, batch.job_ids[0]))


def _end_attempt_span(
    integration: SkipqueueIntegration, span: Span, stack: ExitStack, check_in: CheckIn | None, outcome: Outcome
) -> None:
    """Send the check-in, capture the failure, and end the span. The event's id is added to the job's error."""
    with stack:
        if check_in is not None and outcome.status in CHECK_IN_STATUSES:
            check_in.send(CHECK_IN_STATUSES[outcome.status])
        status = SPANSTATUS.OK if outcome.error is None else SPANSTATUS.ABORTED
        span.set_status(SPANSTATUS.INTERNAL_ERROR if outcome.status == "failed" else status)
        if outcome.exception is not None and outcome.error is not None and integration.captures(outcome.status):
            event, hint = event_from_exception(
                outcome.exception,
                client_options=sentry_sdk.get_client().options,
                mechanism={"type": SkipqueueIntegration.identifier, "handled": False},
            )
            event_id = sentry_sdk.capture_event(event, hint=hint)
            if event_id:
                outcome.error[EVENT_ID] = event_id


def _trace_headers(job: ClaimedJob) -> dict[str, str]:
    headers = decode(job.metadata).get(SENTRY_KEY)
    return {name: str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}


def _add_job(job: ClaimedJob, event: "Event", _: "Hint") -> "Event":
    """Add the job to an event of its attempt, and mask the secret arguments everywhere in the event."""
    secret_names: tuple[str, ...] = settings.redact
    args, kwargs = decode(job.args), decode(job.kwargs)
    try:
        task = registry.get(job.task)
        masked, secret_names = task.redacted(args, kwargs), (*secret_names, *task.redact)
    except UnknownTask:
        masked = redact(args, kwargs, also=secret_names)
    job_context = {"id": job.id, **named_database(), "task": job.task, "args": masked.args, "kwargs": masked.kwargs}
    event.setdefault("contexts", {})["job"] = job_context
    for value in event.get("exception", {}).get("values", []):
        value.update(_masked({"value": value.get("value")}, masked))
        for frame in (value.get("stacktrace") or {}).get("frames", []):
            if "vars" in frame:
                frame["vars"] = _masked(redact((), frame["vars"], also=secret_names).kwargs, masked)
    return event


def _masked(value: Any, arguments: Redacted) -> Any:
    if isinstance(value, str):
        return arguments.text(value)
    if isinstance(value, Mapping):
        return {key: _masked(item, arguments) for key, item in value.items()}
    return [_masked(item, arguments) for item in value] if isinstance(value, list | tuple) else value


def _drop_logged(event: "Event", hint: "Hint") -> "Event | None":
    """Drop the event that Sentry's logging integration makes of our log line, if the failure was already captured."""
    record, integration = hint.get("log_record"), _integration()
    if integration is None or record is None or not record.exc_info:
        return event
    status = {"job_failed": "failed", "job_retrying": "scheduled"}.get(getattr(record, "event", None) or "", "")
    return None if integration.captures(status) else event


def _flush(**_: Any) -> None:
    sentry_sdk.flush(timeout=FLUSH_TIME)

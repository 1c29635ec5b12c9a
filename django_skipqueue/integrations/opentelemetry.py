"""Records OpenTelemetry spans: `send <queue>` around each INSERT of jobs, and `process <queue>` around each attempt.

The spans follow the semantic conventions for messaging, version 1.44.0. The trace context is stored in the job's
metadata under the key `opentelemetry`. The span of each attempt is a child of the span that sent the job. No span
contains the value of a secret argument.
"""

from typing import Any

from ..events import tracing
from ..events.log_format import job_name
from ..events.tracing import AfterInsert, Ended, TracedInsert, attempted_job
from ..values.codec import decode
from ..values.outcomes import Outcome
from ..values.records import ClaimedJob

try:
    from opentelemetry import context, propagate, trace
except ImportError as error:
    raise ImportError(f'{__name__} needs the API of OpenTelemetry: pip install "django-skipqueue[otel]"') from error

CONVENTIONS = "https://opentelemetry.io/schemas/1.44.0"
"""The URL of the schema that the spans follow."""

SYSTEM = "skipqueue"
"""The value of `messaging.system`."""

OPENTELEMETRY_KEY = "opentelemetry"
"""The key in a job's metadata under which the propagator's headers are, such as `traceparent`."""


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Trace every `.defer()` and every attempt of this process, and of the workers that it starts.

    Call it once in each process, for example at the end of the settings, in web servers and workers alike.

    tracer_provider: used in place of the global one.
    """
    tracing.use(OpenTelemetryTracer(tracer_provider))


class OpenTelemetryTracer:
    """Makes OpenTelemetry spans. Implements `tracing.Tracer`."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("django_skipqueue", tracer_provider=tracer_provider, schema_url=CONVENTIONS)

    def sending(self, batch: TracedInsert) -> AfterInsert | None:
        """Start a span for the INSERT, and add the trace context to the metadata of the jobs."""
        span = self._tracer.start_span(
            f"send {batch.given.queue_name}",
            kind=trace.SpanKind.PRODUCER,
            attributes={**_attributes("send", batch.given.queue_name, batch.given.task)},
        )
        headers: dict[str, str] = {}
        span_context = trace.set_span_in_context(span)
        propagate.inject(headers, span_context)
        if headers:
            batch.metadata[OPENTELEMETRY_KEY] = headers
        token = context.attach(span_context)

        def sent(error: BaseException | None) -> None:
            context.detach(token)
            if batch.size > 1:
                span.set_attribute("messaging.batch.message_count", batch.size)
            elif batch.job_ids:
                span.set_attribute("messaging.message.id", job_name(batch.database, batch.job_ids[0]))
            if error is not None:
                _set_error(span, _class_path(error), type(error).__name__)
            span.end()

        return sent

    def attempt(self, job: ClaimedJob) -> Ended | None:
        """Start a span for the attempt, as a child of the span in the job's metadata."""
        headers = decode(job.metadata).get(OPENTELEMETRY_KEY)
        parent = propagate.extract(headers) if isinstance(headers, dict) else None
        span = self._tracer.start_span(
            f"process {job.queue_name}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes={
                **_attributes("process", job.queue_name, job.task),
                "messaging.message.id": attempted_job(job),
                "skipqueue.attempt": job.attempt,
            },
        )
        token = context.attach(trace.set_span_in_context(span, parent))

        def ended(outcome: Outcome) -> None:
            context.detach(token)
            if span.is_recording():
                _record_outcome(span, outcome)
            span.end()

        return ended


def _attributes(operation: str, queue_name: str, task: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue_name,
        "skipqueue.task": task,
    }


def _record_outcome(span: trace.Span, outcome: Outcome) -> None:
    """Record the outcome and the error in the span. The texts of the error have masks in place of secret arguments."""
    span.set_attribute("skipqueue.outcome", outcome.next_status)
    entry = outcome.error
    if entry is None or outcome.exception is None:  # no exception was raised, so the task chose this outcome itself
        if outcome.status == "failed":
            _set_error(span, entry["exception"] if entry else "failed", outcome.last_error or "")
        return
    span.add_event(
        "exception",
        {
            "exception.type": entry["exception"],
            "exception.message": entry["message"],
            "exception.stacktrace": entry["traceback"],
        },
    )
    _set_error(span, entry["exception"], outcome.last_error or "")


def _set_error(span: trace.Span, error_type: str, description: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(trace.StatusCode.ERROR, description)


def _class_path(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"

"""OpenTelemetry: the spans that the real SDK exports when real jobs are deferred and run."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from django_skipqueue import Task, job
from django_skipqueue.events import tracing
from django_skipqueue.exceptions import InvalidArguments, JobTimeout
from django_skipqueue.integrations.opentelemetry import OpenTelemetryTracer, instrument
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ..app import jobs
from ..harness.processes import wait_for_statuses

pytestmark = pytest.mark.django_db(transaction=True)


class ExportedSpans:
    """The SDK of OpenTelemetry with an exporter in memory. It returns the exported spans."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the project's")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture(autouse=True)
def own_tracers() -> Iterator[None]:
    """Remove all tracers for the test, and restore them afterwards."""
    earlier_tracers, tracing.tracers[:] = list(tracing.tracers), []
    yield
    tracing.tracers[:] = earlier_tracers


@pytest.fixture
def exported_spans() -> ExportedSpans:
    spans = ExportedSpans()
    instrument(spans.provider)
    return spans


def registered_task(function: Callable[..., Any], **options: Any) -> Task[..., Any]:
    """Register a function that is defined in a test as a task, and return the task."""
    function.__qualname__ = function.__name__
    decorate: Any = job(**options)
    task: Task[..., Any] = decorate(function)
    return task


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return span.parent is not None and span.parent.span_id == parent.context.span_id


def test_a_job_continues_the_trace_in_which_it_was_deferred(exported_spans: ExportedSpans) -> None:
    with exported_spans.tracer.start_as_current_span("request"):
        deferred = jobs.add.using(queue_name="mail").defer(1)
    run_jobs()
    (request_span,), (sending_span,), (processing_span,) = map(
        exported_spans.spans, ("request", "send mail", "process mail")
    )
    assert (sending_span.kind, processing_span.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert is_child(sending_span, request_span)
    assert is_child(processing_span, sending_span)
    common_attributes = {
        "messaging.system": "skipqueue",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(deferred.pk),
        "skipqueue.task": jobs.add.name,
    }
    operation_attributes = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert attributes(sending_span) == {**common_attributes, **operation_attributes}
    operation_attributes = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
    assert attributes(processing_span) == {
        **common_attributes,
        **operation_attributes,
        "skipqueue.attempt": 1,
        "skipqueue.outcome": "completed",
    }
    assert processing_span.status.status_code is StatusCode.UNSET
    assert processing_span.instrumentation_scope is not None
    assert processing_span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


def test_the_trace_context_is_stored_beside_the_callers_metadata(exported_spans: ExportedSpans) -> None:
    job = Job.objects.enqueue(jobs.noop.name, metadata={"tenant": 4})
    (sending_span,) = exported_spans.spans("send default")
    assert sending_span.context is not None
    context = sending_span.context
    traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert Job.objects.get().metadata == {"tenant": 4, "opentelemetry": {"traceparent": traceparent}} == job.metadata


def test_jobs_deferred_together_have_one_sending_span(exported_spans: ExportedSpans) -> None:
    ids = jobs.add.defer_many([(number, 1) for number in range(3)])
    jobs.add.using(unique_key=str).defer_many([(1,), (2,)])
    assert jobs.add.defer_many([]) == []
    assert len(run_jobs()) == 5
    first_sending_span, second_sending_span = exported_spans.spans("send default")
    assert attributes(first_sending_span)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(first_sending_span)  # several jobs have no single id
    assert attributes(second_sending_span)["messaging.batch.message_count"] == 2
    processing_spans = exported_spans.spans("process default")
    children = [span for span in processing_spans if is_child(span, first_sending_span)]
    assert {attributes(span)["messaging.message.id"] for span in children} == set(map(str, ids))
    assert len([span for span in processing_spans if is_child(span, second_sending_span)]) == 2


def test_each_attempt_has_a_span_with_its_error(exported_spans: ExportedSpans) -> None:
    jobs.fail.defer("as asked")
    run_jobs()
    (sending_span,) = exported_spans.spans("send default")
    spans = exported_spans.spans("process default")
    assert [attributes(span)["skipqueue.attempt"] for span in spans] == [1, 2, 3]
    assert [attributes(span)["skipqueue.outcome"] for span in spans] == ["queued", "queued", "failed"]
    for span in spans:
        assert is_child(span, sending_span)
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "builtins.ValueError"
        (event,) = span.events
        assert event.name == "exception"
        details = dict(event.attributes or {})
        assert (details["exception.type"], details["exception.message"]) == ("builtins.ValueError", "as asked")
        assert "Traceback" in str(details["exception.stacktrace"])


def test_secret_arguments_are_masked_in_a_span(exported_spans: ExportedSpans, registry: Registry) -> None:
    def charge_card(token: str) -> None:
        raise ValueError(f"no card {token}")

    registered_task(charge_card, max_attempts=1).defer(token="4111-1111")
    run_jobs()
    (span,) = exported_spans.spans("process default")
    assert "4111-1111" not in span.to_json()
    assert "no card ••••••" in str(span.status.description)


def test_snooze_and_discard_are_not_recorded_as_errors_in_a_span(exported_spans: ExportedSpans) -> None:
    jobs.snooze.defer()
    jobs.discard.defer()
    jobs.ask_for_retry.using(max_attempts=1).defer()
    Job.objects.enqueue("nowhere.task")
    run_jobs()
    spans_by_task = {attributes(span)["skipqueue.task"]: span for span in exported_spans.spans("process default")}
    assert spans_by_task[jobs.snooze.name].status.status_code is StatusCode.UNSET
    assert attributes(spans_by_task[jobs.snooze.name])["skipqueue.outcome"] == "scheduled"
    assert spans_by_task[jobs.discard.name].status.status_code is StatusCode.UNSET
    assert attributes(spans_by_task[jobs.discard.name])["skipqueue.outcome"] == "discarded"
    assert spans_by_task[jobs.ask_for_retry.name].status.status_code is StatusCode.ERROR, "the job has no attempt left"
    assert spans_by_task["nowhere.task"].status.status_code is StatusCode.UNSET


def test_attempts_in_threads_and_coroutines_have_separate_spans(
    exported_spans: ExportedSpans, registry: Registry, worker_thread: Callable[..., Any]
) -> None:
    """Spans that the project opens in a task are children of the attempt's span, also when attempts alternate."""

    def open_span(name: str) -> None:
        with exported_spans.tracer.start_as_current_span(name):
            pass

    async def aopen_span(name: str) -> None:
        with exported_spans.tracer.start_as_current_span(name):
            await asyncio.sleep(0.01)

    registered_task(open_span).defer_many([(f"def {number}",) for number in range(8)])
    registered_task(aopen_span).defer_many([(f"async {number}",) for number in range(8)])
    worker_thread(concurrency=4)
    wait_for_statuses(completed=16)
    spans_by_id = {span.context.span_id: span for span in exported_spans.spans("process default") if span.context}
    parent_ids = set()
    for number in range(8):
        for kind in ("def", "async"):
            (span,) = exported_spans.spans(f"{kind} {number}")
            assert span.parent is not None
            assert span.parent.span_id in spans_by_id
            parent_ids.add(span.parent.span_id)
    assert len(parent_ids) == 16  # each span is within the span of its own attempt
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_job_that_a_task_defers_belongs_to_the_trace_of_the_task(
    exported_spans: ExportedSpans, registry: Registry
) -> None:
    def do_nothing() -> None: ...

    def defer_job() -> None:
        last_task.defer()

    last_task = registered_task(do_nothing)
    registered_task(defer_job).defer()
    run_jobs()
    assert len({span.context.trace_id for span in exported_spans.spans("process default") if span.context}) == 1


def test_a_failed_insert_marks_the_sending_span_as_an_error(
    exported_spans: ExportedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(Store, "rows", refuse)
    with pytest.raises(ConnectionError):
        jobs.noop.using(run_after=timedelta(hours=1)).defer()
    (span,) = exported_spans.spans("send default")
    assert attributes(span)["error.type"] == "builtins.ConnectionError"
    assert span.status.status_code is StatusCode.ERROR


def test_a_defer_call_with_wrong_arguments_has_no_span(exported_spans: ExportedSpans) -> None:
    with pytest.raises(InvalidArguments):
        jobs.noop.defer(object())  # type: ignore[call-arg]
    assert exported_spans.spans("send default") == []


def test_the_worker_samples_no_attempt_of_an_unsampled_trace() -> None:
    """The worker gets the decision of the request. Otherwise it would sample jobs of unsampled requests."""
    sender, worker = ExportedSpans(ALWAYS_OFF), ExportedSpans(ParentBased(ALWAYS_ON))
    tracing.use(OpenTelemetryTracer(sender.provider))
    jobs.noop.defer()
    # The header "traceparent" consists of a version, the trace's id, the span's id, and flags.
    _, _, _, flags = Job.objects.get().metadata["opentelemetry"]["traceparent"].split("-")
    assert not int(flags, 16) & trace.TraceFlags.SAMPLED
    tracing.use(OpenTelemetryTracer(worker.provider))
    assert len(tracing.tracers) == 1
    run_jobs()
    assert worker.spans("process default") == []


def test_without_a_tracer_provider_no_metadata_is_stored() -> None:
    instrument(trace.NoOpTracerProvider())
    jobs.noop.defer()
    assert Job.objects.get().metadata == {}
    (finished_job,) = run_jobs()
    assert finished_job.status == "completed"


@pytest.mark.parametrize("metadata", [{}, {"opentelemetry": "x"}, {"opentelemetry": {"traceparent": "no"}}])
def test_a_job_without_a_usable_context_begins_a_trace(exported_spans: ExportedSpans, metadata: dict[str, Any]) -> None:
    Job.objects.enqueue(jobs.noop.name)
    Job.objects.update(metadata=metadata)
    run_jobs()
    (span,) = exported_spans.spans("process default")
    assert span.parent is None


# Tracers in general


class BrokenTracer:
    """A tracer that raises wherever it is called."""

    def sending(self, batch: tracing.TracedInsert) -> tracing.AfterInsert | None:
        if batch.given.queue_name == "broken":
            raise RuntimeError("sending")

        def sent(error: BaseException | None) -> None:
            raise RuntimeError("sent")

        return sent

    def attempt(self, job: Any) -> tracing.Ended | None:
        if job.queue_name == "broken":
            raise RuntimeError("attempt")

        def ended(outcome: Any) -> None:
            raise RuntimeError("ended")

        return ended


def test_jobs_are_deferred_and_run_even_if_a_tracer_raises(
    exported_spans: ExportedSpans, caplog: pytest.LogCaptureFixture
) -> None:
    tracing.use(BrokenTracer())
    for queue_name in ("broken", "default"):
        jobs.noop.using(queue_name=queue_name).defer()
    assert [finished_job.status for finished_job in run_jobs()] == ["completed", "completed"]
    for part in ("sending", "sent", "attempt", "ended"):
        assert f"A tracer raised: RuntimeError('{part}')" in caplog.messages
    assert len(exported_spans.spans("process default")) == 1, (
        "the tracer of OpenTelemetry has made its span all the same"
    )


def test_the_interruption_of_an_attempt_passes_through_a_tracer() -> None:
    """Otherwise a task that defers a job when its time is over would go on."""

    class Slow(BrokenTracer):
        def sending(self, batch: tracing.TracedInsert) -> tracing.AfterInsert | None:
            raise JobTimeout("timed out")

    tracing.use(Slow())
    with pytest.raises(JobTimeout):
        jobs.noop.defer()


def test_without_the_library_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = sys.modules['sentry_sdk'] = None\n"
        "for name in ('opentelemetry', 'sentry'):\n"
        "    try: __import__(f'django_skipqueue.integrations.{name}')\n"
        "    except ImportError as error: print(error)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "django-skipqueue[otel]"' in process.stdout
    assert 'pip install "django-skipqueue[sentry]"' in process.stdout


def test_instrumenting_twice_replaces_the_first_tracer(exported_spans: ExportedSpans) -> None:
    instrument(exported_spans.provider)
    assert [type(tracer) for tracer in tracing.tracers] == [OpenTelemetryTracer]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_with_several_databases_the_message_id_names_the_database_of_the_job(
    exported_spans: ExportedSpans, settings: Any
) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}
    deferred = jobs.noop.using(database="other").defer()
    run_jobs()
    for name in ("send default", "process default"):
        [span] = exported_spans.spans(name)
        assert attributes(span)["messaging.message.id"] == deferred.handle

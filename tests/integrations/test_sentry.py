"""Sentry: the envelopes that the real SDK would send when real jobs are deferred and run."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_skipqueue import Task, job, signals
from django_skipqueue.events import log_context, tracing
from django_skipqueue.integrations.sentry import SkipqueueIntegration, check_in_of, config_of
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.parts.schedules.fire import SCHEDULE_METADATA_KEY
from django_skipqueue.parts.schedules.operate import run_now
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.records import ClaimedJob

from ..app import jobs
from ..harness.processes import ManagePy, wait_for_statuses
from ..parts.schedules.rows import make_schedule

pytestmark = pytest.mark.django_db(transaction=True)

Run = Callable[..., ManagePy]


class Recorder(Transport):
    """A transport that keeps the envelopes and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    def _items(self, kind: str) -> list[dict[str, Any]]:
        return [item.payload.json or {} for envelope in self.envelopes for item in envelope.items if item.type == kind]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self._items("event")

    @property
    def check_ins(self) -> list[dict[str, Any]]:
        return self._items("check_in")

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return self._items("transaction")

    def transaction(self, name: str) -> dict[str, Any]:
        (matching_transaction,) = [item for item in self.transactions if item["transaction"] == name]
        return matching_transaction


Start = Callable[..., Recorder]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts the SDK as a project does, with a transport that sends nothing."""
    earlier_tracers, earlier_processors = list(tracing.tracers), list(sentry_sdk.scope.global_event_processors)

    def start(
        *, level: int = logging.ERROR, capture_retries: bool = False, monitors: bool = False, **options: Any
    ) -> Recorder:
        recorder = Recorder()
        sentry_sdk.init(
            dsn="https://key@errors.example.com/1",
            transport=recorder,
            default_integrations=False,
            integrations=[
                SkipqueueIntegration(capture_retries=capture_retries, monitor_schedules=monitors),
                LoggingIntegration(event_level=level),
            ],
            **{"traces_sample_rate": 1.0, **options},
        )
        if not tracing.tracers:  # the SDK calls `setup_once` once in each process
            SkipqueueIntegration.setup_once()
        return recorder

    with sentry_sdk.isolation_scope(), sentry_sdk.new_scope():
        yield start
        sentry_sdk.get_global_scope().set_client(None)
    tracing.tracers[:] = earlier_tracers
    sentry_sdk.scope.global_event_processors[:] = earlier_processors
    signals.worker_stopped.disconnect(dispatch_uid="django_skipqueue.integrations.sentry")


def registered_task(function: Callable[..., Any], **options: Any) -> Task[..., Any]:
    """Register a function that is defined in a test as a task, and return the task."""
    function.__qualname__ = function.__name__
    decorate: Any = job(**options)
    task: Task[..., Any] = decorate(function)
    return task


def error_entries() -> list[dict[str, Any]]:
    errors: list[dict[str, Any]] = Job.objects.get().errors
    return errors


def test_only_the_last_failure_is_captured_and_the_job_stores_the_id_of_its_event(start: Start) -> None:
    recorder = start()
    deferred = jobs.fail.using(queue_name="mail").defer("as asked")
    run_jobs()
    (error,) = recorder.errors
    assert error["tags"] == {"task": jobs.fail.name, "queue": "mail", "attempt": 3, "job_id": deferred.pk}
    (exception,) = error["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("ValueError", "as asked")
    assert exception["mechanism"] == {"type": "skipqueue", "handled": False}
    assert exception["stacktrace"]["frames"][-1]["function"] == "fail"
    assert [entry.get("sentry_event_id") for entry in error_entries()] == [None, None, error["event_id"]]


def test_failures_that_are_retried_are_captured_on_request(start: Start) -> None:
    recorder = start(capture_retries=True)
    jobs.fail.defer()
    run_jobs()
    assert [error["tags"]["attempt"] for error in recorder.errors] == [1, 2, 3]
    assert [entry["sentry_event_id"] for entry in error_entries()] == [error["event_id"] for error in recorder.errors]


def run_job_of_schedule(name: str, **schedule: Any) -> None:
    """Enqueue the job of a schedule, and run it."""
    run_now(Store("default"), make_schedule(name, **schedule).pk)
    run_jobs()


def test_a_job_of_a_schedule_sends_check_ins(start: Start) -> None:
    recorder = start(monitors=True)
    run_job_of_schedule("Daily.sum up", task=jobs.noop.name, cron="0 9 * * *", timezone="Europe/Berlin")
    first_check_in, last_check_in = recorder.check_ins
    assert first_check_in["monitor_slug"] == "daily-sum-up"
    assert (first_check_in["status"], last_check_in["status"]) == ("in_progress", "ok")
    assert first_check_in["check_in_id"] == last_check_in["check_in_id"]
    schedule = {"type": "crontab", "value": "0 9 * * *"}
    assert last_check_in["monitor_config"] == {"schedule": schedule, "timezone": "Europe/Berlin"}


def test_the_check_in_of_a_retried_job_is_in_progress_until_the_job_fails(start: Start) -> None:
    recorder = start(monitors=True)
    run_job_of_schedule("often", task=jobs.fail.name, interval=timedelta(hours=2))
    assert [check_in["status"] for check_in in recorder.check_ins] == ["in_progress"] * 3 + ["error"]
    assert len({check_in["check_in_id"] for check_in in recorder.check_ins}) == 1
    schedule = {"type": "interval", "value": 2, "unit": "hour"}
    assert recorder.check_ins[0]["monitor_config"] == {"schedule": schedule}


def test_jobs_outside_of_monitored_schedules_send_no_check_in(start: Start) -> None:
    recorder = start(monitors=True)
    jobs.noop.defer()
    run_jobs()
    run_job_of_schedule("seconds", task=jobs.noop.name, cron="* * * * * *")
    run_job_of_schedule("odd", task=jobs.noop.name, interval=timedelta(seconds=90))
    assert recorder.check_ins == []
    recorder = start()
    run_job_of_schedule("daily", task=jobs.noop.name, cron="0 9 * * *")
    assert recorder.check_ins == []


@pytest.mark.parametrize("rule", [{}, {"every": "day"}, {"every": 0}, {"every": None}, {"cron": 7}, {"cron": ""}])
def test_metadata_that_is_not_a_schedule_gives_no_monitor_config(rule: dict[str, Any]) -> None:
    assert config_of({"name": "own", **rule}) is None


def test_snooze_discard_and_retry_are_not_captured_as_errors(start: Start) -> None:
    recorder = start(capture_retries=True)
    jobs.snooze.defer()
    jobs.discard.defer()
    jobs.ask_for_retry.defer(3600.0)
    jobs.picky.defer("Hopeless")
    run_jobs()
    assert recorder.errors == []
    assert recorder.transaction(jobs.snooze.name)["contexts"]["trace"]["status"] == "ok"
    assert recorder.transaction(jobs.discard.name)["contexts"]["trace"]["status"] == "aborted"


def test_an_attempt_is_a_transaction_that_continues_the_trace_of_the_request(start: Start) -> None:
    recorder = start()
    with sentry_sdk.start_transaction(name="request"):
        deferred = jobs.add.using(queue_name="mail").defer(1)
    run_jobs()
    request_transaction, attempt_transaction = recorder.transaction("request"), recorder.transaction(jobs.add.name)
    (publish_span,) = request_transaction["spans"]
    assert (publish_span["op"], publish_span["description"]) == ("queue.publish", jobs.add.name)
    assert publish_span["data"]["messaging.destination.name"] == "mail"
    assert publish_span["data"]["messaging.message.id"] == str(deferred.pk)
    trace_context = attempt_transaction["contexts"]["trace"]
    assert (trace_context["op"], trace_context["origin"]) == ("queue.process", "auto.queue.skipqueue")
    assert trace_context["status"] == "ok"
    assert trace_context["trace_id"] == publish_span["trace_id"]
    assert trace_context["parent_span_id"] == publish_span["span_id"]
    assert attempt_transaction["transaction_info"] == {"source": "task"}
    trace_data = trace_context["data"]
    assert (trace_data["messaging.message.id"], trace_data["messaging.destination.name"]) == (str(deferred.pk), "mail")
    assert trace_data["messaging.message.retry.count"] == 0
    assert trace_data["messaging.message.receive.latency"] >= 0
    assert Job.objects.get().metadata["sentry"].keys() == {"sentry-trace", "baggage"}


def test_jobs_deferred_together_have_one_span(start: Start) -> None:
    recorder = start()
    with sentry_sdk.start_transaction(name="request"):
        jobs.add.defer_many([(1,), (2,)])
    (publish_span,) = recorder.transaction("request")["spans"]
    assert publish_span["data"]["messaging.batch.message_count"] == 2


def test_without_traces_the_errors_of_a_job_still_belong_to_the_request(start: Start) -> None:
    recorder = start(traces_sample_rate=None)
    jobs.fail.using(max_attempts=1).defer()
    trace_id = Job.objects.get().metadata["sentry"]["sentry-trace"].split("-")[0]
    run_jobs()
    assert recorder.transactions == []
    assert recorder.errors[0]["contexts"]["trace"]["trace_id"] == trace_id


def test_secret_arguments_are_masked_everywhere(start: Start, registry: Registry) -> None:
    def charge_card(order: int, token: str, *, card: dict[str, str]) -> None:
        copied = [f"card {token}"]
        try:
            raise KeyError(token)
        except KeyError:
            sentry_sdk.capture_message(f"trying {order}")
            raise ValueError(f"no card {token} {card['number']} {copied}") from None

    recorder = start(capture_retries=True)
    # Not literals, because an event contains the source lines of this file.
    token, card_number = "-".join(["4111"] * 2), "-".join(["5222"] * 2)
    deferred = registered_task(charge_card, max_attempts=1, redact=["card"]).defer(
        4, token, card={"number": card_number}
    )
    run_jobs()
    message, error = recorder.errors
    assert message["message"] == "trying 4"
    assert message["contexts"]["job"] == {
        "id": deferred.pk,
        "task": "tests.integrations.test_sentry.charge_card",
        "args": [4, "••••••"],
        "kwargs": {"card": "••••••"},
    }
    assert error["exception"]["values"][-1]["value"].startswith("no card •••••• ••••••")
    frame = error["exception"]["values"][-1]["stacktrace"]["frames"][-1]
    assert frame["vars"]["order"] == "4"
    assert frame["vars"]["card"] == "••••••"
    for envelope_item in (*recorder.errors, *recorder.transactions):
        assert token not in str(envelope_item)
        assert card_number not in str(envelope_item)


def test_an_unknown_task_has_a_transaction_too(start: Start) -> None:
    recorder = start()
    Job.objects.enqueue("nowhere.task", args='["x"]')
    run_jobs()
    assert recorder.transaction("nowhere.task")["contexts"]["job"]["args"] == ["x"]


def test_tags_of_an_attempt_are_gone_after_it(start: Start) -> None:
    recorder = start()
    sentry_sdk.add_breadcrumb(message="before")
    jobs.fail.using(max_attempts=1).defer()
    run_jobs()
    sentry_sdk.capture_message("later")
    failure, later = recorder.errors
    assert "before" not in str(failure["breadcrumbs"])  # an attempt begins without breadcrumbs
    assert "tags" not in later


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_a_failure_and_its_log_line_make_only_one_event(
    start: Start, level: int, worker_thread: Callable[..., Any]
) -> None:
    recorder = start(level=level)
    jobs.fail.using(max_attempts=1).defer()
    jobs.afail.using(max_attempts=1).defer()
    worker = worker_thread()
    wait_for_statuses(failed=2)
    worker.stop()
    worker.wait()
    assert sorted(error["tags"]["task"] for error in recorder.errors) == [jobs.afail.name, jobs.fail.name]
    assert {error.get("logger") for error in recorder.errors} == {None}


def test_log_lines_other_than_a_failure_with_its_exception_are_events(start: Start) -> None:
    recorder = start(level=logging.WARNING)
    logger = logging.getLogger("django_skipqueue.worker")
    error = ValueError("no")
    logger.error("worker died", extra={"event": "worker_died"})
    logger.error("job failed", extra={"event": "job_failed"})
    logger.warning("job retrying", extra={"event": "job_retrying"}, exc_info=error)
    logger.error("job failed", extra={"event": "job_failed"}, exc_info=error)
    messages = [event["logentry"]["message"] for event in recorder.errors]
    assert messages == ["worker died", "job failed", "job retrying"]


def test_without_the_integration_no_envelope_is_sent(start: Start) -> None:
    start()
    recorder = Recorder()
    sentry_sdk.init(dsn="https://key@errors.example.com/1", transport=recorder, default_integrations=False)
    jobs.fail.using(max_attempts=1).defer()
    assert Job.objects.get().metadata == {}
    run_jobs()
    assert (recorder.envelopes, "sentry_event_id" in error_entries()[0]) == ([], False)


SOURCE_OF_JOBS = """
    import asyncio
    import sentry_sdk
    from django_skipqueue import job

    @job(max_attempts=1)
    def fail():
        raise ValueError("as asked")

    @job(max_attempts=1)
    async def afail():
        await asyncio.sleep(0)
        raise ValueError("as asked")
"""

SOURCE_OF_SETTINGS = """
    import json, os, time
    import sentry_sdk
    from django_skipqueue.integrations.sentry import SkipqueueIntegration
    from sentry_sdk.transport import Transport

    class FileTransport(Transport):
        def __init__(self):
            super().__init__()
            self.waiting = []

        def capture_envelope(self, envelope):
            self.waiting.append(envelope)

        def flush(self, timeout, callback=None):
            with open("envelopes", "a") as out:
                for envelope in self.waiting:
                    for item in envelope.items:
                        out.write(json.dumps([item.type, item.payload.json]) + "\\n")
            self.waiting = []

    sentry_sdk.init(
        dsn="https://key@errors.example.com/1", transport=FileTransport(), integrations=[SkipqueueIntegration()],
        traces_sample_rate=1.0,
    )
"""


def test_a_worker_sends_waiting_envelopes_before_it_ends(runworker: Run) -> None:
    for name in ("fail", "afail"):
        Job.objects.enqueue(f"extra.jobs.{name}", max_attempts=1)
    process = runworker("--drain", jobs=SOURCE_OF_JOBS, settings=SOURCE_OF_SETTINGS)
    assert process.wait() == 0
    items = [json.loads(line) for line in (process.folder / "envelopes").read_text().splitlines()]
    task_by_sent_event_id = {item["event_id"]: item["tags"]["task"] for kind, item in items if kind == "event"}
    assert sorted(task_by_sent_event_id.values()) == ["extra.jobs.afail", "extra.jobs.fail"]
    task_by_stored_event_id = {job.errors[0]["sentry_event_id"]: job.task for job in Job.objects.all()}
    assert task_by_stored_event_id == task_by_sent_event_id
    assert len([item for kind, item in items if kind == "transaction"]) == 2


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestSeveralDatabases:
    @pytest.fixture(autouse=True)
    def _two_databases(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"DATABASES": ("default", "other")}

    def test_an_event_names_the_database_of_the_job(self, start: Start) -> None:
        recorder = start(traces_sample_rate=1.0)
        deferred = jobs.fail.using(database="other", max_attempts=1).defer()
        run_jobs()
        [error] = recorder.errors
        assert (error["tags"]["job_id"], error["tags"]["database"]) == (deferred.pk, "other")
        assert (error["contexts"]["job"]["id"], error["contexts"]["job"]["database"]) == (deferred.pk, "other")
        data = recorder.transaction(jobs.fail.name)["contexts"]["trace"]["data"]
        assert data["messaging.message.id"] == deferred.handle

    def test_jobs_of_two_databases_with_the_same_id_have_separate_check_ins(self) -> None:
        metadata = {
            SCHEDULE_METADATA_KEY: {"name": "nightly", "cron": "0 3 * * *", "planned_at": "2026-03-01T03:00:00Z"}
        }
        job = ClaimedJob(
            id=7, lease=1, task=jobs.noop.name, queue_name="default", args="[]", kwargs="{}",
            attempt=1, max_attempts=1, priority=0, run_after=0.0, locked_at=0.0, metadata=json.dumps(metadata),
        )  # fmt: skip
        check_in_ids = set()
        for alias in ("default", "other"):
            with log_context.about(alias):
                check_in = check_in_of(job)
            assert check_in is not None
            check_in_ids.add(check_in.id)
        assert len(check_in_ids) == 2

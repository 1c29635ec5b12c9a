"""`django_skipqueue.events.logging`: any record becomes a line of JSON, and names its job."""

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.events import log_context
from django_skipqueue.events.logging import JobContextFilter, JsonFormatter
from django_skipqueue.models import Job
from django_skipqueue.values.records import ClaimedJob

from ..harness.processes import ManagePy

RunWorker = Callable[..., ManagePy]

JOB = ClaimedJob(
    id=7, lease=1, task="shop.jobs.send", queue_name="mail", args="[]", kwargs="{}", attempt=2, max_attempts=10,
    priority=0, run_after=100.0, locked_at=100.25, metadata="{}",
)  # fmt: skip
CONTEXT = ("job_id", "task", "queue_name", "attempt", "worker_id", "worker_name")

CODE = """
    import asyncio
    import logging
    from asgiref.sync import sync_to_async
    from django_skipqueue import job

    logger = logging.getLogger("shop")

    @job
    def send(order):
        logger.warning("order %s\\nforged", order, extra={"order": order})

    @job
    async def asend(order):
        await asyncio.sleep(0)
        await sync_to_async(logger.warning)("order %s", order)

    @job
    def fail():
        try:
            raise KeyError("no such order")
        except KeyError:
            logger.exception("it failed")
            raise
"""


def log_record(message: str = "hello", *args: Any, **attributes: Any) -> logging.LogRecord:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, message, args, None)
    record.__dict__.update(attributes)
    return record


def json_line(record: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    parsed_line: dict[str, Any] = json.loads(
        text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON")
    )
    return parsed_line


def test_a_json_line_has_the_time_in_utc_and_every_attribute_of_its_record() -> None:
    record = log_record("sent %s", "it", job_id=7, duration_ms=1.5, order={"id": 4}, queue_name=None)
    record.created = 1_700_000_000.25
    assert json_line(record) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "shop",
        "message": "sent it",
        "job_id": 7,
        "duration_ms": 1.5,
        "order": {"id": 4},
    }


def test_a_json_line_has_type_message_and_stack_of_an_exception() -> None:
    record = log_record()
    try:
        raise KeyError("no such order")
    except KeyError:
        record.exc_info = sys.exc_info()
    exception = json_line(record)["exception"]
    assert (exception["type"], exception["message"]) == ("builtins.KeyError", "'no such order'")
    assert exception["stack"].splitlines()[0] == "Traceback (most recent call last):"
    record.exc_text = "masked"
    assert json_line(record)["exception"]["stack"] == "masked"


def test_a_json_line_has_the_stack_of_a_record_with_stack_info() -> None:
    assert json_line(log_record(stack_info="Stack: here"))["stack"] == "Stack: here"


class Broken:
    """A value that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_the_formatter_never_raises_whatever_the_record() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    values = {"circle": circle, "nan": float("nan"), "keys": {(1, 2): 3}, "broken": Broken(), "text": "\ud800\u2028ü"}
    parsed_line = json_line(log_record("%d", "no number", deep=deep, when=object, **values))
    assert parsed_line["message"] == "%d ('no number',)"
    assert parsed_line["nan"] == "nan"
    assert parsed_line["keys"] == "{(1, 2): 3}"
    assert parsed_line["broken"] == "<Broken that cannot be shown: RuntimeError>"
    assert parsed_line["text"] == values["text"]
    assert parsed_line["when"] == "<class 'object'>"
    broken_record = log_record()
    broken_record.exc_info = (KeyError, KeyError(Broken()), None)
    assert json_line(broken_record)["exception"]["message"] == "<KeyError that cannot be shown: RuntimeError>"


def test_an_attribute_cannot_replace_the_fields_of_the_line() -> None:
    record = log_record(time="never", level="none", logger="other", exception="none")
    assert json_line(record).keys() == {"time", "level", "logger", "message"}
    assert json_line(record)["level"] == "INFO"


def test_outside_of_an_attempt_a_record_has_no_job() -> None:
    record = log_record()
    assert JobContextFilter().filter(record)
    assert {name: getattr(record, name) for name in CONTEXT} == dict.fromkeys(CONTEXT)


def test_a_record_within_an_attempt_has_its_job_unless_it_names_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_context, "worker", {"worker_id": "host/1:0", "worker_name": "host/1"})
    token = log_context.job.set(JOB)
    try:
        jobless_record, record_of_another_job = log_record(), log_record(job_id=8, task=None)
        assert JobContextFilter().filter(jobless_record)
        assert JobContextFilter().filter(record_of_another_job)
    finally:
        log_context.job.reset(token)
    assert [getattr(jobless_record, name) for name in CONTEXT] == [7, "shop.jobs.send", "mail", 2, "host/1:0", "host/1"]
    assert [getattr(record_of_another_job, name) for name in CONTEXT] == [8, None, "mail", 2, "host/1:0", "host/1"]


# In a worker


@pytest.mark.django_db(transaction=True)
def test_text_lines_that_a_task_logs_name_its_job(runworker: RunWorker) -> None:
    send, asend, fail = (Job.objects.enqueue(f"extra.jobs.{name}", args=args, max_attempts=1) for name, args in CALLS)
    process = runworker("--drain", jobs=CODE)
    assert process.wait() == 0
    assert f" WARNING order 1 job={send.pk}\n    forged\n" in process.log
    assert f" WARNING order 2 job={asend.pk}\n" in process.log
    assert f" ERROR   it failed job={fail.pk}\n    Traceback" in process.log, (
        "the traceback of a line that the project has logged"
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("given_by", ["option", "environment"])
def test_every_json_line_that_a_task_logs_has_its_job(runworker: RunWorker, given_by: str) -> None:
    send, asend, fail = (Job.objects.enqueue(f"extra.jobs.{name}", args=args, max_attempts=1) for name, args in CALLS)
    options = ("--log-format", "json") if given_by == "option" else ()
    environment = {} if options else {"SKIPQUEUE_LOG_FORMAT": "json"}
    process = runworker("--drain", *options, jobs=CODE, environment=environment)
    assert process.wait() == 0
    parsed_lines = [json.loads(text) for text in process.log.splitlines()]
    lines_of_tasks = {
        parsed_line["job_id"]: parsed_line for parsed_line in parsed_lines if parsed_line["logger"] == "shop"
    }
    assert lines_of_tasks.keys() == {send.pk, asend.pk, fail.pk}
    assert (lines_of_tasks[send.pk]["message"], lines_of_tasks[send.pk]["order"]) == ("order 1\nforged", 1)
    for job in (send, asend, fail):
        line_of_task = lines_of_tasks[job.pk]
        assert (line_of_task["task"], line_of_task["queue_name"], line_of_task["attempt"]) == (job.task, "default", 1)
        assert line_of_task["worker_id"].startswith(f"{line_of_task['worker_name']}:")
    (failure_line,) = (parsed_line for parsed_line in parsed_lines if parsed_line.get("event") == "job_failed")
    assert failure_line["exception"]["type"] == "builtins.KeyError"
    assert (failure_line["job_id"], failure_line["attempt"], failure_line["level"]) == (fail.pk, 1, "ERROR")


CALLS = [("send", "[1]"), ("asend", "[2]"), ("fail", "[]")]


@pytest.mark.django_db(transaction=True)
def test_the_projects_logging_configuration_overrides_the_log_format_option(runworker: RunWorker) -> None:
    Job.objects.enqueue("extra.jobs.send", args="[1]")
    settings = """
        LOGGING = {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"job": {"()": "django_skipqueue.events.logging.JobContextFilter"}},
            "formatters": {"plain": {"format": "%(message)s (%(job_id)s %(task)s)"}},
            "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["job"]}},
            "root": {"handlers": ["out"]},
        }
    """
    process = runworker("--drain", "--log-format", "json", jobs=CODE, settings=settings)
    assert process.wait() == 0
    assert f"forged ({Job.objects.get().pk} extra.jobs.send)" in process.log
    assert "log format ignored log_format=json hint=" in process.log


@pytest.mark.django_db(transaction=True)
def test_an_unknown_format_is_refused(runworker: RunWorker) -> None:
    process = runworker("--drain", environment={"SKIPQUEUE_LOG_FORMAT": "xml"})
    assert process.wait() == 2
    assert "SKIPQUEUE_LOG_FORMAT = 'xml' is not text or json" in process.log

"""Log lines say which database they are about, if several hold queues."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.conf import using_database
from django_skipqueue.events import liveness_logs, log_context, logs
from django_skipqueue.events.events import AttemptsCompleted, NotifyFailed, QueueResumed
from django_skipqueue.events.log_format import LineFormatter
from django_skipqueue.events.logging import JobContextFilter
from django_skipqueue.events.sinks import send
from django_skipqueue.models import Job
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob

from ..harness.processes import ManagePy

RunWorker = Callable[..., ManagePy]

JOB = ClaimedJob(
    id=7, lease=1, task="shop.jobs.send", queue_name="mail", args="[]", kwargs="{}", attempt=2, max_attempts=10,
    priority=0, run_after=100.0, locked_at=100.25, metadata="{}",
)  # fmt: skip
ALIASES = ("default", "other")
TWO_DATABASES = {"DATABASES": ALIASES}


@pytest.fixture(autouse=True)
def _process_without_a_database(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Write log lines as in a web server, which does not serve a queue database."""
    monkeypatch.setattr(log_context, "served", [])
    settings.SKIPQUEUE = TWO_DATABASES


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="django_skipqueue")
    return caplog


def test_a_line_about_an_event_names_the_database_of_the_event(log: pytest.LogCaptureFixture) -> None:
    send(QueueResumed("other", "mail", by="ann"))
    send(NotifyFailed("other", "mail", OSError("no")))
    assert log.messages == [
        "queue resumed database=other queue=mail by=ann",
        "notify failed database=other queue=mail error=OSError('no')",
    ]
    assert [record.__dict__["database"] for record in log.records] == ["other", "other"]


def test_lines_of_a_worker_name_the_database_that_it_serves(log: pytest.LogCaptureFixture) -> None:
    log_context.serve("other")
    send(AttemptsCompleted([Attempt(JOB, COMPLETED, started=0.0, ended=0.01, worker="w@other/1", database="other")]))
    liveness_logs.service_back("prune")
    assert log.messages[0].startswith("job completed database=other task=shop.jobs.send id=7 ")
    assert log.messages[1] == "service back database=other service=prune"
    assert [record.__dict__["database"] for record in log.records] == ["other", "other"]


def test_lines_written_within_using_database_name_that_database(log: pytest.LogCaptureFixture) -> None:
    with using_database("other"):
        logs.not_pruned(7, OSError("no"), 60.0)
    assert log.messages == ["job not pruned database=other id=7 error=no retry_in=1m00s"]


def test_a_line_about_another_database_does_not_name_the_served_one(log: pytest.LogCaptureFixture) -> None:
    log_context.serve("default")
    liveness_logs.database_unreachable("other", "refused")
    [record] = log.records
    assert record.getMessage().startswith("database unreachable database=other hint=")
    assert record.__dict__["database"] == "other"


def test_a_line_that_is_not_about_a_database_names_none(log: pytest.LogCaptureFixture) -> None:
    liveness_logs.stopping("SIGTERM", 10.0)
    [record] = log.records
    assert "database" not in record.getMessage()
    assert "database" not in record.__dict__


@pytest.mark.parametrize("setting", [{}, {"DATABASE": "other"}, {"DATABASES": ("other",)}], ids=str)
def test_no_line_names_the_database_if_the_settings_have_only_one(
    log: pytest.LogCaptureFixture, settings: Any, setting: Any
) -> None:
    settings.SKIPQUEUE = setting
    log_context.serve("other")
    send(QueueResumed("other", "mail", by="ann"))
    logs.not_pruned(7, OSError("no"), 60.0)
    assert log.messages == ["queue resumed queue=mail by=ann", "job not pruned id=7 error=no retry_in=1m00s"]
    assert not any("database" in record.__dict__ for record in log.records)
    assert line_of_a_task() == "INFO    hello job=7"


def line_of_a_task() -> str:
    """Return the line that the code of a task writes in an attempt, without its time."""
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "hello", (), None)
    token = log_context.job.set(JOB)
    with log_context.about("other"):
        JobContextFilter().filter(record)
    log_context.job.reset(token)
    return LineFormatter(colour=False, tracebacks=False).format(record).partition(" ")[2]


def test_a_line_that_a_task_writes_names_its_job_as_database_and_id() -> None:
    assert line_of_a_task() == "INFO    hello job=other:7"


CODE = """
    import logging
    from django_skipqueue import job

    @job
    def fail():
        logging.getLogger("shop").warning("it fails")
        raise ValueError

    @job
    async def afail():
        logging.getLogger("shop").warning("it fails")
        raise ValueError
"""
EVENTS_OF_THE_COMMAND = {"supervisor_starting"}
"""The event of the first line of `runworker`, which is about all databases."""


@pytest.mark.django_db(transaction=True, databases=ALIASES)
@pytest.mark.parametrize("database", ["default,other", "other"])
def test_every_line_of_supervisors_and_workers_names_their_database(runworker: RunWorker, database: str) -> None:
    aliases = database.split(",")
    enqueued_jobs = {
        (alias, Job.objects.db_manager(alias).enqueue(f"extra.jobs.{name}", max_attempts=1).pk)
        for alias in aliases
        for name in ("fail", "afail")
    }
    options = ("--drain", "--name", "w", "--database", database, "--log-format", "json", "--verbosity", "2")
    process = runworker(*options, jobs=CODE, skipqueue=TWO_DATABASES)
    assert process.wait() == 0
    records = [json.loads(text) for text in process.log.splitlines()]
    databases = {record.get("database") for record in records if record.get("event") not in EVENTS_OF_THE_COMMAND}
    assert databases == set(aliases)
    for event in ("job_failed", None):  # a line that a task writes has no event
        assert {
            (record["database"], record["job_id"]) for record in records if record.get("event") == event
        } == enqueued_jobs
    assert {record["event"] for record in records if "event" in record} >= {
        "worker_started",
        "worker_stopped",
        "job_started",
    }

"""A manipulated row of the job table can harm neither a worker nor its log."""

import logging
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission

from django_skipqueue.events import events, liveness_logs, logs
from django_skipqueue.events.events import AttemptsCompleted, Event
from django_skipqueue.exceptions import UnknownTask
from django_skipqueue.jobs.registry import registry
from django_skipqueue.models import Job
from django_skipqueue.models.expressions import table_names
from django_skipqueue.values.outcomes import Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob, RecoveredJob

from .app.rows import make_job

CALLABLES = {
    "os.system": "touch {}",
    "os.mkdir": "{}",
    "builtins.exec": "open({!r}, 'w')",
    "tests.app.opened.leave": "{}",
    "tests.app.jobs.Path.touch": "{}",
}


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_task_names_a_callable_runs_and_imports_nothing(
    tmp_path: Path, runworker: Callable[..., Any]
) -> None:
    trace_file = tmp_path / "trace"
    jobs = {task: make_job(task=task, args=[argument.format(str(trace_file))]) for task, argument in CALLABLES.items()}
    assert runworker("--drain").wait() == 0
    assert not trace_file.exists()
    for task, job in jobs.items():
        job.refresh_from_db()
        assert job.status == "scheduled", task
        assert job.last_error.startswith(f"UnknownTask: No task is registered as {task!r}")


def test_the_registry_finds_no_name_that_was_not_registered() -> None:
    for name in ("os.system", "tests.app.jobs", "tests.app.jobs.noop.__call__", "", "__class__"):
        with pytest.raises(UnknownTask):
            registry.get(name)


FORGED = "x\n2030-01-01 CRITICAL forged\r\x1b[2J\x1b]0;t\x07\u2028\x85\u202e\0end"
JOB = ClaimedJob(
    id=7, lease=1, task=FORGED, queue_name=FORGED, args="[]", kwargs="{}", attempt=2, max_attempts=10, priority=0,
    run_after=0.0, locked_at=0.0, metadata="{}",
)  # fmt: skip
ATTEMPT = Attempt(JOB, Outcome("failed", last_error=FORGED), started=1.0, ended=2.0, worker=FORGED)
# A value for each parameter of the functions and events that log. All texts try to forge a log line.
VALUES: dict[str, Any] = {
    "job": JOB, "attempt": ATTEMPT, "attempts": [ATTEMPT], "worker": FORGED, "who": FORGED, "sender": FORGED,
    "worker_id": FORGED, "queue_name": FORGED, "queue_names": [FORGED], "error": ValueError(FORGED), "cause": FORGED,
    "lines": [FORGED], "reason": FORGED, "problem": FORGED, "running": {FORGED: 1.0}, "job_id": 7, "job_ids": [7],
    "released": 1,
    "signal_name": "SIGTERM", "jobs_done": 1, "count": 1, "counts": {"failed": 1}, "timeout": 1.0,
    "changed": FORGED, "code": 1, "log_format": FORGED, "grace": 1.0, "wait_ms": 1.0, "known": [FORGED],
    "retry_in": 1.0, "restart_in": 1.0, "seconds": 1.0, "service": FORGED, "stack": FORGED, "hint": FORGED,
    "outcome": Outcome("failed", last_error=FORGED), "part": FORGED, "supervisor": FORGED, "alias": FORGED,
    "by": FORGED, "until": datetime(2030, 1, 1, tzinfo=UTC), "concurrency": 1, "interval": 1.0,
}  # fmt: skip
# Functions that write to the log.
LOG_FUNCTIONS = {
    name: value
    for module in (logs, liveness_logs) for name, value in vars(module).items()
    if callable(value) and getattr(value, "__module__", "") == module.__name__
    and not name.startswith(("_", "write")) and value.__annotations__["return"] is None
}  # fmt: skip
# Events that write to the log.
LOGGED_EVENTS = [
    value for value in vars(events).values()
    if isinstance(value, type) and issubclass(value, Event) and value.level is not None
]  # fmt: skip


def test_no_line_of_the_log_can_be_forged(caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests) -> None:
    """The test tries every event and every function that logs. A new event fails until VALUES has its parameters."""
    caplog.set_level(logging.DEBUG, logger="django_skipqueue")
    recovered_job = RecoveredJob(
        id=7, task=FORGED, queue_name=FORGED, attempt=2, status="queued",
        locked_by=FORGED, locked_at=datetime.now(UTC), metadata="{}", recovered_at=datetime.now(UTC),
    )  # fmt: skip
    values = VALUES | {"database": FORGED, "task": FORGED, "jobs": [recovered_job]}
    writers = {name: (write, [*signature(write).parameters]) for name, write in LOG_FUNCTIONS.items()}
    writers |= {
        event_class.__name__: (
            lambda event_class=event_class, **arguments: event_class(**arguments).write_lines(),
            [field.name for field in fields(event_class)],
        )
        for event_class in LOGGED_EVENTS
    }
    for name, (write, parameters) in writers.items():
        with subtests.test(name):
            caplog.clear()
            write(**{parameter: values[parameter] for parameter in parameters})
            assert caplog.messages
            for message in caplog.messages:
                assert message.isprintable(), repr(message)


def test_the_line_for_many_completed_attempts_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="django_skipqueue")
    AttemptsCompleted([ATTEMPT] * (events.LARGE_BATCH + 1)).write_lines()
    (message,) = caplog.messages
    assert message.isprintable()


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_writes_no_line_that_a_row_has_forged(runworker: Callable[..., Any]) -> None:
    make_job(task=f"no.such.task{FORGED}".replace("\0", ""), queue_name="forged\nqueue")
    worker = runworker("--drain", "--verbosity", "2")
    assert worker.wait() == 0
    assert Job.objects.scheduled().exists()
    assert "no.such.task" in worker.log
    assert not re.search(r"^2030-01-01 CRITICAL forged", worker.log, re.MULTILINE)


@pytest.mark.django_db
def test_the_threat_model_has_a_row_for_each_permission_and_each_table() -> None:
    text = (Path(__file__).parents[1] / "SECURITY.md").read_text()
    permissions = Permission.objects.filter(content_type__app_label="django_skipqueue")
    assert permissions.count() > 15
    for permission in permissions:
        assert f"`{permission.codename}`" in text, permission.codename
    assert [name for name in table_names() if f"`{name}`" not in text] == []

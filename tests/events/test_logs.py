"""`logs`: the lines that events write, with their level and figures; and what no line contains."""

import inspect
import io
import logging
import re
import traceback
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_skipqueue.console.cli.run import configure
from django_skipqueue.contrib.celery import logs as carried_logs
from django_skipqueue.contrib.celery import logs as relay_logs
from django_skipqueue.events import events, liveness_logs, log_context, logs
from django_skipqueue.events import logs as queue_logs
from django_skipqueue.events.events import (
    AttemptsCancelled,
    AttemptsCompleted,
    AttemptsDiscarded,
    AttemptsFailed,
    AttemptsRetrying,
    AttemptStarted,
    Event,
    JobsDeferred,
    JobsRecovered,
    LeasesLost,
    OutcomesDropped,
    WorkerStarted,
    WorkerStopped,
)
from django_skipqueue.events.log_format import LEVEL_COLOURS, in_words, pairs, printable
from django_skipqueue.events.sinks import LogSink, send
from django_skipqueue.parts.batches.events import (
    BatchesFinished,
    BatchNotFinished,
    CallbackSkipped,
    DependantsDiscarded,
)
from django_skipqueue.parts.batches.values import FinishedBatch
from django_skipqueue.parts.schedules import events as schedule_logs
from django_skipqueue.parts.schedules.events import (
    ScheduleFailed,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSkipped,
)
from django_skipqueue.values.outcomes import COMPLETED, Outcome, error_entry, summary
from django_skipqueue.values.records import Attempt, ClaimedJob, Dependant, RecoveredJob

from ..docs.test_reference import literals, rows
from ..harness.parts import modules_of_parts

JOB = ClaimedJob(7, 1, "shop.jobs.send", "mail", '["secret"]', "{}", 2, 10, 0, 100.0, 100.25, "{}")
EXTRA = {
    "job_id": 7,
    "task": "shop.jobs.send",
    "queue_name": "mail",
    "attempt": 2,
    "wait_ms": 250.0,
    "worker_name": "host/1",
}


def attempt(outcome: Outcome = COMPLETED, job: ClaimedJob = JOB) -> Attempt:
    return Attempt(job, outcome, 0.0, 0.01234, "host/1")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The lines of a worker that logs everything."""
    caplog.set_level(logging.DEBUG, logger="django_skipqueue")
    return caplog


FAILED = Outcome("failed", last_error="ValueError: no")


@pytest.mark.parametrize(
    ("event", "name", "level", "text"),
    [
        (
            AttemptStarted(JOB, "host/1", 250.0),
            "job_started",
            "DEBUG",
            "job started task=shop.jobs.send id=7 attempt=2/10 waited=0.2s",
        ),
        (
            AttemptsRetrying([attempt(Outcome("scheduled", delay=4, last_error="ValueError: no"))]),
            "job_retrying",
            "WARNING",
            "job retrying task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s retry_in=4.0s "
            'error="ValueError: no"',
        ),
        (
            AttemptsRetrying([attempt(Outcome("scheduled", delay=60, refund=1))]),
            "job_retrying",
            "INFO",
            "job retrying task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s retry_in=1m00s",
        ),
        (AttemptsFailed([attempt(FAILED)]), "job_failed", "ERROR", "job failed task=shop.jobs.send id=7 "),
        (AttemptsDiscarded([attempt(FAILED)]), "job_discarded", "WARNING", "job discarded task=shop.jobs.send id=7 "),
        (AttemptsCancelled([attempt(FAILED)]), "job_cancelled", "INFO", "job cancelled task=shop.jobs.send id=7 "),
        (
            LeasesLost([attempt()]),
            "lease_lost",
            "WARNING",
            "lease lost task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s not_written=completed",
        ),
        (
            OutcomesDropped([attempt()], "it came before"),
            "outcome_dropped",
            "INFO",
            "outcome dropped task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s not_written=completed "
            'reason="it came before"',
        ),
    ],
)
def test_an_event_is_one_line_with_its_figures(
    lines: pytest.LogCaptureFixture, event: Event, name: str, level: str, text: str
) -> None:
    send(event)
    (record,) = lines.records
    assert (record.levelname, record.name) == (level, "django_skipqueue.worker")
    assert record.getMessage().startswith(text)
    assert record.__dict__["event"] == name
    assert {field: getattr(record, field) for field in EXTRA} == EXTRA
    if not isinstance(event, AttemptStarted):
        assert record.__dict__["duration_ms"] == 12.34
    assert "secret" not in record.getMessage()
    assert "secret" not in str(record.__dict__)


@pytest.mark.parametrize(
    ("status", "level", "ago", "claimed"),
    [("queued", "WARNING", timedelta(0), "%H:%M:%S"), ("failed", "ERROR", timedelta(days=2), '"%Y-%m-%d %H:%M:%S"')],
)
def test_a_recovery_names_the_worker_that_had_the_job(
    lines: pytest.LogCaptureFixture, status: str, level: str, ago: timedelta, claimed: str
) -> None:
    since = datetime.now(UTC) - ago
    job = RecoveredJob(7, "shop.jobs.send", "mail", 2, status, "web:1/2:0123456789ab", since, "{}", since)
    send(JobsRecovered("default", [job]))
    (record,) = lines.records
    text = f"{since.astimezone():{claimed}}"
    assert record.levelname == level
    assert record.getMessage() == (
        f"job recovered task=shop.jobs.send id=7 attempt=2 worker=web:1/2 claimed={text} now={status}"
    )
    assert (record.__dict__["worker_id"], record.__dict__["worker_name"]) == ("web:1/2:0123456789ab", "web:1/2")
    assert (record.__dict__["job_id"], record.__dict__["queue_name"]) == (7, "mail")


def test_workers_come_and_go(lines: pytest.LogCaptureFixture) -> None:
    send(WorkerStarted("host/1", "u", [], 4))
    send(WorkerStopped("host/1", "u", 6))
    assert lines.messages == ["worker started worker=host/1", "worker stopped worker=host/1 attempts=6"]
    assert [record.__dict__["worker_id"] for record in lines.records] == ["u", "u"]


def every_record(lines: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """One record of each function that writes a line, also of a function that is added later."""
    values: dict[str, Any] = {
        "lines": ["text"],
        "attempts": [attempt()],
        "attempt": attempt(),
        "error": OSError("no"),
        "job": JOB,
        "outcome": FAILED,
        "counts": {"completed": 1},
        "job_ids": [3],
        "wait_ms": 1.5,
        "jobs_done": 1,
        "known": ["default"],
        "running": {"shop.jobs.send id=7": 1.5},
        "until": datetime.now(UTC),
        **dict.fromkeys(["timeout", "retry_in", "restart_in", "grace", "seconds", "interval"], 1.5),
        **dict.fromkeys(["count", "job_id"], 3),
    }
    recovered = RecoveredJob(
        7, "shop.jobs.send", "mail", 2, "queued", "w:1", datetime.now(UTC), "{}", datetime.now(UTC)
    )
    functions = {
        name: each
        for module in (logs, liveness_logs, queue_logs, relay_logs, carried_logs)
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__
    }
    for name, function in functions.items():
        if not name.startswith(("_", "write")) and function.__annotations__["return"] is None:
            function(**{each: values.get(each, each) for each in inspect.signature(function).parameters})
    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, Event) and kind.level is not None:
            given = values | {"jobs": [recovered]}
            kind(**{field.name: given.get(field.name, field.name) for field in fields(kind)}).write_lines()
    for of_part in modules_of_parts("lines"):
        of_part.write_lines()
    BatchesFinished("default", [FinishedBatch(4, "b", None, "{}", 3, 2, 1, is_failure=True)]).write_lines()
    BatchNotFinished("default", 4, OSError("no")).write_lines()
    CallbackSkipped("default", 4, "on_finish", "shop.jobs.send", "k").write_lines()
    dependant = Dependant(7, "shop.jobs.send", "mail", "discarded", None, 4, "{}", 6)
    DependantsDiscarded("default", [dependant]).write_lines()
    ScheduleFired("default", "s", "shop.jobs.send", [7, 8], 0.5).write_lines()
    ScheduleSkipped("default", "s", "job", 7).write_lines()
    ScheduleFailed("default", "s", "no").write_lines()
    schedule_logs.schedule_brought_back("s")
    schedule_logs.schedule_unusable("s", "no")
    SchedulePaused("default", "s", "anna").write_lines()
    ScheduleResumed("default", "s", "anna").write_lines()
    lines.set_level(logging.INFO, logger="django_skipqueue")
    AttemptsCompleted([attempt()] * (events.LARGE_BATCH + 1)).write_lines()
    return lines.records


def test_every_line_has_an_event_and_names_its_subject(lines: pytest.LogCaptureFixture) -> None:
    for record in every_record(lines):
        for name in ("event", "job_id", "worker_id", "worker_name", "queue_name"):
            assert name in record.__dict__, record.getMessage()
        event = record.__dict__["event"].replace("_", " ")
        if event != "supervisor starting":  # that is a greeting, for people
            text = rf'{event}( \w+=([^\s"=]+|"([^"\\]|\\.)*"))+'
            assert re.fullmatch(text, record.getMessage()), record.getMessage()


def test_the_reference_has_every_event_and_every_field(lines: pytest.LogCaptureFixture) -> None:
    records = every_record(lines)
    common = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    events = literals([row for part in ("Events of jobs", "Events of workers") for row in rows("logs", part)])
    assert {event.replace(" ", "_") for event in events} == {record.__dict__["event"] for record in records}
    fields = {name for record in records for name in record.__dict__.keys() - common}
    assert literals(rows("logs", "Fields of a record")) == fields


def test_a_worker_process_is_named_in_all_its_records(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_context, "worker", dict(log_context.worker))
    log_context.identify("host/1:0123456789ab", "host/1")
    liveness_logs.database_back("worker host/1")
    (record,) = lines.records
    assert (record.__dict__["worker_id"], record.__dict__["worker_name"]) == ("host/1:0123456789ab", "host/1")


def test_completed_jobs_have_a_line_each(lines: pytest.LogCaptureFixture) -> None:
    lines.set_level(logging.INFO, logger="django_skipqueue")
    AttemptsCompleted([attempt()] * events.LARGE_BATCH).write_lines()
    assert len(lines.records) == events.LARGE_BATCH
    assert lines.messages[0] == "job completed task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s"
    assert {name: getattr(lines.records[0], name) for name in EXTRA} == EXTRA


def test_a_blocked_event_loop_is_one_line_with_the_attempts_that_run_longest(lines: pytest.LogCaptureFixture) -> None:
    running = {f"shop.jobs.send id={number}": float(number) for number in range(1, 8)}
    logs.event_loop_blocked("host/1", running, '  File "/shop/jobs.py", line 3, in fetch\n    requests.get(url)\n', 3)
    (message,) = lines.messages
    longest = "shop.jobs.send id=7 for 7.0s, shop.jobs.send id=6 for 6.0s, "
    assert message.startswith(f'event loop blocked worker=host/1 released=3 running="{longest}')
    assert ", shop.jobs.send id=3 for 3.0s, 2 more" in message
    assert "requests.get(url)" in message


def test_a_large_batch_has_one_line_unless_details_are_wanted(lines: pytest.LogCaptureFixture) -> None:
    batch = [attempt()] * 1000 + [attempt(job=JOB._replace(task="b\nc"))] * 200
    lines.set_level(logging.INFO, logger="django_skipqueue")
    AttemptsCompleted(batch).write_lines()
    assert lines.messages == ['jobs completed count=1200 tasks="1,000 shop.jobs.send, 200 b\N{REPLACEMENT CHARACTER}c"']
    assert lines.records[0].__dict__["jobs"] == 1200
    lines.clear()
    lines.set_level(logging.DEBUG, logger="django_skipqueue")
    AttemptsCompleted(batch).write_lines()
    assert len(lines.records) == 1200


@pytest.mark.parametrize("bad", ["\n", "\r", "\x1b[31m", "\u2028", "\x85", "\u202e", "\0"])
def test_no_name_can_start_a_line_or_steer_a_terminal(lines: pytest.LogCaptureFixture, bad: str) -> None:
    job = JOB._replace(task=f"a{bad}b")
    send(AttemptsFailed([attempt(Outcome("failed", last_error=f"E: {bad}forged"), job)]))
    send(WorkerStarted(f"w{bad}", "u", [], 1))
    send(AttemptStarted(job, "w", 1.0))
    liveness_logs.worker_died(f"w{bad}", "exit code 1", 0.5)
    liveness_logs.worker_not_started(f"w{bad}", OSError(f"x{bad}y"), 0.5)
    liveness_logs.database_lost(f"worker w{bad}", ValueError(f"x{bad}y"), 1.0)
    logs.running_released(f"w{bad}", 1)
    logs.orphans_released(f"w{bad}", 1)
    liveness_logs.supervisor_gone(f"w{bad}", 1)
    assert lines.messages
    for message in lines.messages:
        assert bad not in message


def test_printable_names_are_left_alone() -> None:
    assert printable("größe 発送 👍 a.b-c") == "größe 発送 👍 a.b-c"


def test_a_line_below_the_level_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="django_skipqueue")
    sink = LogSink()
    assert not sink.wants(AttemptStarted)
    assert not sink.wants(AttemptsCompleted)
    assert sink.wants(AttemptsFailed)
    assert not sink.wants(JobsDeferred), "there is no line for it"


@pytest.mark.parametrize(("verbosity", "level"), [(0, "WARNING"), (1, "INFO"), (2, "DEBUG"), (3, "DEBUG")])
def test_without_configuration_lines_go_to_the_terminal(
    package_logger: logging.Logger, verbosity: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
    configure(verbosity)
    assert logging.getLevelName(package_logger.level) == level
    liveness_logs.stopping_now("SIGINT")
    assert out.getvalue().endswith(' WARNING supervisor stopping now signal=SIGINT hint="releasing running jobs"\n')


def test_the_projects_configuration_is_left_alone(package_logger: logging.Logger) -> None:
    handler = logging.NullHandler()
    package_logger.addHandler(handler)
    package_logger.setLevel(logging.CRITICAL)
    configure(3)
    assert (package_logger.handlers, package_logger.level, package_logger.propagate) == (
        [handler],
        logging.CRITICAL,
        True,
    )


@pytest.mark.parametrize(("restart_in", "text"), [(None, ""), (0.0, " restart_in=0s"), (1.5, " restart_in=1.5s")])
def test_a_death_says_what_follows(caplog: pytest.LogCaptureFixture, restart_in: float | None, text: str) -> None:
    liveness_logs.worker_died("host/1", "exit code 7", restart_in)
    assert caplog.messages == [f'worker died worker=host/1 cause="exit code 7"{text}']


# How a line looks


def test_durations_are_read_at_a_glance(subtests: pytest.Subtests) -> None:
    cases: list[tuple[float, str]] = [
        (0, "0s"),
        (0.00004, "<0.1ms"),
        (0.0004, "0.4ms"),
        (0.00096, "1ms"),
        (0.0124, "12ms"),
        (0.0996, "0.1s"),
        (0.624, "0.6s"),
        (1.94, "1.9s"),
        (9.96, "10s"),
        (42.4, "42s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (3599.9, "1h00m"),
        (7500, "2h05m"),
        (3 * 86400 + 4 * 3600, "3d04h"),
        (-0.0012, "0s"),
    ]
    for seconds, text in cases:
        with subtests.test(seconds=seconds, text=text):
            assert in_words(seconds) == text


def test_a_value_that_has_spaces_is_quoted() -> None:
    values = {"id": 4, "error": 'KeyError: "a=b" \\ no', "empty": "", "path": "a.b:c/1"}
    assert pairs(values) == r'id=4 error="KeyError: \"a=b\" \\ no" empty="" path=a.b:c/1'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "asked", "coloured"),
    [
        (Terminal(), {}, None, True),
        (io.StringIO(), {}, None, False),
        (Terminal(), {"NO_COLOR": "1"}, None, False),
        (Terminal(), {"DJANGO_COLORS": "nocolor"}, None, False),
        (Terminal(), {"TERM": "dumb"}, None, False),
        (Terminal(), {}, False, False),
        (io.StringIO(), {"NO_COLOR": "1"}, True, True),
    ],
)
def test_a_terminal_gets_colours_unless_told_otherwise(
    package_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    stream: io.StringIO,
    environment: dict[str, str],
    asked: bool | None,
    coloured: bool,
) -> None:
    for name in ("NO_COLOR", "DJANGO_COLORS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure(1, colour=asked)
    AttemptsCompleted([attempt()]).write_lines()
    stream.seek(0)
    line = stream.read()
    assert ("\x1b[32mINFO    job completed\x1b[0m task=" in line) is coloured
    assert ("\x1b" in line) is coloured


def test_successes_and_failures_have_different_levels() -> None:
    assert len({LEVEL_COLOURS[level] for level in ("DEBUG", "INFO", "WARNING", "ERROR")}) == 4


def failed_by(error: BaseException) -> Outcome:
    entry = error_entry(error, attempt=2, worker="host/1", duration_ms=1)
    return Outcome("failed", last_error=summary(error), error=entry, exception=error)


@pytest.mark.parametrize(("stream", "asked"), [(Terminal(), False), (io.StringIO(), True), (io.StringIO(), False)])
def test_a_failure_shows_its_traceback_on_a_terminal(
    package_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, asked: bool
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure(1, colour=False, tracebacks=asked)
    AttemptsFailed([attempt(failed_by(ValueError("first\nforged \x1b[31m")))]).write_lines()
    stream.seek(0)
    first, *others = stream.read().splitlines()
    assert 'error="ValueError: first"' in first
    if not (asked or stream.isatty()):
        assert others == []
        return
    assert others == ["    ValueError: first", "    forged \N{REPLACEMENT CHARACTER}[31m"]


def test_an_error_that_breaks_a_worker_shows_its_traceback_everywhere(
    package_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure(1)
    liveness_logs.part_died("host/1", OSError("no"))
    assert stream.getvalue().splitlines()[1:] == ["    OSError: no"]


def test_the_exception_is_on_the_record(lines: pytest.LogCaptureFixture) -> None:
    error = ValueError("no such card")
    send(AttemptsFailed([attempt(failed_by(error))]))
    (record,) = lines.records
    assert record.exc_info is not None
    assert record.exc_info[:2] == (ValueError, error)


def test_an_exception_that_tells_a_secret_is_on_the_record_by_its_name_and_place(
    lines: pytest.LogCaptureFixture,
) -> None:
    secret = "4111-1111"
    try:
        raise ValueError(f"card {secret}") from OSError(secret)
    except ValueError as error:
        outcome = failed_by(error)
    assert outcome.error is not None
    text = "ValueError: card ••••••"
    masked = replace(outcome, last_error=text, error=outcome.error | {"message": "card ••••••", "traceback": text})
    send(AttemptsFailed([attempt(masked)]))
    (record,) = lines.records
    assert record.exc_info is not None
    kind, shown, place = record.exc_info
    assert kind is not None
    assert shown is not None
    assert place is not None
    assert (kind.__module__, kind.__qualname__, str(shown)) == ("builtins", "ValueError", "card ••••••")
    assert secret not in "".join(traceback.format_exception(shown))
    assert secret not in logging.Formatter().format(record)
    assert logging.Formatter().format(record).endswith("ValueError: card ••••••")

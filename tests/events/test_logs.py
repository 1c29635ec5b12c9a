"""The log lines that events write: their levels, texts and fields, and what no line contains."""

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

from ..docs.test_reference import names_in_backticks, table_cells
from ..harness.parts import modules_of_parts

JOB = ClaimedJob(
    id=7, lease=1, task="shop.jobs.send", queue_name="mail", args='["secret"]', kwargs="{}", attempt=2, max_attempts=10,
    priority=0, run_after=100.0, locked_at=100.25, metadata="{}",
)  # fmt: skip
FIELDS_OF_JOB = {
    "job_id": 7,
    "task": "shop.jobs.send",
    "queue_name": "mail",
    "attempt": 2,
    "wait_ms": 250.0,
    "worker_name": "host/1",
}


def make_attempt(outcome: Outcome = COMPLETED, job: ClaimedJob = JOB) -> Attempt:
    return Attempt(job, outcome, started=0.0, ended=0.01234, worker="host/1")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Captures log lines of every level."""
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
            AttemptsRetrying([make_attempt(Outcome("scheduled", delay=4, last_error="ValueError: no"))]),
            "job_retrying",
            "WARNING",
            "job retrying task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s retry_in=4.0s "
            'error="ValueError: no"',
        ),
        (
            AttemptsRetrying([make_attempt(Outcome("scheduled", delay=60, refund=1))]),
            "job_retrying",
            "INFO",
            "job retrying task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s retry_in=1m00s",
        ),
        (AttemptsFailed([make_attempt(FAILED)]), "job_failed", "ERROR", "job failed task=shop.jobs.send id=7 "),
        (
            AttemptsDiscarded([make_attempt(FAILED)]),
            "job_discarded",
            "WARNING",
            "job discarded task=shop.jobs.send id=7 ",
        ),
        (AttemptsCancelled([make_attempt(FAILED)]), "job_cancelled", "INFO", "job cancelled task=shop.jobs.send id=7 "),
        (
            LeasesLost([make_attempt()]),
            "lease_lost",
            "WARNING",
            "lease lost task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s not_written=completed",
        ),
        (
            OutcomesDropped([make_attempt()], "it came before"),
            "outcome_dropped",
            "INFO",
            "outcome dropped task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s not_written=completed "
            'reason="it came before"',
        ),
    ],
)
def test_an_event_of_a_job_is_one_log_line_with_level_text_and_fields(
    log: pytest.LogCaptureFixture, event: Event, name: str, level: str, text: str
) -> None:
    send(event)
    (record,) = log.records
    assert (record.levelname, record.name) == (level, "django_skipqueue.worker")
    assert record.getMessage().startswith(text)
    assert record.__dict__["event"] == name
    assert {field: getattr(record, field) for field in FIELDS_OF_JOB} == FIELDS_OF_JOB
    if not isinstance(event, AttemptStarted):
        assert record.__dict__["duration_ms"] == 12.34
    assert "secret" not in record.getMessage()
    assert "secret" not in str(record.__dict__)


@pytest.mark.parametrize(
    ("status", "level", "ago", "time_format"),
    [("queued", "WARNING", timedelta(0), "%H:%M:%S"), ("failed", "ERROR", timedelta(days=2), '"%Y-%m-%d %H:%M:%S"')],
)
def test_the_line_about_a_recovered_job_names_its_former_worker(
    log: pytest.LogCaptureFixture, status: str, level: str, ago: timedelta, time_format: str
) -> None:
    claimed_at = datetime.now(UTC) - ago
    job = RecoveredJob(
        id=7, task="shop.jobs.send", queue_name="mail", attempt=2, status=status,
        locked_by="web:1/2:0123456789ab", locked_at=claimed_at, metadata="{}", recovered_at=claimed_at,
    )  # fmt: skip
    send(JobsRecovered("default", [job]))
    (record,) = log.records
    claimed_text = f"{claimed_at.astimezone():{time_format}}"
    assert record.levelname == level
    assert record.getMessage() == (
        f"job recovered task=shop.jobs.send id=7 attempt=2 worker=web:1/2 claimed={claimed_text} now={status}"
    )
    assert (record.__dict__["worker_id"], record.__dict__["worker_name"]) == ("web:1/2:0123456789ab", "web:1/2")
    assert (record.__dict__["job_id"], record.__dict__["queue_name"]) == (7, "mail")


def test_the_start_and_the_stop_of_a_worker_are_logged(log: pytest.LogCaptureFixture) -> None:
    send(WorkerStarted("host/1", "u", [], 4))
    send(WorkerStopped("host/1", "u", 6))
    assert log.messages == ["worker started worker=host/1", "worker stopped worker=host/1 attempts=6"]
    assert [record.__dict__["worker_id"] for record in log.records] == ["u", "u"]


def every_record(log: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """One record of each function that writes a line, also of a function that is added later."""
    values: dict[str, Any] = {
        "lines": ["text"],
        "attempts": [make_attempt()],
        "attempt": make_attempt(),
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
    recovered_job = RecoveredJob(
        id=7, task="shop.jobs.send", queue_name="mail", attempt=2, status="queued",
        locked_by="w:1", locked_at=datetime.now(UTC), metadata="{}", recovered_at=datetime.now(UTC),
    )  # fmt: skip
    functions = {
        name: function
        for module in (logs, liveness_logs, queue_logs, relay_logs, carried_logs)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    }
    for name, function in functions.items():
        if not name.startswith(("_", "write")) and function.__annotations__["return"] is None:
            function(
                **{parameter: values.get(parameter, parameter) for parameter in inspect.signature(function).parameters}
            )
    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, Event) and kind.level is not None:
            field_values = values | {"jobs": [recovered_job]}
            kind(**{field.name: field_values.get(field.name, field.name) for field in fields(kind)}).write_lines()
    for module_of_part in modules_of_parts("lines"):
        module_of_part.write_lines()
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
    log.set_level(logging.INFO, logger="django_skipqueue")
    AttemptsCompleted([make_attempt()] * (events.LARGE_BATCH + 1)).write_lines()
    return log.records


def test_every_line_has_an_event_and_key_value_pairs(log: pytest.LogCaptureFixture) -> None:
    for record in every_record(log):
        for name in ("event", "job_id", "worker_id", "worker_name", "queue_name"):
            assert name in record.__dict__, record.getMessage()
        event = record.__dict__["event"].replace("_", " ")
        if event != "supervisor starting":  # its line is a greeting without pairs
            pattern = rf'{event}( \w+=([^\s"=]+|"([^"\\]|\\.)*"))+'
            assert re.fullmatch(pattern, record.getMessage()), record.getMessage()


def test_the_reference_documents_every_event_and_every_field_of_a_line(log: pytest.LogCaptureFixture) -> None:
    records = every_record(log)
    attributes_of_every_record = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    events = names_in_backticks(
        [row for heading in ("Events of jobs", "Events of workers") for row in table_cells("logs", heading)]
    )
    assert {event.replace(" ", "_") for event in events} == {record.__dict__["event"] for record in records}
    fields = {name for record in records for name in record.__dict__.keys() - attributes_of_every_record}
    assert names_in_backticks(table_cells("logs", "Fields of a record")) == fields


def test_every_record_of_a_worker_process_has_its_id_and_name(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_context, "worker", dict(log_context.worker))
    log_context.identify("host/1:0123456789ab", "host/1")
    liveness_logs.database_back("worker host/1")
    (record,) = log.records
    assert (record.__dict__["worker_id"], record.__dict__["worker_name"]) == ("host/1:0123456789ab", "host/1")


def test_each_completed_job_has_a_line(log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.INFO, logger="django_skipqueue")
    AttemptsCompleted([make_attempt()] * events.LARGE_BATCH).write_lines()
    assert len(log.records) == events.LARGE_BATCH
    assert log.messages[0] == "job completed task=shop.jobs.send id=7 attempt=2/10 ran=12ms waited=0.2s"
    assert {name: getattr(log.records[0], name) for name in FIELDS_OF_JOB} == FIELDS_OF_JOB


def test_the_line_about_a_blocked_event_loop_names_the_longest_running_attempts(log: pytest.LogCaptureFixture) -> None:
    durations = {f"shop.jobs.send id={number}": float(number) for number in range(1, 8)}
    logs.event_loop_blocked("host/1", durations, '  File "/shop/jobs.py", line 3, in fetch\n    requests.get(url)\n', 3)
    (message,) = log.messages
    longest = "shop.jobs.send id=7 for 7.0s, shop.jobs.send id=6 for 6.0s, "
    assert message.startswith(f'event loop blocked worker=host/1 released=3 running="{longest}')
    assert ", shop.jobs.send id=3 for 3.0s, 2 more" in message
    assert "requests.get(url)" in message


def test_many_jobs_completed_at_once_have_one_line_except_at_level_debug(log: pytest.LogCaptureFixture) -> None:
    batch = [make_attempt()] * 1000 + [make_attempt(job=JOB._replace(task="b\nc"))] * 200
    log.set_level(logging.INFO, logger="django_skipqueue")
    AttemptsCompleted(batch).write_lines()
    assert log.messages == ['jobs completed count=1200 tasks="1,000 shop.jobs.send, 200 b\N{REPLACEMENT CHARACTER}c"']
    assert log.records[0].__dict__["jobs"] == 1200
    log.clear()
    log.set_level(logging.DEBUG, logger="django_skipqueue")
    AttemptsCompleted(batch).write_lines()
    assert len(log.records) == 1200


@pytest.mark.parametrize("control_character", ["\n", "\r", "\x1b[31m", "\u2028", "\x85", "\u202e", "\0"])
def test_control_characters_in_names_and_errors_are_removed_from_lines(
    log: pytest.LogCaptureFixture, control_character: str
) -> None:
    job = JOB._replace(task=f"a{control_character}b")
    send(AttemptsFailed([make_attempt(Outcome("failed", last_error=f"E: {control_character}forged"), job)]))
    send(WorkerStarted(f"w{control_character}", "u", [], 1))
    send(AttemptStarted(job, "w", 1.0))
    liveness_logs.worker_died(f"w{control_character}", "exit code 1", 0.5)
    liveness_logs.worker_not_started(f"w{control_character}", OSError(f"x{control_character}y"), 0.5)
    liveness_logs.database_lost(f"worker w{control_character}", ValueError(f"x{control_character}y"), 1.0)
    logs.running_released(f"w{control_character}", 1)
    logs.orphans_released(f"w{control_character}", 1)
    liveness_logs.supervisor_gone(f"w{control_character}", 1)
    assert log.messages
    for message in log.messages:
        assert control_character not in message


def test_printable_names_of_any_language_are_kept() -> None:
    assert printable("größe 発送 👍 a.b-c") == "größe 発送 👍 a.b-c"


def test_an_event_below_the_level_of_the_logger_is_not_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="django_skipqueue")
    sink = LogSink()
    assert not sink.wants(AttemptStarted)
    assert not sink.wants(AttemptsCompleted)
    assert sink.wants(AttemptsFailed)
    assert not sink.wants(JobsDeferred), "no line is written for this event"


@pytest.mark.parametrize(("verbosity", "level"), [(0, "WARNING"), (1, "INFO"), (2, "DEBUG"), (3, "DEBUG")])
def test_without_logging_configuration_lines_go_to_stderr(
    package_logger: logging.Logger, verbosity: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
    configure(verbosity)
    assert logging.getLevelName(package_logger.level) == level
    liveness_logs.stopping_now("SIGINT")
    assert out.getvalue().endswith(' WARNING supervisor stopping now signal=SIGINT hint="releasing running jobs"\n')


def test_a_logger_that_the_project_has_configured_is_left_alone(package_logger: logging.Logger) -> None:
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
def test_the_line_about_a_dead_worker_says_when_it_is_restarted(
    caplog: pytest.LogCaptureFixture, restart_in: float | None, text: str
) -> None:
    liveness_logs.worker_died("host/1", "exit code 7", restart_in)
    assert caplog.messages == [f'worker died worker=host/1 cause="exit code 7"{text}']


# The format of a line


def test_a_duration_is_written_in_one_or_two_units(subtests: pytest.Subtests) -> None:
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


def test_a_value_with_spaces_or_quotes_is_quoted() -> None:
    values = {"id": 4, "error": 'KeyError: "a=b" \\ no', "empty": "", "path": "a.b:c/1"}
    assert pairs(values) == r'id=4 error="KeyError: \"a=b\" \\ no" empty="" path=a.b:c/1'


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "setting", "is_coloured"),
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
def test_lines_are_coloured_on_a_terminal_unless_colours_are_turned_off(
    package_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    stream: io.StringIO,
    environment: dict[str, str],
    setting: bool | None,
    is_coloured: bool,
) -> None:
    for name in ("NO_COLOR", "DJANGO_COLORS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure(1, colour=setting)
    AttemptsCompleted([make_attempt()]).write_lines()
    stream.seek(0)
    line = stream.read()
    assert ("\x1b[32mINFO    job completed\x1b[0m task=" in line) is is_coloured
    assert ("\x1b" in line) is is_coloured


def test_each_level_has_a_colour_of_its_own() -> None:
    assert len({LEVEL_COLOURS[level] for level in ("DEBUG", "INFO", "WARNING", "ERROR")}) == 4


def outcome_of_error(error: BaseException) -> Outcome:
    entry = error_entry(error, attempt=2, worker="host/1", duration_ms=1)
    return Outcome("failed", last_error=summary(error), error=entry, exception=error)


@pytest.mark.parametrize(("stream", "setting"), [(Terminal(), False), (io.StringIO(), True), (io.StringIO(), False)])
def test_the_traceback_of_a_failed_job_is_shown_on_a_terminal_or_on_request(
    package_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, setting: bool
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure(1, colour=False, tracebacks=setting)
    AttemptsFailed([make_attempt(outcome_of_error(ValueError("first\nforged \x1b[31m")))]).write_lines()
    stream.seek(0)
    first_line, *other_lines = stream.read().splitlines()
    assert 'error="ValueError: first"' in first_line
    if not (setting or stream.isatty()):
        assert other_lines == []
        return
    assert other_lines == ["    ValueError: first", "    forged \N{REPLACEMENT CHARACTER}[31m"]


def test_the_traceback_of_an_error_of_the_worker_itself_is_always_shown(
    package_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure(1)
    liveness_logs.part_died("host/1", OSError("no"))
    assert stream.getvalue().splitlines()[1:] == ["    OSError: no"]


def test_the_record_of_a_failed_job_has_its_exception(log: pytest.LogCaptureFixture) -> None:
    error = ValueError("no such card")
    send(AttemptsFailed([make_attempt(outcome_of_error(error))]))
    (record,) = log.records
    assert record.exc_info is not None
    assert record.exc_info[:2] == (ValueError, error)


def test_a_secret_in_an_exception_is_masked_in_the_record(
    log: pytest.LogCaptureFixture,
) -> None:
    secret = "4111-1111"
    try:
        raise ValueError(f"card {secret}") from OSError(secret)
    except ValueError as error:
        outcome = outcome_of_error(error)
    assert outcome.error is not None
    text = "ValueError: card ••••••"
    masked_outcome = replace(
        outcome, last_error=text, error=outcome.error | {"message": "card ••••••", "traceback": text}
    )
    send(AttemptsFailed([make_attempt(masked_outcome)]))
    (record,) = log.records
    assert record.exc_info is not None
    kind, error_in_record, traceback_in_record = record.exc_info
    assert kind is not None
    assert error_in_record is not None
    assert traceback_in_record is not None
    assert (kind.__module__, kind.__qualname__, str(error_in_record)) == ("builtins", "ValueError", "card ••••••")
    assert secret not in "".join(traceback.format_exception(error_in_record))
    assert secret not in logging.Formatter().format(record)
    assert logging.Formatter().format(record).endswith("ValueError: card ••••••")

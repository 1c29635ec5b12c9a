"""`logs`: what becomes a line, at which level, with which figures; and what never gets into one."""

import io
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from django_skipqueue import logs, signals
from django_skipqueue.outcomes import COMPLETED, Outcome
from django_skipqueue.records import Attempt, ClaimedJob, RecoveredJob
from django_skipqueue.signals import announce

JOB = ClaimedJob(7, 1, "shop.jobs.send", "mail", '["secret"]', "{}", 2, 10, 0, 100.0, 100.25, "{}")
EXTRA = {
    "job_id": 7,
    "task": "shop.jobs.send",
    "queue": "mail",
    "attempt": 2,
    "wait_ms": 250.0,
    "worker": "host/1",
}


def attempt(outcome: Outcome = COMPLETED, job: ClaimedJob = JOB) -> Attempt:
    return Attempt(job, outcome, 12.34, "host/1")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Connected as in a worker that logs everything."""
    caplog.set_level(logging.DEBUG, logger="django_skipqueue")
    logs.connect()
    yield caplog
    for signal, *_ in logs.RECEIVERS:
        signal.disconnect(dispatch_uid="django_skipqueue.logs")


FAILED = Outcome("failed", last_error="ValueError: no")


@pytest.mark.parametrize(
    ("signal", "values", "level", "text"),
    [
        (signals.job_started, {"job": JOB, "worker": "host/1"}, "DEBUG", "started shop.jobs.send #7 (attempt 2)"),
        (
            signals.job_retrying,
            {"attempt": attempt(Outcome("scheduled", delay=4, last_error="ValueError: no"))},
            "WARNING",
            "will run again in 4.0 s: shop.jobs.send #7 (attempt 2/10, 12.3 ms after 250.0 ms): ValueError: no",
        ),
        (
            signals.job_retrying,
            {"attempt": attempt(Outcome("scheduled", delay=60, refund=1))},
            "INFO",
            "will run again in 60.0 s: shop.jobs.send #7 (attempt 2/10, 12.3 ms after 250.0 ms)",
        ),
        (signals.job_failed, {"attempt": attempt(FAILED)}, "ERROR", "failed shop.jobs.send #7 (attempt 2/10, "),
        (signals.job_discarded, {"attempt": attempt(FAILED)}, "WARNING", "discarded shop.jobs.send #7"),
        (
            signals.lease_lost,
            {"attempt": attempt()},
            "WARNING",
            "lost the lease, so this outcome was not written: shop",
        ),
    ],
)
def test_an_event_is_one_line_with_its_figures(
    lines: pytest.LogCaptureFixture, signal: Any, values: dict[str, Any], level: str, text: str
) -> None:
    announce(signal, "shop.jobs.send", **values)
    (record,) = lines.records
    assert (record.levelname, record.name) == (level, "django_skipqueue.worker")
    assert record.getMessage().startswith(text)
    assert {name: getattr(record, name) for name in EXTRA} == EXTRA
    if signal is not signals.job_started:
        assert record.__dict__["duration_ms"] == 12.34
    assert "secret" not in record.getMessage()
    assert "secret" not in str({name: value for name, value in record.__dict__.items() if name != "args"})


def test_a_recovery_tells_who_had_the_job_and_since_when(lines: pytest.LogCaptureFixture) -> None:
    job = RecoveredJob(7, "shop.jobs.send", "mail", 2, "queued", "some-worker", datetime(2030, 1, 2, tzinfo=UTC), "{}")
    announce(signals.job_recovered, job.task, job=job)
    (record,) = lines.records
    assert record.levelname == "WARNING"
    assert "recovered shop.jobs.send #7, claimed by some-worker at 2030-01-02" in record.getMessage()
    assert record.__dict__["job_id"] == 7
    assert record.__dict__["worker"] == "some-worker"


def test_workers_come_and_go(lines: pytest.LogCaptureFixture) -> None:
    announce(signals.worker_started, "host/1", worker_id="u", queue_names=[], concurrency=4)
    announce(signals.worker_stopped, "host/1", worker_id="u", jobs_done=1)
    assert lines.messages == ["worker host/1 started (u)", "worker host/1 stopped after 1 job"]


def test_completed_jobs_have_a_line_each(lines: pytest.LogCaptureFixture) -> None:
    lines.set_level(logging.INFO, logger="django_skipqueue")
    logs.completed([attempt()] * logs.LARGE_BATCH)
    assert len(lines.records) == logs.LARGE_BATCH
    assert lines.messages[0] == "completed shop.jobs.send #7 (attempt 2/10, 12.3 ms after 250.0 ms)"
    assert {name: getattr(lines.records[0], name) for name in EXTRA} == EXTRA


def test_a_large_batch_has_one_line_unless_details_are_wanted(lines: pytest.LogCaptureFixture) -> None:
    batch = [attempt()] * 1000 + [attempt(job=JOB._replace(task="b\nc"))] * 200
    lines.set_level(logging.INFO, logger="django_skipqueue")
    logs.completed(batch)
    assert lines.messages == ["completed 1,200 jobs: 1,000 shop.jobs.send, 200 b\N{REPLACEMENT CHARACTER}c"]
    assert lines.records[0].__dict__["jobs"] == 1200
    lines.clear()
    lines.set_level(logging.DEBUG, logger="django_skipqueue")
    logs.completed(batch)
    assert len(lines.records) == 1200


@pytest.mark.parametrize("bad", ["\n", "\r", "\x1b[31m", "\u2028", "\x85", "\u202e", "\0"])
def test_no_name_can_start_a_line_or_steer_a_terminal(lines: pytest.LogCaptureFixture, bad: str) -> None:
    job = JOB._replace(task=f"a{bad}b")
    announce(signals.job_failed, "x", attempt=attempt(Outcome("failed", last_error=f"E: {bad}forged"), job))
    announce(signals.worker_started, f"w{bad}", worker_id="u")
    announce(signals.job_started, "x", job=job, worker="w")
    logs.worker_died(f"w{bad}", "exit code 1", 0.5)
    logs.worker_not_started(f"w{bad}", OSError(f"x{bad}y"), 0.5)
    logs.database_lost(f"worker w{bad}", ValueError(f"x{bad}y"), 1.0)
    logs.given_back(f"w{bad}", 1)
    logs.strays_released(f"w{bad}", 1)
    logs.supervisor_gone(f"w{bad}", 1)
    assert lines.messages
    for message in lines.messages:
        assert bad not in message


def test_what_may_stand_in_a_name_is_left_alone() -> None:
    assert logs.printable("größe 発送 👍 a.b-c") == "größe 発送 👍 a.b-c"


def test_lines_that_nobody_reads_cost_no_receiver(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="django_skipqueue")
    logs.connect()
    try:
        assert not signals.job_started.has_listeners()
        assert not logs.wants_completed()
        assert signals.job_failed.has_listeners()
    finally:
        for signal, *_ in logs.RECEIVERS:
            signal.disconnect(dispatch_uid="django_skipqueue.logs")


@pytest.fixture
def package() -> Iterator[logging.Logger]:
    """The package's logger as it is before any configuration."""
    logger = logging.getLogger("django_skipqueue")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.mark.parametrize(("verbosity", "level"), [(0, "WARNING"), (1, "INFO"), (2, "DEBUG"), (3, "DEBUG")])
def test_without_configuration_lines_go_to_the_terminal(
    package: logging.Logger, verbosity: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
    logs.to_terminal(verbosity)
    assert logging.getLevelName(package.level) == level
    logs.stopping_now("SIGINT")
    assert out.getvalue().endswith(" WARNING SIGINT again: giving back what still runs\n")


def test_the_projects_configuration_is_left_alone(package: logging.Logger) -> None:
    handler = logging.NullHandler()
    package.addHandler(handler)
    package.setLevel(logging.CRITICAL)
    logs.to_terminal(3)
    assert (package.handlers, package.level, package.propagate) == ([handler], logging.CRITICAL, True)


@pytest.mark.parametrize(
    ("restart_in", "text"),
    [(None, "died: why"), (0.0, "died: why; starting another"), (1.5, "died: why; starting another in 1.5 s")],
)
def test_a_death_says_what_follows(caplog: pytest.LogCaptureFixture, restart_in: float | None, text: str) -> None:
    logs.worker_died("host/1", "why", restart_in)
    assert caplog.messages == [f"worker host/1 {text}"]

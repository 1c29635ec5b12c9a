"""`manage.py runworker`: its options, its first log lines, and how it runs and ends."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_skipqueue.management.commands import runworker as command
from django_skipqueue.models import Job, Worker
from django_skipqueue.worker.options import WorkerOptions

from ..app import jobs
from ..app.models import Ledger
from ..app.rows import make_job
from ..harness.processes import ManagePy, statuses, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]
ONE_HOUR = "3600"

uses_database = pytest.mark.django_db(transaction=True)


# From end to end


@uses_database
@pytest.mark.parametrize("options", [(), ("-q", "default,mail"), ("--processes", "3"), ("--no-listen",), ("-c", "1")])
def test_a_drain_runs_all_due_jobs_and_exits_with_0(runworker: RunWorker, options: tuple[str, ...]) -> None:
    jobs.add.defer_many([(number, 1) for number in range(100)])
    jobs.aadd.defer_many([(number, 1) for number in range(100)])
    jobs.see_context.using(max_attempts=4).defer(note="n")
    jobs.asee_context.defer()
    jobs.send_mail.defer(payment_id=1)
    jobs.fail_times.defer(3)
    jobs.fail.defer("secret word")
    jobs.discard.defer()
    make_job("scheduled", run_after=timedelta(minutes=-1))
    make_job("scheduled", run_after=timedelta(hours=1))
    process = runworker("--drain", "--poll-interval", ONE_HOUR, *options)
    assert process.wait() == 0
    assert statuses() == {"completed": 205, "failed": 1, "discarded": 1, "scheduled": 1}
    assert not Worker.objects.exists()
    for job in Job.objects.filter(task__endswith="add"):
        assert job.result == job.args[0] + 1
    context_job = Job.objects.get(task="tests.app.jobs.see_context")
    assert context_job.result is not None
    assert context_job.result["job_id"] == context_job.pk
    assert (context_job.result["note"], context_job.result["attempt"], context_job.result["max_attempts"]) == (
        "n",
        1,
        4,
    )
    assert Job.objects.get(task__endswith="fail_times").result == 4
    assert "Traceback" not in process.log


@uses_database
def test_a_drain_runs_two_thousand_jobs_that_have_become_due(runworker: RunWorker) -> None:
    """The supervisor admits the jobs while the worker looks for jobs for the first time."""
    jobs.noop.using(run_after=timedelta(hours=1)).defer_many([()] * 2000)
    Job.objects.update(run_after="2020-01-01T00:00Z")
    assert runworker("--drain").wait() == 0
    assert statuses() == {"completed": 2000}


@uses_database
def test_queues_are_served_in_the_order_they_are_typed_and_no_others(runworker: RunWorker) -> None:
    for queue_name in ("low", "other", "high"):
        jobs.record.using(queue_name=queue_name).defer_many([{"entry": queue_name}] * 3)
    assert runworker("--drain", "-c", "1", "-q", " high,low,,high ").wait() == 0
    assert list(Ledger.objects.order_by("id").values_list("entry", flat=True)) == ["high"] * 3 + ["low"] * 3
    assert set(Job.objects.queued().values_list("queue_name", flat=True)) == {"other"}


CARRIERS = {"CARRIERS": {"celery": {"APP": "tests.app.celery_app.app", "QUEUES": {"pdf": "pdf"}}}}


@uses_database
@pytest.mark.parametrize(
    ("arguments", "queues_left"), [((), {"pdf"}), (("-q", "pdf"), {"mail"}), (("-q", "pdf,mail"), set())]
)
def test_a_carried_queue_is_served_only_if_it_is_typed(
    runworker: RunWorker, arguments: list[str], queues_left: set[str]
) -> None:
    """A drain stops although jobs of a carried queue are left: a relay runs these jobs."""
    for queue_name in ("pdf", "mail"):
        jobs.noop.using(queue_name=queue_name).defer_many([()] * 3)
    assert runworker("--drain", *arguments, skipqueue=CARRIERS).wait() == 0
    assert set(Job.objects.queued().values_list("queue_name", flat=True)) == queues_left


@uses_database
def test_max_jobs_ends_each_process_after_this_number_of_jobs(runworker: RunWorker) -> None:
    jobs.noop.defer_many([()] * 50)
    assert runworker("--max-jobs", "10", "--processes", "2").wait() == 0
    assert statuses() == {"completed": 20, "queued": 30}


@uses_database
def test_an_idle_worker_runs_a_job_that_becomes_due_and_a_job_that_is_notified(runworker: RunWorker) -> None:
    runworker("--poll-interval", ONE_HOUR)
    workers()
    jobs.noop.using(run_after=timedelta(seconds=0.3)).defer()
    wait_for_statuses(completed=1)
    jobs.noop.using(queue_name="new").defer()
    wait_for_statuses(completed=2)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_runworker_serves_the_given_database(runworker: RunWorker) -> None:
    jobs.add.using(database="other").defer(1, 2)
    jobs.add.defer(1, 2)
    assert runworker("--drain", "--database", "other").wait() == 0
    assert Job.objects.using("other").get().result == 3
    assert statuses() == {"queued": 1}


# Options


def worker_options(*arguments: str) -> WorkerOptions:
    """The options of the worker, for this command line."""
    parsed = command.Command().create_parser("manage.py", "runworker").parse_args(list(arguments))
    [worker_options] = command.Command().options_of_loops(vars(parsed))
    return worker_options


@pytest.fixture(autouse=True)
def without_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("SKIPQUEUE_")]:
        monkeypatch.delenv(name)


def test_runworker_without_options_serves_every_queue() -> None:
    options = worker_options()
    assert (options.queue_names, options.concurrency, options.processes) == ((), 4, 1)
    assert (options.drain, options.max_jobs, options.listen) == (False, None, True)
    assert (options.poll_interval, options.shutdown_timeout, options.worker_timeout) == (2.0, 30.0, 60.0)
    assert re.fullmatch(r".+:\d+", options.name)


def test_settings_are_the_defaults_of_options(settings: Any) -> None:
    settings.SKIPQUEUE = {"POLL_INTERVAL": 7, "SHUTDOWN_TIMEOUT": 8, "WORKER_TIMEOUT": 90, "HEARTBEAT_INTERVAL": 5}
    options = worker_options()
    assert (options.poll_interval, options.shutdown_timeout, options.worker_timeout) == (7, 8, 90)
    assert options.seconds_between_heartbeats == 5
    assert worker_options("--worker-timeout", "4").seconds_between_heartbeats == 1


# Variable: its value, the field of `WorkerOptions` that it sets, the value of this field.
ENVIRONMENT = {
    "SKIPQUEUE_QUEUES": ("a,b", "queue_names", ("a", "b")),
    "SKIPQUEUE_CONCURRENCY": ("9", "concurrency", 9),
    "SKIPQUEUE_PROCESSES": ("3", "processes", 3),
    "SKIPQUEUE_DRAIN": ("1", "drain", True),
    "SKIPQUEUE_MAX_JOBS": ("5", "max_jobs", 5),
    "SKIPQUEUE_POLL_INTERVAL": ("0.5", "poll_interval", 0.5),
    "SKIPQUEUE_NO_LISTEN": ("true", "listen", False),
    "SKIPQUEUE_SHUTDOWN_TIMEOUT": ("3", "shutdown_timeout", 3.0),
    "SKIPQUEUE_WORKER_TIMEOUT": ("20", "worker_timeout", 20.0),
    "SKIPQUEUE_NAME": ("box", "name", "box"),
    "SKIPQUEUE_DATABASE": ("other", "database", "other"),
}


@pytest.mark.parametrize("variable", sorted(ENVIRONMENT))
def test_every_option_can_be_set_in_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, field, expected = ENVIRONMENT[variable]
    monkeypatch.setenv(variable, value)
    assert getattr(worker_options(), field) == expected


def test_an_option_on_the_command_line_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPQUEUE_CONCURRENCY", "9")
    assert worker_options("-c", "2").concurrency == 2


def test_an_empty_variable_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ENVIRONMENT:
        monkeypatch.setenv(variable, "")
    assert worker_options().concurrency == 4


def test_help_warns_of_worker_timeouts_that_differ() -> None:
    text = " ".join(command.Command().create_parser("manage.py", "runworker").format_help().split())
    assert "must be the same for all runworkers on a database" in text


def test_help_names_the_variable_of_each_option() -> None:
    text = command.Command().create_parser("manage.py", "runworker").format_help()
    for variable in [*ENVIRONMENT, "SKIPQUEUE_RELOAD"]:
        assert f"[{variable}]" in " ".join(text.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "0"),
        ("-c", "many"),
        ("-c", "1.5"),
        ("--processes", "-1"),
        ("--max-jobs", "0"),
        ("--poll-interval", "0"),
        ("--poll-interval", "nan"),
        ("--worker-timeout", "0"),
        ("--worker-timeout", "inf"),
        ("--shutdown-timeout", "-1"),
        ("--shutdown-timeout", "soon"),
        ("-c", "99999999999999999999"),
        ("-c", "10001"),
        ("--max-jobs", "1" * 30),
        ("--poll-interval", "1e9"),
        ("-q", " , "),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_option(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match=r"--(concurrency|processes|max-jobs|poll|worker-timeout|shutdown|queues)\b"):
        worker_options(*arguments)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("SKIPQUEUE_CONCURRENCY", "lots", "SKIPQUEUE_CONCURRENCY = 'lots' is not an integer from 1 to 10,000"),
        (
            "SKIPQUEUE_WORKER_TIMEOUT",
            "0",
            "SKIPQUEUE_WORKER_TIMEOUT = '0' is not a number of seconds from 1 to 1,209,600",
        ),
        ("SKIPQUEUE_QUEUES", ",", "SKIPQUEUE_QUEUES"),
        (
            "SKIPQUEUE_DRAIN",
            "maybe",
            "SKIPQUEUE_DRAIN must be one of 1, on, true, yes \\(on\\) or 0, .* \\(off\\), not 'maybe'",
        ),
        ("SKIPQUEUE_RELOAD", "2", "SKIPQUEUE_RELOAD must be one of"),
    ],
)
@pytest.mark.usefixtures("package_logger")
def test_a_wrong_variable_of_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(CommandError, match=expected):
        call_command("runworker", "--database", "nosuch")


@pytest.mark.parametrize("value", ["0", "false", "no", "off"])
def test_a_flag_can_be_switched_off_in_the_environment(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SKIPQUEUE_DRAIN", value)
    assert worker_options().drain is False


@uses_database
def test_runworker_warns_of_a_queue_that_nothing_uses(runworker: RunWorker) -> None:
    jobs.noop.using(queue_name="busy").defer()
    process = runworker("--drain", "--queues", "a b,busy,default")
    assert process.wait() == 0
    [warning] = [warning for warning in process.log.splitlines() if "queue unknown" in warning]
    assert 'queue="a b" hint="no task and no unfinished job has this queue" known="busy, default' in warning


# When the command cannot run


SQLITE = 'DATABASES["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}'
UNREACHABLE = 'DATABASES["default"] = {**DATABASES["default"], "HOST": "/nonexistent", "OPTIONS": {}}'
UNMIGRATED = 'DATABASES["default"] = {**DATABASES["default"], "NAME": "postgres"}'


@uses_database
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"settings": SQLITE}, "needs PostgreSQL"),
        ({"settings": UNREACHABLE}, "cannot be reached"),
        ({"settings": UNMIGRATED}, "manage.py migrate django_skipqueue"),
        ({"skipqueue": {"WORKER_TIMEOUT": "long"}}, "SKIPQUEUE['WORKER_TIMEOUT']"),
        ({"skipqueue": {"WORKER_TIMOUT": 60}}, "Did you mean 'WORKER_TIMEOUT'?"),
        ({"skipqueue": {"DATABASE": "nosuch"}}, "nosuch"),
    ],
    ids=["sqlite", "unreachable", "unmigrated", "wrong type", "unknown key", "unknown alias"],
)
@pytest.mark.parametrize("command_name", ["runworker", "prunejobs"])
def test_a_command_that_cannot_start_prints_one_error_without_a_traceback(
    manage: RunWorker, command_name: str, options: dict[str, Any], expected: str
) -> None:
    process = manage(command_name, **options)
    assert process.wait() == 1
    assert expected in process.log
    assert "Traceback" not in process.log


@uses_database
@pytest.mark.parametrize("command_name", ["runworker", "prunejobs"])
def test_an_unknown_database_is_reported_without_a_traceback(manage: RunWorker, command_name: str) -> None:
    process = manage(command_name, "--database", "nosuch")
    assert process.wait() == 1
    assert "'nosuch'" in process.log
    assert "Traceback" not in process.log
    assert len(process.log.strip().splitlines()) == 1


# Output and log lines


@uses_database
def test_runworker_first_logs_its_queues_processes_and_tasks(runworker: RunWorker) -> None:
    process = runworker("--drain", "-q", "a,b", "-c", "3", "--processes", "2", "--name", "box", jobs="")
    assert process.wait() == 0
    first_lines = process.log.splitlines()[:5]
    text = "\n".join(first_lines)
    for expected in (
        "django_skipqueue 0.",
        "box serves queues a, b",
        "2 processes, 3 jobs at once in each, on database ",
        "'default'",
        " tasks: ",
        " more\n",
        "NOTIFY",
        "every 2 s",
        "Ctrl-C or SIGTERM",
    ):
        assert expected in text


@uses_database
def test_log_lines_say_what_happened_to_a_job_without_its_arguments(runworker: RunWorker) -> None:
    jobs.echo.defer("very secret")
    jobs.ask_for_retry.defer(0)
    jobs.discard.defer()
    jobs.fail.using(max_attempts=1).defer("boom")
    process = runworker("--drain", "-v", "2")
    assert process.wait() == 0
    for expected in (
        r"INFO +job completed task=tests\.app\.jobs\.echo id=\d+ attempt=1/10 ran=<?[\d.]+m?s waited=<?[\d.]+m?s$",
        r"WARNING +job retrying task=tests\.app\.jobs\.ask_for_retry id=\d+ attempt=1/3 .* retry_in=0s error=",
        r'WARNING +job discarded task=tests\.app\.jobs\.discard .* error="no longer wanted"',
        r'ERROR +job failed task=tests\.app\.jobs\.fail .* error="ValueError: boom"',
        r"DEBUG +job started task=tests\.app\.jobs\.echo",
    ):
        assert re.search(expected, process.log, re.MULTILINE), expected
    assert "secret" not in process.log


@uses_database
def test_no_name_of_a_task_can_forge_a_log_line(runworker: RunWorker) -> None:
    Job.objects.enqueue("evil\n00:00:00 ERROR   forged\x1b[31m\u2028line", max_attempts=1)
    jobs.fail.using(max_attempts=1).defer("first\nforged by an error")
    process = runworker("--drain", skipqueue={"UNKNOWN_TASK_GRACE": 0.0001})
    assert process.wait() == 0
    assert "evil\N{REPLACEMENT CHARACTER}" in process.log
    assert not re.search(r"^00:00:00", process.log, re.MULTILINE)
    assert not re.search(r"^forged", process.log, re.MULTILINE)
    assert "\x1b" not in process.log
    assert "\u2028" not in process.log


@uses_database
def test_the_projects_own_logging_gets_the_figures_as_extra_fields(runworker: RunWorker) -> None:
    settings = """
        import json, logging

        class Lines(logging.Formatter):
            def format(self, record):
                names = ("event", "job_id", "task", "queue_name", "attempt", "duration_ms", "wait_ms")
                names += ("worker_id", "worker_name", "args")
                return json.dumps({name: getattr(record, name, None) for name in names[:-1]}
                                  | {"logger": record.name, "message": record.getMessage()})

        LOGGING = {
            "version": 1,
            "formatters": {"lines": {"()": Lines}},
            "handlers": {"lines": {"class": "logging.StreamHandler", "formatter": "lines"}},
            "loggers": {"django_skipqueue": {"handlers": ["lines"], "level": "INFO"}},
        }
    """
    job = jobs.add.using(queue_name="q").defer(1)
    process = runworker("--drain", "--name", "w", settings=settings)
    assert process.wait() == 0
    lines = [json.loads(line) for line in process.log.splitlines()]
    assert all(line["logger"].startswith("django_skipqueue") for line in lines)
    assert all(line["event"] for line in lines)
    (job_line,) = [line for line in lines if line["job_id"]]
    assert (job_line["event"], job_line["job_id"], job_line["task"]) == ("job_completed", job.pk, "tests.app.jobs.add")
    assert (job_line["queue_name"], job_line["attempt"], job_line["worker_name"]) == ("q", 1, "w/1")
    (start_line,) = [line for line in lines if line["event"] == "worker_started"]
    assert start_line["worker_id"] == job_line["worker_id"]
    assert job_line["duration_ms"] >= 0
    assert job_line["wait_ms"] >= 0


@uses_database
def test_signal_receivers_that_raise_or_are_slow_do_not_stop_jobs(runworker: RunWorker) -> None:
    jobs.noop.defer_many([()] * 100)
    jobs.fail.defer()
    process = runworker(
        "--drain",
        jobs="""
            import time
            from django_skipqueue import signals

            def broken(**event):
                raise RuntimeError("broken receiver")

            def slow(**event):
                time.sleep(0.01)

            for signal in (signals.job_started, signals.job_retrying, signals.job_failed, signals.worker_started):
                signal.connect(broken)
            signals.job_completed.connect(slow)
        """,
    )
    assert process.wait() == 0
    assert statuses() == {"completed": 100, "failed": 1}
    assert "broken receiver" in process.log


@uses_database
def test_processes_that_fork_share_no_connection_pool(runworker: RunWorker) -> None:
    pytest.importorskip("psycopg_pool")
    jobs.record.defer_many([{"entry": str(number)} for number in range(200)])
    pool = 'DATABASES["default"].setdefault("OPTIONS", {})["pool"] = True'
    assert runworker("--drain", "--processes", "3", settings=pool).wait() == 0
    assert statuses() == {"completed": 200}
    assert Ledger.objects.count() == 200


@pytest.mark.usefixtures("package_logger")
def test_call_command_refuses_an_unknown_database(settings: Any) -> None:
    with pytest.raises(CommandError, match="nosuch"):
        call_command("runworker", "--database", "nosuch")
    assert "nosuch" not in connections

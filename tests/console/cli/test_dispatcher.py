"""`manage.py skipqueue`: how it calls its subcommands, its exit codes, and what it writes to stdout and stderr."""

import argparse
import os
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import BaseCommand, CommandError, call_command
from django.test import override_settings

from django_skipqueue.conf import settings
from django_skipqueue.console.cli.subcommand import Alias, Exit, Watchable
from django_skipqueue.management.commands.skipqueue import Command, subcommands
from django_skipqueue.models import Job, Queue

from ...app.rows import make_job
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def test_skipqueue_needs_a_subcommand() -> None:
    with pytest.raises(CommandError, match="Give a subcommand: alerts, batches, cancel, "):
        call_command("skipqueue")


def test_the_subcommand_worker_runs_runworker_with_its_options(manage: Callable[..., Any]) -> None:
    job = make_job()
    worker = manage("skipqueue", "worker", "--drain", "--name", "night", "-v", "2")
    assert worker.wait() == 0
    assert "night serves" in worker.log
    job.refresh_from_db()
    assert job.status == "completed"


def test_the_command_needs_neither_django_tasks_nor_celery(manage: Callable[..., Any]) -> None:
    """Django 5.2 has no `django.tasks`, and its backport is an optional dependency."""
    hide_frameworks = "import sys; sys.modules |= dict.fromkeys(['django_tasks', 'django.tasks', 'kombu', 'celery'])"
    process = manage("skipqueue", "status", settings=hide_frameworks)
    assert process.wait() == 0, process.log


@pytest.mark.parametrize("subcommand", [subcommand.name for subcommand in Command.subcommands])
def test_each_subcommand_takes_the_options_of_django(subcommand: str) -> None:
    parser = Command().create_parser("manage.py", "skipqueue")
    django_options = {
        option for action in BaseCommand().create_parser("", "")._actions for option in action.option_strings
    }
    [subparsers] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    options = {option for action in subparsers.choices[subcommand]._actions for option in action.option_strings}
    assert options >= django_options


def test_the_options_of_django_may_stand_on_both_sides_of_the_subcommand(manage: Callable[..., Any]) -> None:
    options = ["--settings", "process_settings", "--pythonpath", ".", "--skip-checks", "--traceback", "-v", "2"]
    make_job()
    for arguments in (["status", *options, "--force-color"], [*options, "--force-color", "status"]):
        process = manage("skipqueue", *arguments)
        assert process.wait() == 0, process.log
        assert "\x1b[31mno worker serves it" in process.log
    process = manage("skipqueue", "status", "--no-color", "--verbosity", "0")
    assert process.wait() == 0, process.log
    assert "\x1b" not in process.log


WATCHABLE_SUBCOMMANDS = {subcommand.name for subcommand in Command.subcommands if isinstance(subcommand, Watchable)}


def test_the_option_watch_repeats_lists_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    required_arguments = {"show": [make_job().pk]}
    sleeps: list[float] = []

    def interrupt_every_second_sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("django_skipqueue.console.cli.subcommand.sleep", interrupt_every_second_sleep)
    assert {"alerts", "batches", "doctor", "limits", "list", "schedules", "show", "status"} <= WATCHABLE_SUBCOMMANDS
    for name in sorted(WATCHABLE_SUBCOMMANDS):
        single_run = skipqueue(name, *required_arguments.get(name, ()), "--json")
        watched_run = skipqueue(name, *required_arguments.get(name, ()), "--json", "--watch", "3s")
        assert watched_run.code == single_run.code, name
        assert len(watched_run.objects) == 2 * len(single_run.objects), name
        assert len(watched_run.err.splitlines()) == 2 * len(single_run.err.splitlines()), name
    assert set(sleeps) == {3.0}


def test_a_subcommand_that_changes_something_has_no_option_watch() -> None:
    assert skipqueue("schedules", "run", "x", "--watch").code == Exit.USAGE


def test_runrelay_and_import_tasks_are_subcommands_as_well(manage: Callable[..., Any]) -> None:
    relay = manage("skipqueue", "relay")
    assert relay.wait() == 1
    assert "CARRIERS" in relay.log
    tasks = manage("skipqueue", "import-tasks", "--dry-run")
    assert tasks.wait() == 1
    assert "SkipQueueBackend" in tasks.log


def test_prune_does_what_prunejobs_does() -> None:
    make_job("completed", finished_at="2020-01-01T00:00Z")
    assert skipqueue("prune").out == "Deleted 1 jobs: 1 completed.\n"


def test_an_unreachable_database_is_reported_in_one_sentence(manage: Callable[..., Any]) -> None:
    process = manage("skipqueue", "status", settings="DATABASES['default']['PORT'] = 1")
    assert process.wait() == 1
    assert "CommandError: The database 'default' cannot be reached: " in process.log
    assert "Traceback" not in process.log


def test_a_database_that_is_not_postgresql_is_refused(manage: Callable[..., Any]) -> None:
    process = manage("skipqueue", "status", settings="SKIPQUEUE = {'DATABASE': 'nosuch'}")
    assert process.wait() == 1
    assert "DATABASES has no alias 'nosuch'" in process.log


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_each_subcommand_takes_the_database() -> None:
    job, job_in_default = make_job("failed", using="other"), make_job("failed")
    listed = skipqueue("list", "--failed", "--json", "--database", "other").objects
    assert [listed_job["id"] for listed_job in listed] == [job.pk]
    assert skipqueue("retry", job.pk, "--database", "other").code == 0
    assert (Job.objects.using("other").get().status, Job.objects.get().status) == ("queued", "failed")
    assert skipqueue("pause", "mail", "--database=other").code == 0
    assert (Queue.objects.using("other").paused().count(), Queue.objects.paused().count()) == (1, 0)
    assert skipqueue("defer", "tests.app.jobs.noop", "--database=other").code == 0
    assert (Job.objects.using("other").count(), Job.objects.count()) == (2, 1)
    for subcommand in ("status", "doctor", "health"):
        assert skipqueue(subcommand, "--database", "other").code in (Exit.DONE, Exit.NEGATIVE)
    assert skipqueue("reindex", "--dry-run", "--database", "other").code == 0
    assert settings.database == "default"
    assert job_in_default.status == "failed"


@pytest.mark.parametrize(
    "subcommand", [subcommand.name for subcommand in subcommands() if not isinstance(subcommand, Alias)]
)
def test_an_unknown_database_is_reported_in_one_sentence(subcommand: str) -> None:
    required_arguments: dict[str, list[str]] = {"defer": ["x"], "show": ["1"], "pause": ["q"], "resume": ["q"]}
    required_arguments |= {"postpone": ["1", "--for", "1h"], "reschedule": ["1", "--to", "1h"]}
    required_arguments |= {"change-queue": ["1", "--to", "q"], "change-priority": ["1", "--to", "1"]}
    required_arguments |= {"signal": ["1", "--name", "go"], "retry-from": ["1", "--step", "book"]}
    required_arguments |= {"run-again-from": ["1", "--step", "book"]}
    result = skipqueue(subcommand, *required_arguments.get(subcommand, ()), "--database", "nosuch")
    assert result.code == Exit.ERROR
    assert "DATABASES has no alias 'nosuch'" in result.err


def test_a_wrong_option_is_a_usage_error(manage: Callable[..., Any]) -> None:
    process = manage("skipqueue", "status", "--nosuch")
    assert process.wait() == 2
    assert "usage:" in process.log


@override_settings(SKIPQUEUE={"DATABASE": "nosuch"})
def test_call_command_raises_command_error() -> None:
    with pytest.raises(CommandError, match="'nosuch'"):
        call_command("skipqueue", "status")


def test_a_closed_pipe_ends_the_command_without_a_traceback() -> None:
    """In `skipqueue list | head`, `head` closes the pipe early."""
    make_job()
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as out, pytest.raises(SystemExit) as ended:
        call_command("skipqueue", "list", stdout=out)
    assert ended.value.code == Exit.UNREAD


@pytest.mark.parametrize("arguments", [("list", "--queue"), ("health", "--name")])
def test_an_argument_that_is_not_utf_8_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    """If bytes of an argument are not UTF-8, Python represents them as surrogates."""
    result = skipqueue(*arguments, "\udcff")
    assert (result.code, result.err.count("\n")) == (Exit.USAGE, 1)
    assert "surrogates not allowed" in result.err


def test_a_name_from_a_row_cannot_control_the_terminal() -> None:
    for number in range(3):
        make_job(queue_name=f"\x1b[2J{number}", task=f"x\n\x1b]0;{number}")
    for option in ("--queue", "--task"):
        result = skipqueue("list", option, "qqqqqq")
        assert result.code == Exit.ERROR
        assert result.err.rstrip("\n").isprintable()
    result = skipqueue("pause", "\x1b[2J1")
    assert result.err.rstrip("\n").isprintable()

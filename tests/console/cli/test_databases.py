"""The command line with several databases: a command runs in all of them, or in that of a handle such as `other:7`."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError

from django_skipqueue.conf import using_database
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Job, Queue

from ...app.jobs import noop
from ...harness.reached import NOBODY, reached_at
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ("default", "other")


@pytest.fixture(autouse=True)
def two_databases(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": BOTH}


@pytest.fixture
def jobs_with_equal_ids() -> dict[str, Job]:
    """Make a discarded job in each database, all with the same id."""
    jobs = {}
    for alias in BOTH:
        jobs[alias] = noop.using(database=alias).defer()
        Job.objects.using(alias).filter(pk=jobs[alias].pk).update(id=7)
        jobs[alias] = Job.objects.using(alias).get(pk=7)
        jobs[alias].discard()
    return jobs


@pytest.fixture
def other_is_down() -> Iterator[None]:
    """Make the database `other` unreachable."""
    with reached_at("other", NOBODY):
        yield


def statuses() -> list[str]:
    return [Job.objects.using(alias).get(pk=7).status for alias in BOTH]


def test_status_and_lists_show_all_databases(jobs_with_equal_ids: dict[str, Job]) -> None:
    for command in (["status"], ["list", "--status", "discarded"], ["doctor"]):
        out = skipqueue(*command).out
        assert out.index("Database default") < out.index("Database other")
    listed = [json.loads(line) for line in skipqueue("list", "--status", "discarded", "--json").out.splitlines()]
    assert [(listed_job["database"], listed_job["id"]) for listed_job in listed] == [("default", 7), ("other", 7)]


def test_the_option_database_names_one_database() -> None:
    assert "Database" not in skipqueue("status", "--database", "other").out


def test_a_handle_names_the_job_of_one_database(jobs_with_equal_ids: dict[str, Job]) -> None:
    skipqueue("retry", "other:7")
    assert statuses() == ["discarded", "queued"]
    skipqueue("retry", "7", "--database", "default")
    assert statuses() == ["queued", "queued"]
    out = skipqueue("show", "other:7", "default:7").out
    assert out.index("Database other") < out.index("Database default")


@pytest.mark.parametrize("command", [["retry", "7"], ["retry", "other:7", "7"], ["show", "#7"]])
def test_an_id_without_a_database_is_refused(jobs_with_equal_ids: dict[str, Job], command: list[str]) -> None:
    result = skipqueue(*command)
    assert (result.code, statuses()) == (Exit.USAGE, ["discarded", "discarded"])
    assert "Use default:7 or other:7, or --database" in result.err


def test_list_and_show_print_handles_of_jobs(jobs_with_equal_ids: dict[str, Job]) -> None:
    assert {"default:7", "other:7"} < set(skipqueue("list", "--status", "discarded").out.split())
    assert "Job other:7: " in skipqueue("show", "other:7").out


def test_a_verb_with_a_filter_changes_jobs_in_all_databases(jobs_with_equal_ids: dict[str, Job]) -> None:
    result = skipqueue("retry", "--status", "discarded", "--yes", "--all")
    assert (result.code, statuses()) == (0, ["queued", "queued"])


def test_list_exits_with_3_only_if_no_database_has_a_match(jobs_with_equal_ids: dict[str, Job]) -> None:
    jobs_with_equal_ids["other"].retry()
    assert skipqueue("list", "--status", "discarded").code == 0
    assert skipqueue("list", "--status", "failed").code == 3
    assert skipqueue("health").code == 3


def test_a_verb_changes_jobs_in_the_other_database_while_one_is_down(
    jobs_with_equal_ids: dict[str, Job], other_is_down: None
) -> None:
    result = skipqueue("retry", "--status", "discarded", "--yes", "--all")
    assert result.code == Exit.ERROR
    assert "other: The database 'other' cannot be reached" in result.err
    assert Job.objects.get(pk=7).status == "queued"


@pytest.mark.parametrize("command", [["status"], ["alerts"], ["doctor"], ["limits"]])
def test_status_shows_the_numbers_of_the_reachable_databases(
    other_is_down: None, settings: Any, command: list[str]
) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("other", "default")}
    noop.using(database="default").defer()
    result = skipqueue(*command, "--json")
    assert result.code == Exit.ERROR
    # Without limits, `limits` prints no object.
    assert "default" in [report["database"] for report in result.objects] or command == ["limits"]


def test_the_doctor_has_a_finding_for_a_database_that_is_down(other_is_down: None) -> None:
    codes = {
        report["database"]: [finding["code"] for finding in report["findings"]]
        for report in skipqueue("doctor", "--json").objects
    }
    assert codes["other"] == ["database-unusable"]
    assert "autovacuum" in codes["default"]


def test_a_queue_is_paused_and_resumed_in_all_databases(jobs_with_equal_ids: dict[str, Job]) -> None:
    paused_queues = [Queue.objects.using(alias).paused() for alias in BOTH]
    skipqueue("pause", "mail")
    assert [queues.count() for queues in paused_queues] == [1, 1]
    assert Queue.resume("mail")
    assert [queues.all().count() for queues in paused_queues] == [0, 0]
    Queue.pause("mail", database="other")
    assert [queues.all().count() for queues in paused_queues] == [0, 1]
    with using_database("default"):
        assert not Queue.resume("mail")
        Queue.pause("post")
    assert [queues.all().count() for queues in paused_queues] == [1, 1]


def test_a_pause_names_the_database_in_which_the_queue_was_not_paused(other_is_down: None) -> None:
    with pytest.raises(OperationalError) as raised:
        Queue.pause("mail")
    assert raised.value.__notes__ == ["Nothing was done in the database other. Repeat it there."]
    assert Queue.objects.paused().count() == 1


def test_defer_puts_a_job_into_the_database_that_the_placement_chooses(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": BOTH, "PLACEMENT": lambda call: "other"}
    assert skipqueue("defer", noop.name).out.startswith("other:")
    assert skipqueue("defer", noop.name, "--database", "default").out.startswith("default:")


def test_an_argument_that_is_no_id_of_a_job_is_refused() -> None:
    for text in (":7", "other:", "other:x"):
        assert f"'{text}' is not the id of a job" in skipqueue("retry", text).err


def test_prunejobs_prunes_all_reachable_databases(other_is_down: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="'other' cannot be reached"):
        call_command("prunejobs")
    assert capsys.readouterr().out.startswith("default: ")

"""`skipqueue verdict`, and the verdict before the output of other commands."""

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Incident

from ...app.rows import make_job, make_worker
from ...harness.languages import use_translations
from ...harness.reached import NOBODY, reached_at
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def test_without_problems_the_verdict_exits_with_0() -> None:
    make_worker()
    result = skipqueue("verdict")
    assert (result.code, result.out, result.err) == (0, "All is well.\n", "")


def test_advice_and_a_command_are_printed_below_each_problem() -> None:
    make_worker(name="w", queues=["other"], heartbeat=timedelta(seconds=-40))
    make_job(queue_name="re ports")
    result = skipqueue("verdict")
    assert result.code == Exit.NEGATIVE
    first, *others = result.out.splitlines()
    assert first.startswith("CRITICAL: No worker serves queue re ports: 1 job has waited since ")
    assert others[:3] == [
        "    Start a worker for it.",
        "    python manage.py runworker --queues 're ports'",
        "WARNING: The worker w is late with its heartbeat.",
    ]
    assert others[3].startswith("    ")


def test_the_verdict_says_how_long_a_problem_has_lasted() -> None:
    make_job()
    Incident.objects.create(rule="no-worker", subject="", since="2026-01-01T00:00Z")
    assert skipqueue("verdict").out.startswith("CRITICAL: No worker is alive, and jobs wait (has lasted ")


def test_the_verdict_is_printed_as_json_in_english(settings: Any, tmp_path: Any) -> None:
    use_translations(settings, tmp_path, {"No worker is alive, and jobs wait": "Neniu laboristo"})
    make_job()
    (verdict,) = skipqueue("verdict", "--json").objects
    (problem,) = verdict["problems"]
    assert verdict["is_well"] is False
    assert (problem["code"], problem["severity"]) == ("no-worker", "critical")
    assert problem["title"] == "No worker is alive, and jobs wait"


def test_a_critical_problem_is_red_on_a_terminal() -> None:
    make_job()
    assert skipqueue("verdict", "--force-color").out.startswith("\x1b[31mCRITICAL: ")


def test_the_status_begins_with_the_verdict() -> None:
    make_job()
    assert skipqueue("status").out.startswith(
        "CRITICAL: No worker is alive, and jobs wait.\n    Start a worker.\n    python "
    )
    (status,) = skipqueue("status", "--json").objects
    assert status["verdict"]["problems"][0]["code"] == "no-worker"
    make_worker()
    assert skipqueue("status").out.startswith("All is well.\n")


def test_watch_prints_the_verdict_again_until_ctrl_c(manage: Callable[..., Any]) -> None:
    make_worker()
    process = manage("skipqueue", "verdict", "--watch", "0.2s")
    process.wait_for("All is well.", times=2)
    make_worker(queues=["other"])
    process.send(signal.SIGINT)
    assert process.wait() == 0
    assert "Traceback" not in process.log


def test_names_with_escape_sequences_cannot_control_the_terminal() -> None:
    make_worker(queues=["other"])
    make_job(queue_name="\x1b[31mred")
    assert skipqueue("verdict").out.replace("\n", "").isprintable()


def test_the_verdict_exits_with_1_if_the_database_cannot_be_reached() -> None:
    with reached_at("default", NOBODY):
        result = skipqueue("verdict")
    assert result.code == 1
    assert "The queue's database cannot be used" in result.out


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_verdict_exits_with_3_if_one_of_two_databases_has_a_problem(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}
    make_worker()
    result = skipqueue("verdict", "--json")
    assert result.code == 3
    assert [(verdict["database"], verdict["is_well"]) for verdict in result.objects] == [
        ("default", True),
        ("other", False),
    ]
    make_worker(using="other")
    assert skipqueue("verdict").code == 0

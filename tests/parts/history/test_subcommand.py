"""The subcommand `skipqueue failures`."""

from typing import Any

import pytest

from django_skipqueue.parts.history.causes import failing_causes, failures_of
from django_skipqueue.parts.history.rollups import WORKER_DIED
from django_skipqueue.values.records import Cause
from django_skipqueue.values.redaction import MASK

from ...app.failing import BAD_VALUE, UNAVAILABLE, make_failing
from ...app.rows import DEFAULT
from ...console.cli.running import skipqueue
from .failing import record_ended_attempts, record_failures
from .past import record_attempts

HOUR = 3_600.0

pytestmark = pytest.mark.django_db(transaction=True)

TRACEBACK = "Traceback (most recent call last):\n  hunter2\nValueError: no"


@pytest.fixture(autouse=True)
def _causes() -> None:
    """Count a cause that fails now, and a cause that has stopped."""
    entry = {"exception": BAD_VALUE.exception, "place": BAD_VALUE.place, "message": "no hunter2\x1b[31m"}
    job = make_failing(BAD_VALUE, kwargs={"password": "hunter2"}, errors=[entry | {"traceback": TRACEBACK}])
    record_failures(BAD_VALUE, 3, seconds_ago=2 * HOUR)
    record_failures(BAD_VALUE, 1_234, job_id=job.pk)
    record_failures(UNAVAILABLE, seconds_ago=24 * 60)
    record_ended_attempts(UNAVAILABLE.task)
    record_ended_attempts(UNAVAILABLE.task, seconds_ago=120)


def key_of(cause: Any = BAD_VALUE) -> str:
    counts = failures_of(DEFAULT, cause)
    assert counts is not None
    return counts.key


def listed_keys(*arguments: str) -> list[str]:
    return [key for key, *_ in skipqueue("failures", *arguments).rows]


def test_the_subcommand_lists_the_causes_as_the_page_does() -> None:
    result = skipqueue("failures")
    assert result.code == 0
    headings, failing, stopped = result.out.splitlines()
    assert headings.split()[:2] == ["key", "standing"]
    assert failing.split()[:5] == [key_of(), "failing", "1,234", "1,237", "1,237"]
    assert f"ValueError: no {MASK}" in failing
    assert f"in {BAD_VALUE.place}:42" in failing
    assert "\x1b" not in failing
    assert stopped.split()[:2] == [key_of(UNAVAILABLE), "stopped"]
    assert "24 min ago" in stopped


def test_the_subcommand_lists_the_causes_of_a_task_or_of_a_time() -> None:
    assert listed_keys("--task", UNAVAILABLE.task) == [key_of(UNAVAILABLE)]
    assert listed_keys("--since", "15m") == [key_of()]
    assert listed_keys("--since", "2020-01-01") == [key_of(), key_of(UNAVAILABLE)]
    result = skipqueue("failures", "--limit", 1)
    assert [key for key, *_ in result.rows] == [key_of()]
    assert "There are 2 causes; --limit shows more." in result.err
    result = skipqueue("failures", "--task", "gone.jobs.gone")
    assert (result.code, result.out, result.err) == (3, "", "No attempt failed in this time.\n")


def test_skipqueue_failures_can_print_json(settings: Any) -> None:
    settings.SKIPQUEUE = {"DEPLOYMENT": "4f2a"}
    record_failures(BAD_VALUE)
    failing, stopped = skipqueue("failures", "--json").objects
    expected = {"standing": "failing", "task": BAD_VALUE.task, "exception": BAD_VALUE.exception, "in_10_minutes": 1_235}
    assert {name: failing[name] for name in expected} == expected
    assert (failing["first_deployment"], failing["last_deployment"]) == ("", "4f2a")
    assert sum(failing["by_hour"].values()) == 1_238
    assert (stopped["standing"], stopped["message"], stopped["acknowledged_at"]) == ("stopped", None, None)


def test_the_subcommand_shows_a_cause_with_its_hours_and_its_traceback() -> None:
    result = skipqueue("failures", key_of()[:5])
    assert result.code == 0
    assert "hunter2" not in result.out
    for expected in (BAD_VALUE.task, "1,234 in 10 min", f"ValueError: no {MASK}", "Traceback", f"  {MASK}"):
        assert expected in result.out
    assert [line.split()[-1] for line in result.out.splitlines() if ":00:00 " in line] == ["3", "1,234"]
    (cause_as_json,) = skipqueue("failures", key_of(), "--json").objects
    assert cause_as_json["traceback"] == TRACEBACK.replace("hunter2", MASK)
    (cause_as_json,) = skipqueue("failures", key_of(UNAVAILABLE), "--json").objects
    assert cause_as_json["traceback"] is None


def test_the_subcommand_acknowledges_a_cause_and_takes_the_acknowledgement_back() -> None:
    result = skipqueue("failures", key_of(), "--acknowledge", "--note", "ticket 12")
    assert (result.code, result.err) == (0, f"Cause {key_of()} is acknowledged.\n")
    *_, counts = failing_causes(DEFAULT, limit=10)
    assert (counts.cause, counts.is_acknowledged, counts.note) == (BAD_VALUE, True, "ticket 12")
    assert "@" in counts.acknowledged_by
    assert f"by {counts.acknowledged_by}: ticket 12" in skipqueue("failures", key_of()).out
    result = skipqueue("failures", key_of(), "--take-back")
    assert (result.code, result.err) == (0, f"Cause {key_of()} is no longer acknowledged.\n")
    result = skipqueue("failures", key_of(), "--take-back")
    assert (result.code, result.err) == (3, f"Cause {key_of()} is not acknowledged.\n")


def test_skipqueue_failures_refuses_options_without_a_cause_and_unknown_keys() -> None:
    for arguments in (["--acknowledge"], ["--take-back"], ["--note", "x"], [key_of(), "--note", "x"]):
        assert skipqueue("failures", *arguments).code == 2
    result = skipqueue("failures", "zzz")
    assert result.code == 1
    assert "No cause of the last 7 days has the key 'zzz'" in result.err
    assert skipqueue("failures", "").code == 1


def test_a_task_whose_worker_died_of_another_task_is_a_bystander() -> None:
    cause_by_task = {name: Cause(name, WORKER_DIED, "") for name in ("shop.jobs.kill", "shop.jobs.push")}
    for task, deaths in (("", 3), ("shop.jobs.kill", 3), ("shop.jobs.push", 2)):
        record_attempts(task, "default" if task else "", deaths=deaths, recovered=deaths)
    for cause in cause_by_task.values():
        record_failures(cause, 2)
    result = skipqueue("failures")
    standings = {key: standing for key, standing, *_ in result.rows}
    key_of_kill, key_of_push = (key_of(cause) for cause in cause_by_task.values())
    assert (standings[key_of_kill], standings[key_of_push]) == ("failing", "bystander")
    assert list(standings.values())[-2:] == ["bystander", "stopped"], "after what fails"
    bystander_text = "A bystander: in all these deaths of workers shop.jobs.kill was running as well."
    assert result.err == f"{bystander_text}\n"
    assert bystander_text in skipqueue("failures", key_of_push).out
    assert [cause["bystander"] for cause in skipqueue("failures", "--json").objects if cause["key"] == key_of_push] == [
        bystander_text
    ]


def test_tasks_that_fail_together_by_a_fault_of_the_database_are_bystanders() -> None:
    database_error = "django.db.utils.OperationalError"
    record_failures(Cause("shop.jobs.one", database_error, ""))
    assert "bystander" not in skipqueue("failures").out
    record_failures(Cause("shop.jobs.two", database_error, ""))
    result = skipqueue("failures")
    assert [standing for _, standing, *_ in result.rows].count("bystander") == 2
    assert "A bystander: 2 tasks have failed with this error of the database." in result.err

"""The subcommand `skipqueue schedules`."""

import re
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Job, Schedule

from ...app.rows import make_job
from ...parts.schedules.rows import make_schedule
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_subcommand_lists_the_schedules() -> None:
    last_job = make_job("completed")
    make_schedule("daily", due=-60, cron="0 9 * * mon-fri", timezone="Europe/Berlin", source="code")
    make_schedule("often", due=-60, last_job_id=last_job.pk, last_run_at=Now() - timedelta(minutes=3))
    make_schedule("paused", paused_at=Now())
    make_schedule("broken", due=100, error="no task", cron="never\n")
    make_schedule("late", due=100)
    make_schedule("gone", due=100, source="code", retired_at=Now())
    result = skipqueue("schedules")
    assert result.code == 0
    line_by_name = {line.split()[0]: line for line in result.out.splitlines()}
    assert list(line_by_name) == ["name", "broken", "daily", "gone", "late", "often", "paused"]
    assert "on time" in line_by_name["daily"]
    assert "at 09:00, Monday to Friday" in line_by_name["daily"]
    assert "Europe/Berlin" in line_by_name["daily"]
    assert "3 min ago" in line_by_name["often"]
    assert f"{last_job.pk} completed" in line_by_name["often"]
    for name, state in (("paused", "paused"), ("broken", "cannot run"), ("late", "late"), ("gone", "no longer")):
        assert state in line_by_name[name]
    assert "broken: no task" in result.err


def test_schedules_print_json() -> None:
    make_schedule("often", due=-60, interval=timedelta(minutes=5))
    [shown_schedule] = skipqueue("schedules", "--json").objects
    assert (shown_schedule["name"], shown_schedule["state"], shown_schedule["interval"]) == ("often", "active", 300.0)
    assert len(shown_schedule["next_runs"]) == 5


def test_the_subcommand_exits_with_3_if_there_is_no_schedule() -> None:
    result = skipqueue("schedules")
    assert (result.code, result.out) == (3, "")
    assert "There are no schedules." in result.err


def test_the_subcommand_runs_a_schedule_now() -> None:
    make_schedule("often", due=-60)
    result = skipqueue("schedules", "run", "often")
    assert result.code == 0
    assert int(result.out) == Job.objects.get().pk == Schedule.objects.get().last_job_id


def test_the_subcommand_pauses_and_resumes_a_schedule() -> None:
    make_schedule("often", due=-60)
    result = skipqueue("schedules", "pause", "often")
    assert (result.code, result.err) == (0, "Schedule often is paused.\n")
    assert "@" in Schedule.objects.get().paused_by
    assert skipqueue("schedules", "pause", "often").code == Exit.NEGATIVE
    assert skipqueue("schedules", "resume", "often").err == "Schedule often is resumed.\n"
    result = skipqueue("schedules", "resume", "often")
    assert (result.code, result.err) == (Exit.NEGATIVE, "Schedule often is not paused.\n")


def test_the_subcommand_refuses_unknown_schedules_and_unknown_tasks() -> None:
    make_schedule("often")
    result = skipqueue("schedules", "run", "oftn")
    assert (result.code, result.err) == (Exit.ERROR, "No schedule is called 'oftn'. Did you mean 'often'?\n")
    assert skipqueue("schedules", "run").code == Exit.USAGE
    make_schedule("broken", task="gone.jobs.gone")
    result = skipqueue("schedules", "run", "broken")
    assert result.code == Exit.ERROR
    assert "No task is registered as 'gone.jobs.gone'" in result.err


def test_the_subcommand_shows_a_schedule_with_its_last_jobs() -> None:
    runs = [make_job("failed", last_error="ValueError: no", attempts=1).pk for _ in range(2)]
    make_schedule("often", due=-60, last_job_id=runs[1], earlier_job_ids=runs[:1], interval=timedelta(minutes=5))
    result = skipqueue("schedules", "often")
    assert result.code == 0
    value_by_label = dict(line.split(maxsplit=1) for line in result.out.splitlines() if line[0] != " ")
    assert (value_by_label["name"], value_by_label["state"]) == ("often", "failing")
    assert value_by_label["fires"] == "every 5 min"
    assert value_by_label["error"] == "ValueError: no"
    assert re.search(rf"^last jobs +job {runs[1]} failed, enqueued .* ValueError: no$", result.out, re.MULTILINE)
    assert re.search(rf"^ +job {runs[0]} failed", result.out, re.MULTILINE)
    (shown_schedule,) = skipqueue("schedules", "often", "--json").objects
    assert [run["id"] for run in shown_schedule["runs"]] == runs[::-1]
    assert skipqueue("schedules", "oftn").err == "No schedule is called 'oftn'. Did you mean 'often'?\n"
    result = skipqueue("schedules", "start", "often")
    assert (result.code, result.err) == (Exit.USAGE, "'start' is no verb for schedules: pause, resume, run.\n")

"""Real supervisors: each time is enqueued exactly once, through `kill -9` at any moment."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from django_skipqueue.models import Job, Schedule

from ...app.waiting import wait_until
from ...harness.processes import ManagePy
from .rows import make_schedule, planned_times_of

pytestmark = pytest.mark.django_db(transaction=True)

JOBS = """
    from datetime import timedelta
    from django_skipqueue import job, periodic

    @periodic(timedelta(seconds=1), name="every second", catch_up="all")
    @job
    def tick() -> None:
        pass
"""


def count_completed(name: str) -> int:
    return Job.objects.filter(status="completed", metadata__schedule__name=name).count()


def enqueued_more_than(number: int) -> Callable[[], bool]:
    return lambda: len(planned_times_of("every second")) > number


def test_schedules_of_code_settings_and_admin_run(runworker: Callable[..., ManagePy]) -> None:
    make_schedule("admin", due=5.0, interval=timedelta(seconds=1))
    settings = {"settings": {"task": "tests.app.jobs.noop", "cron": "* * * * * *"}}
    process = runworker(jobs=JOBS, skipqueue={"PERIODIC": settings})
    wait_until(lambda: min(map(count_completed, ("admin", "settings", "every second"))) >= 2)
    assert set(Schedule.objects.values_list("name", "source")) == {
        ("admin", "admin"),
        ("settings", "settings"),
        ("every second", "code"),
    }
    process.wait_for("schedule fired name=admin task=tests.app.jobs.noop job=")


def test_each_time_is_enqueued_once_whichever_supervisor_is_killed(runworker: Callable[..., ManagePy]) -> None:
    """The test kills the supervisor of one of two deployments at random moments, and starts it again."""
    runworker(jobs=JOBS)
    wait_until(enqueued_more_than(0))
    for _ in range(4):
        killed_supervisor = runworker(jobs=JOBS)
        wait_until(enqueued_more_than(len(planned_times_of("every second"))))
        wait_until(lambda: random.random() < 0.02)
        killed_supervisor.end()
    wait_until(enqueued_more_than(len(planned_times_of("every second"))))
    times = [datetime.fromisoformat(text) for text in planned_times_of("every second")]
    assert len(times) == len(set(times)), "no time is enqueued twice"
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(seconds=1)}, "no time is left out"

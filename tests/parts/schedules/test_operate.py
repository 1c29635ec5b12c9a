"""The verbs of operators for schedules."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now

from django_skipqueue import job
from django_skipqueue.exceptions import InvalidArguments, InvalidOption, SkipQueueError
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Schedule
from django_skipqueue.parts.schedules.events import SchedulePaused, ScheduleResumed
from django_skipqueue.parts.schedules.operate import pause, plan_again, resume, run_now
from django_skipqueue.queue.store import Store

from ...app import jobs
from ...app.rows import make_job
from ...app.sessions import Session
from .rows import STORE, fire_all, jobs_of, make_schedule

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_paused_schedule_does_not_fire_until_it_is_resumed(sent_events: list[Any]) -> None:
    schedule = make_schedule("s", due=3600)
    store = Store("default", send=sent_events.append)
    assert pause(store, schedule.pk, by="anna")
    assert not pause(store, schedule.pk, by="ben")
    assert Schedule.objects.get().paused_by == "anna"
    assert fire_all() == 0
    assert resume(store, schedule.pk, by="ben")
    assert not resume(store, schedule.pk)
    schedule_after = Schedule.objects.get()
    assert (schedule_after.paused_at, schedule_after.paused_by) == (None, "")
    assert sent_events == [SchedulePaused("default", "s", "anna"), ScheduleResumed("default", "s", "ben")]


@pytest.mark.parametrize("times", [{"interval": timedelta(minutes=5)}, {"cron": "*/5 * * * *"}])
def test_times_within_a_pause_are_not_caught_up(times: dict[str, Any]) -> None:
    schedule = make_schedule("s", due=3601, paused_at=Now(), catch_up="all", **times)
    resume(STORE, schedule.pk)
    assert fire_all() == 0
    schedule_after = Schedule.objects.annotate(now=Now()).get()
    assert schedule_after.next_run_at is not None
    assert schedule_after.next_run_at == schedule_after.fire_at
    assert timedelta(0) < schedule_after.next_run_at - schedule_after.now <= timedelta(minutes=5)


def test_resuming_keeps_a_next_time_in_the_future() -> None:
    schedule = make_schedule("s", due=-100, paused_at=Now())
    resume(STORE, schedule.pk)
    assert Schedule.objects.get().next_run_at == schedule.next_run_at


def test_a_schedule_with_an_invalid_row_can_be_resumed() -> None:
    schedule = make_schedule("s", due=100, cron="never", paused_at=Now())
    assert resume(STORE, schedule.pk)
    assert fire_all() == 1
    assert "never" in Schedule.objects.get().error


def test_run_now_enqueues_a_job_and_leaves_the_next_time_as_it_is() -> None:
    schedule = make_schedule("s", due=-100, task="tests.app.jobs.add", args=[1], kwargs={"b": 2}, jitter=600.0)
    job_id = run_now(STORE, schedule.pk)
    (enqueued,) = jobs_of("s")
    assert (enqueued.pk, enqueued.args, enqueued.kwargs, enqueued.status) == (job_id, [1], {"b": 2}, "queued")
    schedule_after = Schedule.objects.get()
    assert (schedule_after.last_job_id, schedule_after.next_run_at) == (job_id, schedule.next_run_at)
    assert schedule_after.last_run_at is not None


def test_run_now_works_for_a_paused_schedule_without_a_next_time() -> None:
    schedule = make_schedule("s", paused_at=Now())
    run_now(STORE, schedule.pk)
    assert len(jobs_of("s")) == 1


def test_run_now_runs_code_of_the_project(registry: Registry) -> None:
    """A web process calls `run_now`, as it calls `.defer()`."""
    job(name="computed", unique_key=lambda: "k")(jobs.noop.function)
    run_now(STORE, make_schedule("s", task="computed").pk)
    assert jobs_of("s")[0].unique_key == "k"


def test_run_now_raises_an_error_that_says_why_the_schedule_cannot_run() -> None:
    busy = make_schedule("busy", overlap="skip", last_job_id=make_job("running").pk)
    with pytest.raises(InvalidOption, match="is still unfinished, and this schedule does not overlap jobs"):
        run_now(STORE, busy.pk)
    with pytest.raises(SkipQueueError, match=r"No task is registered as 'gone\.jobs\.gone'"):
        run_now(STORE, make_schedule("gone", task="gone.jobs.gone").pk)
    with pytest.raises(InvalidArguments):
        run_now(STORE, make_schedule("wrong", kwargs={"a": 1}).pk)
    with pytest.raises(InvalidOption, match="no longer exists"):
        run_now(STORE, 4711)


def test_run_now_is_refused_if_another_job_holds_the_unique_key(registry: Registry) -> None:
    job(name="report", unique_key="k")(jobs.noop.function)
    make_job(unique_key="k")
    with pytest.raises(InvalidOption, match="holds the unique key 'k'"):
        run_now(STORE, make_schedule("s", task="report").pk)


def test_a_supervisor_does_not_fire_a_schedule_while_run_now_runs_it(session: Callable[[], Session]) -> None:
    schedule = make_schedule("s", due=1, overlap="skip")
    with transaction.atomic():
        run_now(STORE, schedule.pk)
        assert session()(fire_all) == 0
    fire_all()
    assert len(jobs_of("s")) == 1, "the job of `run_now` is unfinished"


def test_an_edited_schedule_gets_another_next_time() -> None:
    schedule = make_schedule("s", due=1, error="no")
    next_time = plan_again(STORE, schedule.pk)
    schedule_after = Schedule.objects.get()
    assert schedule_after.next_run_at == schedule_after.fire_at == next_time
    assert schedule_after.error == ""
    assert plan_again(STORE, 4711) is None

"""Supervisors fire schedules: each time is enqueued once, whatever happens, and a bad row stops no other schedule."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now
from django.test import override_settings

from django_skipqueue import job, unique_by
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Schedule
from django_skipqueue.parts.schedules import fire as fire_module
from django_skipqueue.parts.schedules import operate
from django_skipqueue.parts.schedules.events import ScheduleFailed
from django_skipqueue.parts.schedules.fire import MISSED_SECONDS, MOST_CAUGHT_UP, Skip, fire
from django_skipqueue.queue.store import Store
from django_skipqueue.values.redaction import MASK

from ...app import jobs
from ...app.rows import FINISHED, make_job
from ...app.sessions import Session
from .rows import STORE, fire_all, jobs_of, let_time_pass, make_schedule, planned_times_of, write_columns

pytestmark = pytest.mark.django_db(transaction=True)


def now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        (moment,) = cursor.fetchone()
        assert isinstance(moment, datetime)
        return moment


# The enqueued job


def test_a_schedule_that_is_due_enqueues_its_job_and_says_when_the_next_one_is() -> None:
    schedule = make_schedule("s", due=1, task="tests.app.jobs.add", args=[1], kwargs={"b": 2})
    assert fire(STORE, digests=(), skipped=())
    (enqueued,) = jobs_of("s")
    assert (enqueued.task, enqueued.args, enqueued.kwargs, enqueued.status) == (
        "tests.app.jobs.add",
        [1],
        {"b": 2},
        "queued",
    )
    assert schedule.next_run_at is not None
    planned_at = schedule.next_run_at.astimezone(UTC).isoformat()
    assert enqueued.metadata == {"schedule": {"name": "s", "planned_at": planned_at, "every": 300.0}}
    schedule_after = Schedule.objects.get()
    assert schedule_after.next_run_at == schedule_after.fire_at == schedule.next_run_at + timedelta(minutes=5)
    assert schedule_after.last_job_id == enqueued.pk
    assert schedule_after.last_run_at is not None
    assert abs((schedule_after.last_run_at - enqueued.enqueued_at).total_seconds()) < 10
    assert not fire(STORE, digests=(), skipped=())


def test_the_job_has_the_options_of_its_task(registry: Registry) -> None:
    job(name="report", queue_name="mail", priority=7, max_attempts=3, unique_key="k")(jobs.noop.function)
    make_schedule("s", due=1, task="report")
    fire_all()
    (enqueued,) = jobs_of("s")
    assert (enqueued.priority, enqueued.queue_name, enqueued.max_attempts, enqueued.unique_key) == (7, "mail", 3, "k")


@pytest.mark.parametrize(
    "fields",
    [{"due": -60.0}, {"due": 1, "paused_at": Now()}, {"due": 1, "source": "code", "digest": "another"}, {"due": None}],
    ids=["not due", "paused", "of another code", "never"],
)
def test_only_due_schedules_of_this_code_that_are_not_paused_are_fired(fields: dict[str, Any]) -> None:
    make_schedule("s", **fields)
    assert fire_all(("this",)) == 0
    assert not Job.objects.exists()


def test_a_schedule_of_the_code_is_fired_by_a_supervisor_with_its_definition() -> None:
    make_schedule("s", due=1, source="code", digest="this")
    assert fire_all(("this",)) == 1


def test_cron_fires_at_its_times() -> None:
    make_schedule("s", due=0.5, cron="*/10 * * * *")
    fire_all()
    next_run_at = Schedule.objects.get().next_run_at
    assert next_run_at is not None
    assert next_run_at.minute % 10 == 0
    assert timedelta(0) < next_run_at - now() <= timedelta(minutes=10)


def test_several_schedules_are_fired_in_the_order_of_their_times() -> None:
    for name, due in (("b", 1), ("a", 2), ("c", 3)):
        make_schedule(name, due=due)
    assert fire_all() == 3
    assert [job.metadata["schedule"]["name"] for job in Job.objects.order_by("id")] == ["c", "a", "b"]


def test_jitter_delays_the_job_and_not_the_next_time_of_the_schedule() -> None:
    make_schedule("s", due=1, jitter=600.0)
    fire_all()
    (enqueued,) = jobs_of("s")
    assert enqueued.status == "scheduled"
    assert timedelta(0) < enqueued.run_after - enqueued.enqueued_at <= timedelta(minutes=10)
    next_run_at = Schedule.objects.get().next_run_at
    assert next_run_at is not None
    assert next_run_at - now() < timedelta(minutes=5)


@override_settings(USE_TZ=False)
def test_times_of_a_schedule_do_not_depend_on_use_tz() -> None:
    make_schedule("s", due=1, cron="*/10 * * * *", timezone="Europe/Berlin")
    assert fire_all() == 1
    assert fire_all() == 0


# Times that passed while no supervisor ran


@pytest.mark.parametrize(("catch_up", "expected_number"), [("latest", 1), ("all", 13), ("skip", 0)])
def test_missed_times_are_enqueued_by_the_option_catch_up(catch_up: str, expected_number: int) -> None:
    schedule = make_schedule("s", due=3600 + 2 * MISSED_SECONDS, catch_up=catch_up)
    assert fire_all() == 1
    assert schedule.next_run_at is not None
    missed_times = [schedule.next_run_at + timedelta(minutes=5) * count for count in range(13)]
    assert planned_times_of("s") == [
        missed_time.astimezone(UTC).isoformat() for missed_time in missed_times[len(missed_times) - expected_number :]
    ]
    next_run_at = Schedule.objects.get().next_run_at
    assert next_run_at == missed_times[-1] + timedelta(minutes=5)


def test_catch_up_skip_still_enqueues_a_time_that_is_just_due() -> None:
    make_schedule("s", due=3600 + MISSED_SECONDS / 2, catch_up="skip")
    fire_all()
    assert len(jobs_of("s")) == 1


def test_a_skipped_time_is_noted_in_the_row() -> None:
    make_schedule("s", due=MISSED_SECONDS + 60, interval=timedelta(days=1), catch_up="skip")
    fire_all()
    assert jobs_of("s") == []
    assert Schedule.objects.get().skipped_at is not None


def test_catch_up_all_enqueues_at_most_the_newest_missed_times() -> None:
    schedule = make_schedule("s", due=86_400 * 30, catch_up="all", interval=timedelta(minutes=1))
    fire_all()
    times = planned_times_of("s")
    assert len(times) == MOST_CAUGHT_UP
    assert schedule.next_run_at is not None
    assert datetime.fromisoformat(times[-1]) > schedule.next_run_at + timedelta(days=29), "the newest times are kept"
    assert times == sorted(times)


@pytest.mark.parametrize(("number_of_times", "is_skipped"), [(MOST_CAUGHT_UP, False), (MOST_CAUGHT_UP + 1, True)])
def test_times_beyond_the_maximum_are_logged_as_skipped(
    number_of_times: int, caplog: pytest.LogCaptureFixture, *, is_skipped: bool
) -> None:
    make_schedule("s", due=60 * (number_of_times - 1) + 30, catch_up="all", interval=timedelta(minutes=1))
    with caplog.at_level(logging.INFO):
        fire_all()
    assert len(jobs_of("s")) == MOST_CAUGHT_UP
    assert (Schedule.objects.get().skipped_at is not None) is is_skipped
    messages = [record.getMessage() for record in caplog.records if record.getMessage().startswith("schedule skipped")]
    assert messages == (["schedule skipped name=s reason=missed"] if is_skipped else [])


def test_years_of_missed_times_are_caught_up_in_two_steps() -> None:
    make_schedule("s", due=86_400 * 3_000, cron="* * * * * *", catch_up="all")
    assert fire_all() <= 2
    assert len(jobs_of("s")) <= MOST_CAUGHT_UP + 1


# The option `overlap`: skip a time while the last job is unfinished


@pytest.mark.parametrize("status", ["scheduled", "queued", "running", "blocked"])
def test_with_overlap_skip_no_job_is_enqueued_while_the_last_job_is_unfinished(status: str) -> None:
    last_job = make_job(status)
    make_schedule("s", due=1, overlap="skip", last_job_id=last_job.pk)
    assert fire_all() == 1
    assert jobs_of("s") == []
    schedule_after = Schedule.objects.get()
    assert schedule_after.last_job_id == last_job.pk
    assert schedule_after.last_run_at is None
    assert schedule_after.skipped_at is not None
    assert schedule_after.next_run_at is not None
    assert schedule_after.next_run_at > now(), "the schedule does not wait for the job"


@pytest.mark.parametrize("status", [*FINISHED, None])
def test_with_overlap_skip_a_job_is_enqueued_once_the_last_job_is_finished_or_pruned(status: str | None) -> None:
    make_schedule("s", due=1, overlap="skip", last_job_id=make_job(status).pk if status else 4711)
    fire_all()
    assert len(jobs_of("s")) == 1


def test_with_overlap_skip_only_one_of_many_missed_times_is_enqueued() -> None:
    make_schedule("s", due=3600, overlap="skip", catch_up="all")
    fire_all()
    assert len(jobs_of("s")) == 1
    assert Schedule.objects.get().skipped_at is not None


def test_without_overlap_skip_a_job_is_enqueued_beside_an_unfinished_job() -> None:
    make_schedule("s", due=1, last_job_id=make_job("running").pk)
    fire_all()
    assert len(jobs_of("s")) == 1


def test_a_unique_key_that_is_taken_skips_one_time(registry: Registry) -> None:
    job(name="report", unique_key="report")(jobs.noop.function)
    holder = make_job(unique_key="report")
    make_schedule("s", due=1, task="report")
    assert fire_all() == 1
    schedule_after = Schedule.objects.get()
    assert (schedule_after.last_job_id, schedule_after.error) == (None, "")
    assert schedule_after.skipped_at is not None
    holder.discard()
    write_columns(fire_at=now() - timedelta(seconds=1), next_run_at=now() - timedelta(seconds=1))  # it is due again
    fire_all()
    assert jobs_of("s")[0].unique_key == "report"


@pytest.mark.parametrize(("age", "expected_number"), [(600.0, 1), (7200.0, 2)])
def test_a_unique_key_for_an_hour_skips_times_within_this_hour(
    registry: Registry, age: float, expected_number: int
) -> None:
    job(name="report", unique=unique_by(), until=timedelta(hours=1))(jobs.noop.function)
    make_schedule("s", due=1, task="report")
    fire_all()
    enqueued_at = Now() - timedelta(seconds=age)
    Job.objects.update(status="completed", enqueued_at=enqueued_at, finished_at=enqueued_at)
    write_columns(fire_at=now() - timedelta(seconds=1), next_run_at=now() - timedelta(seconds=1))  # it is due again
    assert fire_all() == 1
    assert len(jobs_of("s")) == expected_number


# Each time is enqueued exactly once


def test_any_number_of_supervisors_enqueue_each_time_once() -> None:
    for number in range(30):
        make_schedule(f"s{number}", due=60, interval=timedelta(hours=1))
    sessions = [Session() for _ in range(6)]
    barrier = threading.Barrier(6)

    def fire_all_at_once() -> None:
        barrier.wait()
        fire_all()

    futures = [session.start(fire_all_at_once) for session in sessions]
    for future in futures:
        future.result()
    for session in sessions:
        session.close()
    assert sorted(job.metadata["schedule"]["name"] for job in Job.objects.all()) == sorted(
        f"s{number}" for number in range(30)
    )


def test_a_schedule_that_another_supervisor_has_locked_is_left_to_it(session: Callable[[], Session]) -> None:
    make_schedule("s", due=60)
    with transaction.atomic():
        assert fire(STORE, digests=(), skipped=())
        assert not session()(lambda: fire(STORE, digests=(), skipped=()))
    assert len(jobs_of("s")) == 1


@pytest.mark.parametrize("statement", ["IS_UNFINISHED", "LIMIT_KEY_LOCK", "FIRED"])
def test_a_supervisor_that_dies_before_the_end_has_enqueued_nothing(
    statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_schedule("s", due=60, overlap="skip", last_job_id=1)
    row_before = Schedule.objects.values().get()
    original_statement = getattr(fire_module, statement)
    monkeypatch.setattr(fire_module, statement, "SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(OperationalError):
        fire(STORE, digests=(), skipped=())
    connection.close()
    assert not Job.objects.exists()
    assert Schedule.objects.values().get() == row_before
    monkeypatch.setattr(fire_module, statement, original_statement)
    assert fire_all() == 1
    assert len(jobs_of("s")) == 1


def test_a_commit_whose_answer_is_lost_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    make_schedule("s", due=60)
    assert fire(STORE, digests=(), skipped=())
    connection.close()  # the supervisor does not know whether it has committed, and fires again
    assert fire_all() == 0
    assert len(jobs_of("s")) == 1


def test_a_clock_that_is_set_back_does_not_repeat_a_time() -> None:
    """A supervisor enqueues only the row's next time, and times after it."""
    make_schedule("s", due=60)
    fire_all()
    next_run_at = Schedule.objects.get().next_run_at
    assert next_run_at is not None
    assert datetime.fromisoformat(planned_times_of("s")[0]) < next_run_at
    assert fire_all() == 0


# Rows that cannot be fired


def fields_of_bad_rows(registry: Registry) -> dict[str, dict[str, Any]]:
    return {
        "unknown task": {"task": "gone.jobs.gone"},
        "no cron": {"cron": "never"},
        "no zone": {"cron": "* * * * *", "timezone": "Europe/Bonn"},
        "wrong arguments": {"kwargs": {"surprise": 1}},
        "no list": {"args": 5},
        "no object": {"kwargs": [5]},
        "computed": {"task": "computed"},
    }


@pytest.mark.parametrize("name", fields_of_bad_rows(Registry()))
def test_a_row_that_cannot_be_fired_gets_an_error_and_stops_no_other_schedule(
    name: str, registry: Registry, sent_events: list[Any]
) -> None:
    job(name="tests.app.jobs.noop")(jobs.noop.function)
    job(name="computed", unique_key=lambda: pytest.fail("code of the project's"))(jobs.noop.function)
    make_schedule("bad", due=2 * MISSED_SECONDS, **fields_of_bad_rows(registry)[name])
    make_schedule("good", due=1)
    store = Store("default", send=sent_events.append)
    assert fire_all(store=store) == 2
    bad_schedule = Schedule.objects.get(name="bad")
    assert bad_schedule.error
    assert bad_schedule.fire_at is not None
    assert bad_schedule.next_run_at is not None
    assert bad_schedule.fire_at > now() > bad_schedule.next_run_at, "the time is still to be fired, and not at once"
    assert len(jobs_of("good")) == 1
    failed = [event for event in sent_events if isinstance(event, ScheduleFailed)]
    assert [(event.name, event.error) for event in failed] == [("bad", bad_schedule.error)]
    Schedule.objects.filter(name="bad").update(fire_at=Now())
    assert fire_all(store=store) == 1
    assert len([event for event in sent_events if isinstance(event, ScheduleFailed)]) == 1, "the event is sent once"


def test_a_row_that_is_repaired_fires_and_its_error_is_gone() -> None:
    make_schedule("s", due=2 * MISSED_SECONDS, task="gone.jobs.gone")
    fire_all()
    Schedule.objects.update(task="tests.app.jobs.noop", fire_at=Now())
    fire_all()
    assert Schedule.objects.get().error == ""
    assert len(jobs_of("s")) == 1


@pytest.mark.parametrize("task", ["tests.app.jobs.noop", "gone.jobs.gone"])
def test_an_error_shows_no_secret_of_the_arguments(
    task: str, monkeypatch: pytest.MonkeyPatch, sent_events: list[Any]
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("no such account: swordfish")

    monkeypatch.setattr(fire_module, "prepared_job", refuse)
    make_schedule("s", due=2 * MISSED_SECONDS, task=task, kwargs={"password": "swordfish"})
    fire_all(store=Store("default", send=sent_events.append))
    assert Schedule.objects.get().error == f"no such account: {MASK}"
    assert [event.error for event in sent_events if isinstance(event, ScheduleFailed)] == [f"no such account: {MASK}"]


def test_an_unknown_task_is_left_to_another_supervisor_at_first() -> None:
    schedule = make_schedule("s", due=1, task="gone.jobs.gone")
    with pytest.raises(Skip) as raised:
        fire(STORE, digests=(), skipped=())
    assert raised.value.schedule_id == schedule.pk
    assert Schedule.objects.get().error == ""
    assert not fire(STORE, digests=(), skipped=[schedule.pk])


def test_a_unique_key_that_another_transaction_holds_does_not_hold_up_the_supervisor(
    registry: Registry, session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = job(name="report", unique_key="report")(jobs.noop.function)
    monkeypatch.setattr(fire_module, "KEY_LOCK_TIMEOUT", "50ms")
    make_schedule("s", due=1, task="report")
    other_session = session()
    other_session.begin()
    other_session(report.defer)
    assert fire_all() == 1
    assert "lock timeout" in Schedule.objects.get().error
    other_session.rollback()


def test_an_error_of_the_database_is_raised_and_not_written_into_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    make_schedule("s", due=1)
    monkeypatch.setattr(fire_module, "FIRED", "SELECT pg_sleep(1) FROM set_config('statement_timeout', '5', true)")
    monkeypatch.setattr(fire_module, "LIMIT_KEY_LOCK", "SELECT set_config('statement_timeout', '50ms', true)")
    with pytest.raises(OperationalError):
        fire(STORE, digests=(), skipped=())
    assert Schedule.objects.get().error == ""
    assert not Job.objects.exists()


def test_the_row_has_the_ids_of_the_last_five_jobs() -> None:
    schedule = make_schedule("s", due=1, catch_up="all", interval=timedelta(minutes=1))
    for minutes in (2, 1, 1):
        let_time_pass(60.0 * minutes)
        fire_all()
    operate.run_now(STORE, schedule.pk)
    ids = [job.pk for job in reversed(jobs_of("s"))]
    schedule_after = Schedule.objects.get()
    assert len(ids) > 5
    assert [schedule_after.last_job_id, *(schedule_after.earlier_job_ids or ())] == ids[:5]
    make_schedule("t", due=1, overlap="skip", last_job_id=make_job("running").pk, earlier_job_ids=[4])
    fire_all()
    assert Schedule.objects.get(name="t").earlier_job_ids == [4]


def test_the_row_keeps_the_time_of_the_first_failure_in_a_row() -> None:
    """The row keeps this time until a run succeeds. The next failure after that begins a new series."""
    schedule = make_schedule("s", due=1, interval=timedelta(minutes=1))
    first_failure_at = None
    for _ in range(8):
        fire_all()
        job = jobs_of("s")[-1]
        first_failure_at = first_failure_at or job.enqueued_at
        Job.objects.filter(pk=job.pk).update(status="failed", last_error="no", finished_at=Now())
        let_time_pass(60.0)
    assert Schedule.objects.get().failing_since == first_failure_at
    Job.objects.filter(pk=job.pk).update(status="completed")
    operate.run_now(STORE, schedule.pk)
    assert Schedule.objects.get().failing_since is None

"""Supervisors write the schedules of the code (entries) into rows: several deployments do not fight for a row."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import override_settings

from django_skipqueue import job
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Schedule
from django_skipqueue.parts.schedules import fire as fire_schedules
from django_skipqueue.parts.schedules.entry import RETIRED_KEPT_SECONDS, UNCONFIRMED_SECONDS, ScheduleEntry, synchronise
from django_skipqueue.parts.schedules.fire import LOCKED_SCHEDULE_WAIT, LONGEST_SCHEDULE_WAIT, FireSchedules
from django_skipqueue.queue.store import Store

from ...app import jobs
from ...app.sessions import Session
from ...supervisor.test_services import roughly, run_once
from .rows import STORE, jobs_of, let_time_pass, make_schedule

pytestmark = pytest.mark.django_db(transaction=True)


def make_entry(name: str = "s", **options: Any) -> ScheduleEntry:
    values = {"task": "tests.app.jobs.noop", "source": "code", "timezone": "UTC", "cron": "0 9 * * *"} | options
    if "interval" in values:
        values["cron"] = ""
    return ScheduleEntry(name=name, **values)


def synchronise_at_start(*entries: ScheduleEntry) -> list[str]:
    """Synchronise the entries as a supervisor does at its start."""
    return synchronise(STORE, entries, has_started=False)


def synchronise_later(*entries: ScheduleEntry) -> list[str]:
    """Synchronise the entries as a supervisor does later on."""
    return synchronise(STORE, entries, has_started=True)


def get_row(name: str = "s") -> Schedule:
    return Schedule.objects.get(name=name)


def columns_of_only_row() -> dict[str, Any]:
    return dict(Schedule.objects.values().get())


NINE_O_CLOCK, TEN_O_CLOCK = make_entry(cron="0 9 * * *"), make_entry(cron="0 10 * * *")


def test_a_new_entry_gets_a_row() -> None:
    options: dict[str, Any] = {"args": [1], "kwargs": {"b": 2}, "catch_up": "all", "overlap": "skip", "jitter": 3.0}
    entry = make_entry(task="tests.app.jobs.add", timezone="Europe/Berlin", **options)
    assert synchronise_at_start(entry, make_entry("often", interval=timedelta(seconds=90))) == []
    row = get_row()
    assert {name: getattr(row, name) for name in options} == options
    assert (row.task, row.cron, row.interval, row.timezone) == (entry.task, "0 9 * * *", None, "Europe/Berlin")
    assert (row.source, row.digest) == ("code", entry.digest)
    assert row.next_run_at == row.fire_at
    assert row.next_run_at is not None
    assert row.next_run_at.minute == 0
    often = get_row("often")
    assert often.interval == timedelta(seconds=90)
    assert often.next_run_at is not None
    assert abs((often.next_run_at - often.created_at).total_seconds() - 90) < 5


def test_synchronising_keeps_the_pause_and_the_last_run() -> None:
    synchronise_at_start(NINE_O_CLOCK)
    Schedule.objects.update(paused_at=Now(), paused_by="anna", last_run_at=Now(), last_job_id=5)
    columns_before = columns_of_only_row()
    synchronise_at_start(NINE_O_CLOCK)
    columns_after = columns_of_only_row()
    assert columns_after.pop("confirmed_at") > columns_before.pop("confirmed_at")
    assert columns_after == columns_before


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({"task": "tests.app.jobs.add"}, True),
        ({"kwargs": {"a": 1}}, True),
        ({"jitter": 5.0}, True),
        ({"cron": "0 10 * * *"}, False),
        ({"timezone": "Asia/Tokyo"}, False),
        ({"interval": timedelta(hours=1)}, False),
    ],
)
def test_a_changed_entry_keeps_its_next_time_unless_its_times_change(change: dict[str, Any], is_kept: bool) -> None:
    synchronise_at_start(NINE_O_CLOCK)
    Schedule.objects.update(next_run_at=Now() - timedelta(days=1), fire_at=Now(), error="no", paused_at=Now())
    row_before = get_row()
    synchronise_at_start(make_entry(**change))
    row_after = get_row()
    assert row_after.digest == make_entry(**change).digest
    assert (row_after.next_run_at == row_before.next_run_at) == is_kept
    assert row_after.fire_at == row_after.next_run_at
    assert row_after.error == ""
    assert row_after.paused_at is not None


def test_an_error_is_kept_until_the_definition_changes() -> None:
    synchronise_at_start(NINE_O_CLOCK)
    Schedule.objects.update(error="no")
    synchronise_later(NINE_O_CLOCK)
    assert get_row().error == "no"


# Two deployments at once


def test_of_two_running_deployments_the_newer_defines_the_schedule() -> None:
    synchronise_at_start(NINE_O_CLOCK)
    synchronise_at_start(TEN_O_CLOCK)
    assert get_row().digest == TEN_O_CLOCK.digest
    synchronise_later(NINE_O_CLOCK)  # the older deployment still runs
    assert get_row().digest == TEN_O_CLOCK.digest
    synchronise_at_start(NINE_O_CLOCK)  # the older deployment is started again, as after a crash
    assert get_row().digest == TEN_O_CLOCK.digest


def test_after_a_rollback_the_older_deployment_defines_the_schedule_again() -> None:
    synchronise_at_start(NINE_O_CLOCK)
    synchronise_at_start(TEN_O_CLOCK)
    synchronise_at_start(NINE_O_CLOCK)
    let_time_pass(UNCONFIRMED_SECONDS + 1)
    synchronise_later(NINE_O_CLOCK)
    assert get_row().digest == NINE_O_CLOCK.digest


def test_an_older_deployment_does_not_replace_the_definition_of_a_third() -> None:
    third_entry = make_entry(cron="0 11 * * *")
    for entry in (NINE_O_CLOCK, TEN_O_CLOCK, third_entry):
        synchronise_at_start(entry)
    synchronise_later(NINE_O_CLOCK)
    assert get_row().digest == third_entry.digest


def test_each_deployment_fires_only_schedules_of_its_own_definition() -> None:
    synchronise_at_start(NINE_O_CLOCK)
    synchronise_at_start(TEN_O_CLOCK)
    let_time_pass(86_400 * 2)
    older, newer = FireSchedules(STORE), FireSchedules(STORE)
    for service, own_entry in ((older, NINE_O_CLOCK), (newer, TEN_O_CLOCK)):
        service.digests, service.confirm_at = [own_entry.digest], float("inf")
    run_once(older)
    assert jobs_of("s") == []
    run_once(newer)
    assert len(jobs_of("s")) == 1


def test_two_services_with_different_entries_do_not_retire_each_others_entries() -> None:
    synchronise_at_start(make_entry("a"))
    synchronise_at_start(make_entry("b"))
    for _ in range(5):
        let_time_pass(UNCONFIRMED_SECONDS / 2)
        synchronise_later(make_entry("a"))
        synchronise_later(make_entry("b"))
    assert set(Schedule.objects.filter(retired_at=None).values_list("name", flat=True)) == {"a", "b"}


# Entries that are no longer in any deployment


def test_an_entry_that_no_deployment_has_is_retired_and_later_removed() -> None:
    synchronise_at_start(make_entry("gone"), make_entry("here"))
    synchronise_later(make_entry("here"))
    assert get_row("gone").retired_at is None, "an older deployment may still have the entry"
    let_time_pass(UNCONFIRMED_SECONDS + 1)
    synchronise_later(make_entry("here"))
    assert get_row("gone").retired_at is not None
    assert get_row("here").retired_at is None
    let_time_pass(RETIRED_KEPT_SECONDS + 1)
    synchronise_later(make_entry("here"))
    assert list(Schedule.objects.values_list("name", flat=True)) == ["here"]


def test_an_entry_that_comes_back_is_still_paused() -> None:
    synchronise_at_start(NINE_O_CLOCK)
    Schedule.objects.update(paused_at=Now())
    let_time_pass(UNCONFIRMED_SECONDS + 1)
    synchronise_later()
    assert get_row().retired_at is not None
    synchronise_at_start(NINE_O_CLOCK)
    assert get_row().retired_at is None
    assert get_row().paused_at is not None


def test_an_entry_does_not_replace_a_schedule_of_the_admin_with_its_name() -> None:
    make_schedule("s", source="admin")
    row_before = Schedule.objects.values().get()
    assert synchronise_at_start(NINE_O_CLOCK) == ["s"]
    let_time_pass(RETIRED_KEPT_SECONDS + UNCONFIRMED_SECONDS)
    row_before = Schedule.objects.values().get()
    synchronise_later(NINE_O_CLOCK)
    assert Schedule.objects.values().get() == row_before


def test_two_supervisors_that_start_at_once_do_not_deadlock(session: Callable[[], Session]) -> None:
    names = [f"s{number}" for number in range(50)]
    first, second = session(), session()
    for turn in range(5):
        entries = [make_entry(name, cron=f"{turn} 9 * * *") for name in names]
        futures = [
            first.start(synchronise, STORE, entries, has_started=False),
            second.start(synchronise, STORE, entries[::-1], has_started=False),
        ]
        assert [future.result() for future in futures] == [[], []]


# The service `FireSchedules`


def periodic_settings(**schedules: Any) -> Any:
    return override_settings(SKIPQUEUE={"PERIODIC": schedules})


def test_the_service_stores_entries_in_rows_and_fires_them() -> None:
    with periodic_settings(s={"task": "tests.app.jobs.noop", "every": timedelta(hours=1)}):
        service = FireSchedules(STORE)
        assert run_once(service) == roughly(LONGEST_SCHEDULE_WAIT)
        let_time_pass(3600)
        assert run_once(service) == roughly(LONGEST_SCHEDULE_WAIT)
    assert len(jobs_of("s")) == 1


def test_the_service_is_due_again_when_the_next_schedule_is_due() -> None:
    make_schedule("s", due=-1.0)
    assert 0.5 < run_once(FireSchedules(STORE)) <= 1.0


def test_without_schedules_the_service_runs_every_two_seconds() -> None:
    assert run_once(FireSchedules(STORE)) == roughly(LONGEST_SCHEDULE_WAIT)


def test_the_service_does_not_spin_while_a_due_schedule_is_locked(session: Callable[[], Session]) -> None:
    make_schedule("s", due=1.0)
    other_session = session()
    other_session.begin()
    other_session(lambda: list(Schedule.objects.select_for_update()))
    assert run_once(FireSchedules(STORE)) == pytest.approx(LOCKED_SCHEDULE_WAIT, abs=0.2)
    other_session.rollback()


def test_one_run_of_the_service_fires_a_limited_number_of_schedules() -> None:
    for number in range(fire_schedules.MOST_FIRED_AT_ONCE + 1):
        make_schedule(f"s{number}", due=1)
    service = FireSchedules(STORE)
    assert run_once(service) == 0
    assert Job.objects.count() == fire_schedules.MOST_FIRED_AT_ONCE
    run_once(service)
    assert Job.objects.count() == fire_schedules.MOST_FIRED_AT_ONCE + 1


def test_a_schedule_whose_task_is_unknown_is_tried_again_later() -> None:
    make_schedule("s", due=1.0, task="gone.jobs.gone")
    make_schedule("t", due=0.5)
    service = FireSchedules(STORE)
    assert run_once(service) == roughly(LONGEST_SCHEDULE_WAIT)
    assert len(jobs_of("t")) == 1
    assert get_row("s").error == ""


def test_unusable_entries_are_logged_and_other_entries_fire(caplog: pytest.LogCaptureFixture) -> None:
    with_unknown_task, valid = (
        {"task": "gone", "cron": "* * * * *"},
        {"task": "tests.app.jobs.noop", "cron": "* * * * *"},
    )
    with periodic_settings(bad=with_unknown_task, good=valid):
        service = FireSchedules(STORE)
        run_once(service)
        service.confirm_at = 0.0
        run_once(service)
    unusable_records = [record for record in caplog.records if getattr(record, "event", "") == "schedule_unusable"]
    assert len(unusable_records) == 1
    assert "name=bad" in unusable_records[0].getMessage()
    assert [schedule.name for schedule in Schedule.objects.all()] == ["good"]


def test_fired_skipped_and_failed_schedules_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    make_schedule("a", due=1.0)
    make_schedule("b", due=1000.0, catch_up="skip", interval=timedelta(hours=1))
    make_schedule("c", due=1000.0, task="gone.jobs.gone")
    run_once(FireSchedules(Store("default")))
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("schedule fired name=a task=tests.app.jobs.noop job=") for line in lines), lines
    assert "schedule skipped name=b reason=missed" in lines
    assert any(
        line.startswith("schedule failed name=c error=\"No task is registered as 'gone.jobs.gone'") for line in lines
    )


def test_a_name_that_the_admin_has_taken_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    make_schedule("s")
    with periodic_settings(s={"task": "tests.app.jobs.noop", "cron": "* * * * *"}):
        run_once(FireSchedules(STORE))
    lines = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "schedule_unusable"]
    assert lines == ['schedule unusable name=s error="a schedule of the admin has this name"']


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_an_entry_is_written_only_into_the_database_of_its_task(registry: Registry) -> None:
    job(name="here")(jobs.noop.function)
    registry.register(job(name="there")(jobs.noop.function).using(database="other"))
    every = timedelta(hours=1)
    with periodic_settings(here={"task": "here", "every": every}, there={"task": "there", "every": every}):
        for alias in ("default", "other"):
            run_once(FireSchedules(Store(alias)))
    assert [list(Schedule.objects.using(alias).values_list("name", flat=True)) for alias in ("default", "other")] == [
        ["here"],
        ["there"],
    ]


@pytest.mark.parametrize("source", ["code", "admin"])
@pytest.mark.parametrize("times", [{"interval": timedelta(seconds=1), "cron": ""}, {"cron": "* * * * *"}])
def test_a_schedule_written_while_the_clock_was_ahead_fires_by_the_clock_of_now(
    source: str, times: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    schedule = make_schedule(source=source, digest="d", confirmed_at=Now(), **times)
    tomorrow = timedelta(days=1)
    Schedule.objects.update(next_run_at=Now() + tomorrow, fire_at=Now() + tomorrow)
    run_once(FireSchedules(STORE))
    schedule.refresh_from_db()
    assert schedule.next_run_at == schedule.fire_at
    ((is_soon,),) = STORE.rows("SELECT fire_at <= statement_timestamp() + interval '1 minute' FROM skipqueue_schedule")
    assert is_soon
    assert f"schedule brought back name={schedule.name}" in caplog.text


def test_a_schedule_within_its_interval_or_paused_keeps_its_time(caplog: pytest.LogCaptureFixture) -> None:
    make_schedule(interval=timedelta(hours=1), cron="", next_run_at=Now() + timedelta(hours=1))
    make_schedule("paused", interval=timedelta(days=1), cron="", next_run_at=Now() + timedelta(days=9), paused_at=Now())
    rows_before = list(Schedule.objects.values())
    run_once(FireSchedules(STORE))
    assert list(Schedule.objects.values()) == rows_before
    assert "brought back" not in caplog.text

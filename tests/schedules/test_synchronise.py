"""The rows of entries: supervisors keep them as long as a deployment has them, and do not change them to and fro."""

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

from ..app import jobs
from ..app.sessions import Session
from ..services.test_services import about, run
from .rows import STORE, jobs_of, let_pass, make_schedule

pytestmark = pytest.mark.django_db(transaction=True)


def entry(name: str = "s", **options: Any) -> ScheduleEntry:
    given = {"task": "tests.app.jobs.noop", "source": "code", "timezone": "UTC", "cron": "0 9 * * *"} | options
    if "interval" in given:
        given["cron"] = ""
    return ScheduleEntry(name=name, **given)


def start(*entries: ScheduleEntry) -> list[str]:
    """Synchronise the entries as a supervisor does at its start."""
    return synchronise(STORE, entries, has_started=False)


def go_on(*entries: ScheduleEntry) -> list[str]:
    """Synchronise the entries as a supervisor does later on."""
    return synchronise(STORE, entries, has_started=True)


def row(name: str = "s") -> Schedule:
    return Schedule.objects.get(name=name)


def state() -> dict[str, Any]:
    return dict(Schedule.objects.values().get())


FIRST, SECOND = entry(cron="0 9 * * *"), entry(cron="0 10 * * *")


def test_a_new_entry_gets_a_row() -> None:
    options: dict[str, Any] = {"args": [1], "kwargs": {"b": 2}, "catch_up": "all", "overlap": "skip", "jitter": 3.0}
    made = entry(task="tests.app.jobs.add", timezone="Europe/Berlin", **options)
    assert start(made, entry("often", interval=timedelta(seconds=90))) == []
    found = row()
    assert {name: getattr(found, name) for name in options} == options
    assert (found.task, found.cron, found.interval, found.timezone) == (made.task, "0 9 * * *", None, "Europe/Berlin")
    assert (found.source, found.digest) == ("code", made.digest)
    assert found.next_run_at == found.fire_at
    assert found.next_run_at is not None
    assert found.next_run_at.minute == 0
    often = row("often")
    assert often.interval == timedelta(seconds=90)
    assert often.next_run_at is not None
    assert abs((often.next_run_at - often.created_at).total_seconds() - 90) < 5


def test_what_operators_and_the_past_have_written_stays() -> None:
    start(FIRST)
    Schedule.objects.update(paused_at=Now(), paused_by="anna", last_run_at=Now(), last_job_id=5)
    before = state()
    start(FIRST)
    after = state()
    assert after.pop("confirmed_at") > before.pop("confirmed_at")
    assert after == before


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
    start(FIRST)
    Schedule.objects.update(next_run_at=Now() - timedelta(days=1), fire_at=Now(), error="no", paused_at=Now())
    before = row()
    start(entry(**change))
    after = row()
    assert after.digest == entry(**change).digest
    assert (after.next_run_at == before.next_run_at) == is_kept
    assert after.fire_at == after.next_run_at
    assert after.error == ""
    assert after.paused_at is not None


def test_an_error_is_kept_until_the_definition_changes() -> None:
    start(FIRST)
    Schedule.objects.update(error="no")
    go_on(FIRST)
    assert row().error == "no"


# Two deployments at once


def test_of_two_deployments_the_newer_one_keeps_the_row() -> None:
    start(FIRST)
    start(SECOND)
    assert row().digest == SECOND.digest
    go_on(FIRST)  # one that runs on
    assert row().digest == SECOND.digest
    start(FIRST)  # one that is started again, as after a crash
    assert row().digest == SECOND.digest


def test_a_rolled_back_deployment_has_the_row_again_when_the_newer_one_is_gone() -> None:
    start(FIRST)
    start(SECOND)
    start(FIRST)
    let_pass(UNCONFIRMED_SECONDS + 1)
    go_on(FIRST)
    assert row().digest == FIRST.digest


def test_an_older_one_that_runs_on_does_not_take_over_from_a_third() -> None:
    third = entry(cron="0 11 * * *")
    for each in (FIRST, SECOND, third):
        start(each)
    go_on(FIRST)
    assert row().digest == third.digest


def test_two_deployments_fire_each_their_own() -> None:
    start(FIRST)
    start(SECOND)
    let_pass(86_400 * 2)
    older, newer = FireSchedules(STORE), FireSchedules(STORE)
    for service, own in ((older, FIRST), (newer, SECOND)):
        service._digests, service._confirm_at = [own.digest], float("inf")
    run(older)
    assert jobs_of("s") == []
    run(newer)
    assert len(jobs_of("s")) == 1


def test_two_services_with_other_entries_leave_each_others_alone() -> None:
    start(entry("a"))
    start(entry("b"))
    for _ in range(5):
        let_pass(UNCONFIRMED_SECONDS / 2)
        go_on(entry("a"))
        go_on(entry("b"))
    assert set(Schedule.objects.filter(retired_at=None).values_list("name", flat=True)) == {"a", "b"}


# Entries that are gone


def test_an_entry_that_is_gone_does_not_fire_is_retired_and_then_removed() -> None:
    start(entry("gone"), entry("here"))
    go_on(entry("here"))
    assert row("gone").retired_at is None, "the older deployment may run still"
    let_pass(UNCONFIRMED_SECONDS + 1)
    go_on(entry("here"))
    assert row("gone").retired_at is not None
    assert row("here").retired_at is None
    let_pass(RETIRED_KEPT_SECONDS + 1)
    go_on(entry("here"))
    assert list(Schedule.objects.values_list("name", flat=True)) == ["here"]


def test_an_entry_that_comes_back_has_its_pause() -> None:
    start(FIRST)
    Schedule.objects.update(paused_at=Now())
    let_pass(UNCONFIRMED_SECONDS + 1)
    go_on()
    assert row().retired_at is not None
    start(FIRST)
    assert row().retired_at is None
    assert row().paused_at is not None


def test_rows_of_the_admin_stay_and_keep_their_names() -> None:
    make_schedule("s", source="admin")
    before = Schedule.objects.values().get()
    assert start(FIRST) == ["s"]
    let_pass(RETIRED_KEPT_SECONDS + UNCONFIRMED_SECONDS)
    before = Schedule.objects.values().get()
    go_on(FIRST)
    assert Schedule.objects.values().get() == before


def test_two_supervisors_that_start_at_once_do_not_deadlock(session: Callable[[], Session]) -> None:
    names = [f"s{number}" for number in range(50)]
    first, second = session(), session()
    for turn in range(5):
        entries = [entry(name, cron=f"{turn} 9 * * *") for name in names]
        futures = [
            first.start(synchronise, STORE, entries, has_started=False),
            second.start(synchronise, STORE, entries[::-1], has_started=False),
        ]
        assert [future.result() for future in futures] == [[], []]


# The service


def settings_of(**schedules: Any) -> Any:
    return override_settings(SKIPQUEUE={"PERIODIC": schedules})


def test_the_service_makes_rows_and_fires_them() -> None:
    with settings_of(s={"task": "tests.app.jobs.noop", "every": timedelta(hours=1)}):
        service = FireSchedules(STORE)
        assert run(service) == about(LONGEST_SCHEDULE_WAIT)
        let_pass(3600)
        assert run(service) == about(LONGEST_SCHEDULE_WAIT)
    assert len(jobs_of("s")) == 1


def test_the_service_is_due_again_when_the_next_schedule_is() -> None:
    make_schedule("s", due=-1.0)
    assert 0.5 < run(FireSchedules(STORE)) <= 1.0


def test_without_schedules_the_service_looks_every_two_seconds() -> None:
    assert run(FireSchedules(STORE)) == about(LONGEST_SCHEDULE_WAIT)


def test_the_service_does_not_spin_while_a_due_schedule_is_locked(session: Callable[[], Session]) -> None:
    make_schedule("s", due=1.0)
    other = session()
    other.begin()
    other(lambda: list(Schedule.objects.select_for_update()))
    assert run(FireSchedules(STORE)) == pytest.approx(LOCKED_SCHEDULE_WAIT, abs=0.2)
    other.rollback()


def test_one_run_fires_a_limited_number() -> None:
    for number in range(fire_schedules.MOST_FIRED_AT_ONCE + 1):
        make_schedule(f"s{number}", due=1)
    service = FireSchedules(STORE)
    assert run(service) == 0
    assert Job.objects.count() == fire_schedules.MOST_FIRED_AT_ONCE
    run(service)
    assert Job.objects.count() == fire_schedules.MOST_FIRED_AT_ONCE + 1


def test_a_schedule_whose_task_is_unknown_is_tried_again_later() -> None:
    make_schedule("s", due=1.0, task="gone.jobs.gone")
    make_schedule("t", due=0.5)
    service = FireSchedules(STORE)
    assert run(service) == about(LONGEST_SCHEDULE_WAIT)
    assert len(jobs_of("t")) == 1
    assert row("s").error == ""


def test_unusable_entries_are_logged_and_other_entries_fire(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = {"task": "gone", "cron": "* * * * *"}, {"task": "tests.app.jobs.noop", "cron": "* * * * *"}
    with settings_of(bad=bad, good=good):
        service = FireSchedules(STORE)
        run(service)
        service._confirm_at = 0.0
        run(service)
    logged = [record for record in caplog.records if getattr(record, "event", "") == "schedule_unusable"]
    assert len(logged) == 1
    assert "name=bad" in logged[0].getMessage()
    assert [each.name for each in Schedule.objects.all()] == ["good"]


def test_its_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    make_schedule("a", due=1.0)
    make_schedule("b", due=1000.0, catch_up="skip", interval=timedelta(hours=1))
    make_schedule("c", due=1000.0, task="gone.jobs.gone")
    run(FireSchedules(Store("default")))
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("schedule fired name=a task=tests.app.jobs.noop job=") for line in lines), lines
    assert "schedule skipped name=b reason=missed" in lines
    assert any(
        line.startswith("schedule failed name=c error=\"No task is registered as 'gone.jobs.gone'") for line in lines
    )


def test_a_name_that_the_admin_has_taken_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    make_schedule("s")
    with settings_of(s={"task": "tests.app.jobs.noop", "cron": "* * * * *"}):
        run(FireSchedules(STORE))
    lines = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "schedule_unusable"]
    assert lines == ['schedule unusable name=s error="a schedule of the admin has this name"']


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_of_several_databases_only_that_of_its_task_has_the_entry(registry: Registry) -> None:
    job(name="here")(jobs.noop.function)
    registry.register(job(name="there")(jobs.noop.function).using(database="other"))
    every = timedelta(hours=1)
    with settings_of(here={"task": "here", "every": every}, there={"task": "there", "every": every}):
        for alias in ("default", "other"):
            run(FireSchedules(Store(alias)))
    assert [list(Schedule.objects.using(alias).values_list("name", flat=True)) for alias in ("default", "other")] == [
        ["here"],
        ["there"],
    ]


@pytest.mark.parametrize("source", ["code", "admin"])
@pytest.mark.parametrize("times", [{"interval": timedelta(seconds=1), "cron": ""}, {"cron": "* * * * *"}])
def test_a_schedule_written_while_the_clock_was_ahead_fires_by_the_clock_of_now(
    source: str, times: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = make_schedule(source=source, digest="d", confirmed_at=Now(), **times)
    tomorrow = timedelta(days=1)
    Schedule.objects.update(next_run_at=Now() + tomorrow, fire_at=Now() + tomorrow)
    run(FireSchedules(STORE))
    made.refresh_from_db()
    assert made.next_run_at == made.fire_at
    ((is_soon,),) = STORE.rows("SELECT fire_at <= statement_timestamp() + interval '1 minute' FROM skipqueue_schedule")
    assert is_soon
    assert f"schedule brought back name={made.name}" in caplog.text


def test_a_schedule_that_waits_as_long_as_it_should_keeps_its_time(caplog: pytest.LogCaptureFixture) -> None:
    make_schedule(interval=timedelta(hours=1), cron="", next_run_at=Now() + timedelta(hours=1))
    make_schedule("paused", interval=timedelta(1), cron="", next_run_at=Now() + timedelta(9), paused_at=Now())
    before = list(Schedule.objects.values())
    run(FireSchedules(STORE))
    assert list(Schedule.objects.values()) == before
    assert "brought back" not in caplog.text

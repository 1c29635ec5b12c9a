"""The entries of `@periodic` and of the settings: what they accept, and what they refuse."""

import re
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from django.test import override_settings

from django_skipqueue import conf, job, periodic, unique_by
from django_skipqueue.checks import check_settings
from django_skipqueue.exceptions import InvalidArguments, InvalidOption, InvalidTask
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.jobs.task import Task
from django_skipqueue.parts.schedules.entry import ScheduleEntry, all_entries, check_periodic, entries, prepared_job

from ...app import jobs


def make_add_task(**options: Any) -> Task[Any, Any]:
    task: Task[Any, Any] = job(name="add", **options)(jobs.add.function)  # type: ignore[no-untyped-call]
    return task


def only_entry() -> ScheduleEntry:
    ((entry, _),) = entries.values()
    return entry


# The decorator `@periodic`


def test_periodic_returns_the_task(registry: Registry) -> None:
    task = make_add_task()
    assert periodic("0 9 * * mon-fri", a=1)(task) is task
    entry = only_entry()
    assert (entry.name, entry.task, entry.cron, entry.interval) == ("add", "add", "0 9 * * mon-fri", None)
    assert entry.call == ([], {"a": 1})
    assert (entry.timezone, entry.catch_up, entry.overlap, entry.jitter, entry.source) == (
        "UTC",
        "latest",
        "allow",
        0.0,
        "code",
    )


def test_an_entry_has_an_interval_and_every_option(registry: Registry) -> None:
    periodic(
        timedelta(minutes=5),
        name="often",
        timezone="Europe/Berlin",
        catch_up="all",
        overlap="skip",
        jitter=timedelta(seconds=30),
        args=[1],
        kwargs={"b": 2},
    )(make_add_task())
    entry = only_entry()
    assert (entry.name, entry.interval, entry.cron, entry.timezone) == (
        "often",
        timedelta(minutes=5),
        "",
        "Europe/Berlin",
    )
    assert (entry.catch_up, entry.overlap, entry.jitter) == ("all", "skip", 30.0)
    assert entry.call == ([1], {"b": 2})


def test_a_task_may_have_several_schedules(registry: Registry) -> None:
    periodic("0 9 * * *", a=1)(periodic("0 21 * * *", name="in the evening", a=2)(make_add_task()))
    assert [(entry.name, entry.call[1]) for entry, _ in entries.values()] == [
        ("in the evening", {"a": 2}),
        ("add", {"a": 1}),
    ]


def test_two_schedules_of_one_name_are_refused(registry: Registry) -> None:
    task = periodic("0 9 * * *", a=1)(make_add_task())
    with pytest.raises(InvalidOption, match=r"two schedules are called 'add'.*name="):
        periodic("0 21 * * *", a=1)(task)
    with pytest.raises(InvalidOption, match="two schedules are called 'add'"):
        periodic("0 21 * * *", name="add")(job(name="other")(jobs.noop.function))


def test_a_module_that_is_imported_again_replaces_its_schedules(registry: Registry) -> None:
    for hour in (9, 10):
        periodic(f"0 {hour} * * *", a=1)(make_add_task())
    assert only_entry().cron == "0 10 * * *"


def test_the_default_time_zone_is_the_time_zone_of_the_project(registry: Registry) -> None:
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        periodic("0 9 * * *", a=1)(make_add_task())
    assert only_entry().timezone == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("moment", "options", "problem"),
    [
        ("0 9 * *", {"a": 1}, "has 4 fields"),
        (300, {"a": 1}, "a cron expression, such as .* or a timedelta, not 300"),
        (timedelta(0), {"a": 1}, "from 1 second to 10 years"),
        ("* * * * *", {"a": 1, "timezone": "Bonn"}, "there is no time zone 'Bonn'"),
        ("* * * * *", {"a": 1, "timezone": 3}, "timezone must be a str"),
        ("* * * * *", {"a": 1, "catch_up": "none"}, "catch_up must be one of 'latest', 'all', 'skip', not 'none'"),
        ("* * * * *", {"a": 1, "overlap": "queue"}, "overlap must be one of 'allow', 'skip', not 'queue'"),
        ("* * * * *", {"a": 1, "jitter": -1}, "jitter must be from 0 to 1 day"),
        ("* * * * *", {"a": 1, "jitter": "5s"}, "jitter must be a timedelta or seconds"),
        ("* * * * *", {"a": 1, "jitter": True}, "jitter must be a timedelta or seconds"),
        ("* * * * *", {"a": 1, "name": "n" * 2000}, "name must be at most 1000 bytes"),
        ("* * * * *", {"a": 1, "name": " "}, "name must be a str that is not empty"),
        ("* * * * *", {"a": 1, "name": "\0"}, "NUL"),
        ("* * * * *", {"args": "1"}, None),
        ("* * * * *", {"args": 5}, None),
    ],
)
def test_periodic_refuses_invalid_options(
    registry: Registry, moment: Any, options: dict[str, Any], problem: str | None
) -> None:
    with pytest.raises((InvalidOption, TypeError), match=problem):
        periodic(moment, **options)(make_add_task())
    assert not entries


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({}, "missing a required argument"), ({"a": 1, "c": 2}, "'c'"), ({"a": {1}}, "set, which is not JSON")],
)
def test_periodic_refuses_arguments_that_do_not_fit_the_task(
    registry: Registry, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArguments, match=problem):
        periodic("* * * * *", **arguments)(make_add_task())


def test_a_unique_key_that_the_project_computes_is_refused(registry: Registry) -> None:
    """A supervisor runs no code of the project's."""
    with pytest.raises(InvalidOption, match="a function as unique_key, which a supervisor must not call"):
        periodic("* * * * *", a=1)(make_add_task(unique_key=lambda a: str(a)))
    periodic("* * * * *", a=1)(make_add_task(unique_key="add"))


def test_periodic_refuses_a_function_that_is_no_task() -> None:
    with pytest.raises(InvalidTask, match="must be put above @job or @task"):
        periodic("* * * * *")(len)


def test_an_invalid_setting_is_reported_only_by_its_own_check(registry: Registry) -> None:
    with override_settings(SKIPQUEUE={"NONSENSE": 1}):
        periodic("* * * * *", a=1)(make_add_task())
        assert [message.id for message in check_settings()] == ["skipqueue.E001"]
        assert check_periodic() == []


# The setting `PERIODIC`


def periodic_setting(**schedules: Any) -> Any:
    return override_settings(SKIPQUEUE={"PERIODIC": schedules})


def test_schedules_are_read_from_the_settings() -> None:
    options = {"task": "tests.app.jobs.add", "cron": "0 9 * * *", "timezone": "Europe/Berlin", "args": [1], "jitter": 5}
    with periodic_setting(sum=options, often={"task": "tests.app.jobs.noop", "every": timedelta(minutes=5)}):
        entries_found, problems = all_entries()
    assert not problems
    assert [(entry.name, entry.source) for entry in entries_found] == [("sum", "settings"), ("often", "settings")]
    assert (entries_found[0].cron, entries_found[0].timezone, entries_found[0].jitter, entries_found[0].call) == (
        "0 9 * * *",
        "Europe/Berlin",
        5.0,
        ([1], {}),
    )
    assert entries_found[1].interval == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ([], "must be a dict of schedules by name"),
        ({"": {}}, "has the key ''"),
        ({"s": []}, r"\['s'\] must be a dict, not \[\]"),
        ({"s": {"cron": "* * * * *"}}, r"\['task'\] must be the name of a task"),
        ({"s": {"task": "t"}}, "must have either 'cron'"),
        ({"s": {"task": "t", "cron": "* * * * *", "every": timedelta(1)}}, "must have either 'cron'"),
        ({"s": {"task": "t", "cron": "* * * * *", "crontab": 1}}, "has no key 'crontab'"),
    ],
)
def test_a_malformed_setting_periodic_is_reported(setting: Any, problem: str) -> None:
    with override_settings(SKIPQUEUE={"PERIODIC": setting}):
        problems = list(conf.problems())
        assert any(re.search(problem, found_problem) for found_problem in problems), problems


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"task": "gone.jobs.gone", "cron": "* * * * *"}, "No task is registered as 'gone.jobs.gone'. Is the app"),
        ({"task": "tests.app.jobs.noop", "cron": "* * *"}, "has 3 fields"),
        ({"task": "tests.app.jobs.noop", "every": 5}, "or a timedelta, not 5"),
        ({"task": "tests.app.jobs.noop", "cron": "* * * * *", "timezone": "Bonn"}, "there is no time zone"),
        ({"task": "tests.app.jobs.noop", "cron": "* * * * *", "kwargs": {"a": 1}}, "'a'"),
        ({"task": "tests.app.jobs.noop", "cron": "* * * * *", "kwargs": 5}, "kwargs must be a dict"),
        ({"task": "tests.app.jobs.noop", "cron": "* * * * *", "jitter": -1}, "jitter must be"),
    ],
)
def test_the_checks_report_schedules_of_the_settings_that_cannot_fire(options: dict[str, Any], problem: str) -> None:
    with periodic_setting(bad=options, good={"task": "tests.app.jobs.noop", "every": timedelta(hours=1)}):
        (message,) = check_periodic()
        assert [entry.name for entry in all_entries()[0]] == ["good"]
    assert message.id == "skipqueue.E008"
    assert "'bad'" in message.msg
    assert problem in message.msg


def test_the_checks_report_a_name_that_is_in_the_code_and_in_the_settings(registry: Registry) -> None:
    periodic("0 9 * * *", a=1)(make_add_task())
    with periodic_setting(add={"task": "add", "cron": "0 9 * * *", "args": [1]}):
        (message,) = check_periodic()
    assert "in the code and in SKIPQUEUE['PERIODIC']" in message.msg


# Digests


def test_a_digest_changes_with_every_value() -> None:
    values = {"name": "n", "task": "t", "source": "code", "cron": "0 9 * * *", "timezone": "UTC"}
    changes: list[dict[str, Any]] = [
        {"name": "m"},
        {"task": "u"},
        {"source": "settings"},
        {"cron": "0 8 * * *"},
        {"cron": "", "interval": timedelta(1)},
        {"timezone": "Europe/Berlin"},
        {"args": [1]},
        {"kwargs": {"a": 1}},
        {"catch_up": "all"},
        {"overlap": "skip"},
        {"jitter": 1.0},
    ]
    digests = {ScheduleEntry(**{**values, **change}).digest for change in [{}, *changes]}
    assert len(digests) == 1 + len(changes)


# Arguments of other types than JSON has, and unique keys


@dataclass
class OrderLine:
    sku: str
    price: Decimal
    number_made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        type(self).number_made += 1


def test_arguments_of_annotated_types_are_kept_as_json(registry: Registry) -> None:
    def report(day: date, line: OrderLine) -> None: ...

    report.__qualname__ = "report"
    arguments: dict[str, Any] = {"day": date(2026, 1, 2), "line": OrderLine("mug", Decimal("9.90"))}
    task = job(name="report")(report)
    periodic("0 9 * * *", **arguments)(task)
    expected = {"day": "2026-01-02", "line": {"sku": "mug", "price": "9.90"}}
    assert only_entry().call == ([], expected)
    entries.clear()
    with periodic_setting(s={"task": "report", "cron": "0 9 * * *", "kwargs": arguments}):
        (entry,), problems = all_entries()
    assert (entry.call, problems) == (([], expected), [])
    number_made_before = OrderLine.number_made
    spec, call = prepared_job("report", *entry.call)
    assert OrderLine.number_made == number_made_before, "a supervisor runs no code of the project's"
    assert call.kwargs == task.encoded((), arguments).kwargs
    assert spec.task == "report"


def test_a_unique_key_of_arguments_is_computed_without_code_of_the_project(registry: Registry) -> None:
    task = make_add_task(unique=unique_by("a"))
    periodic("0 9 * * *", a=1)(task)
    _, call = prepared_job("add", *only_entry().call)
    assert call.unique_key == task.encoded((1,), {}).unique_key == "add(a=1)"

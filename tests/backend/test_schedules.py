"""`@periodic` above Django's `@task`."""

from datetime import timedelta

import pytest
from django.test import override_settings

from django_skipqueue import periodic
from django_skipqueue.exceptions import InvalidTask
from django_skipqueue.integrations.django_tasks.definition import registered
from django_skipqueue.integrations.django_tasks.mapping import result_of, variant
from django_skipqueue.models import Job
from django_skipqueue.parts.schedules.entry import all_entries, entries

from ..schedules.rows import fire_all, make_schedule, without_entries
from .app import tasks
from .running import run_next

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def test_a_task_of_djangos_is_enqueued_as_by_enqueue() -> None:
    with without_entries():
        assert periodic(timedelta(minutes=5), a=1, b=2)(tasks.add) is tasks.add
        (entry,), problems = all_entries()
        assert not problems
    assert (entry.task, entry.call) == (tasks.add.module_path, ([], {"a": 1, "b": 2}))
    make_schedule("s", due=1, task=entry.task, kwargs=dict(entry.kwargs))
    assert fire_all() == 1
    tasks.add.enqueue(1, b=2)
    fired, enqueued = Job.objects.order_by("id")
    assert fired.metadata.pop("schedule")["name"] == "s"
    for name in ("task", "queue_name", "priority", "max_attempts", "timeout", "retention", "metadata"):
        assert getattr(fired, name) == getattr(enqueued, name), name
    run_next()
    fired.refresh_from_db()
    assert result_of(fired, tasks.add).return_value == 3


def test_the_options_of_its_alias_and_of_with_options_hold() -> None:
    mailed = variant(tasks.add, backend="mail", queue_name="mail")
    registered(mailed).definition = mailed
    try:
        make_schedule("s", due=1, task=tasks.add.module_path, args=[1])
        fire_all()
    finally:
        registered(tasks.add).definition = tasks.add
    made = Job.objects.get()
    assert (made.queue_name, made.max_attempts, made.timeout) == ("mail", 3, 45.0)
    assert made.metadata["backend"] == "mail"


def test_arguments_that_do_not_fit_are_reported_by_the_checks() -> None:
    with without_entries():
        periodic(timedelta(minutes=5), wrong=1)(tasks.add)
        found, ((name, problem),) = all_entries()
    assert found == []
    assert name == tasks.add.module_path
    assert "'wrong'" in problem


def test_a_computed_unique_key_is_reported_by_the_checks() -> None:
    with without_entries():
        periodic(timedelta(minutes=5), iban="DE1")(tasks.keyed)
        found, ((_, problem),) = all_entries()
    assert found == []
    assert "a function as unique_key" in problem


def test_the_settings_can_name_one() -> None:
    given = {"s": {"task": tasks.add.module_path, "every": timedelta(minutes=5), "args": [1]}}
    with without_entries(), override_settings(SKIPQUEUE={"PERIODIC": given}):
        (entry,), problems = all_entries()
    assert (entry.task, problems) == (tasks.add.module_path, [])


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(InvalidTask, match="goes above @job or @task"):
        periodic(timedelta(minutes=5))(tasks.add.func)
    assert all(entry.task != "add" for entry, _ in entries.values())

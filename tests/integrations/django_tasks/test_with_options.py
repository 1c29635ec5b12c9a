"""A `@task` with `@with_options` has the options that a `@job` has."""

from typing import Any

import pytest
from django.db import transaction

from django_skipqueue import unique_by, with_options
from django_skipqueue.exceptions import InvalidOption, UniqueKeyTaken
from django_skipqueue.integrations.django_tasks.definition import entry
from django_skipqueue.integrations.django_tasks.framework import task_enqueued
from django_skipqueue.integrations.django_tasks.mapping import variant
from django_skipqueue.jobs.registry import registry
from django_skipqueue.models import Job
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.store import Store

from ...app import jobs
from .app import tasks
from .running import run_next

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def test_the_options_of_with_options_are_stored_in_the_job() -> None:
    tasks.keyed.enqueue("DE1")
    job = Job.objects.get()
    assert (job.unique_key, job.max_attempts, job.priority) == ("keyed-DE1", 4, 3)
    assert job.timeout is None, "the task's own timeout is read at each attempt"
    registered_task = entry(job.task)
    assert registered_task is not None
    assert (registered_task.timeout, registered_task.redact) == (20, ("iban",))


def test_options_of_with_options_override_the_options_of_the_alias() -> None:
    tasks.keyed.using(backend="mail", queue_name="mail").enqueue("DE1")
    job = Job.objects.get()
    assert (job.max_attempts, job.timeout) == (4, None)
    run_next("mail")
    job.refresh_from_db()
    assert job.status == "scheduled"
    assert job.started_at is not None
    assert 60 <= (job.run_after - job.started_at).total_seconds() < 90, "the delay comes from the backoff of the task"


def test_a_concurrency_limit_applies_to_django_tasks() -> None:
    for account in ("a", "a", "b"):
        tasks.limited.enqueue(account)
    sweep_gates(Store("default"))
    gates = Job.objects.order_by("id").values_list("status", "limit_key", "capacity")
    key_of_a, key_of_b = (f'limit:{tasks.limited.module_path} account="{account}"' for account in "ab")
    assert list(gates) == [("queued", key_of_a, 1), ("blocked", key_of_a, 1), ("queued", key_of_b, 1)]
    assert registry.is_limited(tasks.limited.module_path)


@pytest.mark.skipif(not tasks.HAS_OPTIONS, reason="@task of Django 6.0 takes no options")
def test_options_given_to_django_task_override_with_options() -> None:
    task_with_own_options = variant(tasks.keyed, max_attempts=2, timeout=7.0)
    task_with_own_options.enqueue("DE1")
    assert Job.objects.get().max_attempts == 2


@pytest.mark.parametrize(("times", "status"), [(1, "scheduled"), (2, "discarded"), (3, "failed")])
def test_errors_are_retried_discarded_or_failed_as_the_options_say(times: int, status: str) -> None:
    tasks.keyed.enqueue("DE1", times=times)
    run_next()
    assert Job.objects.get().status == status


def test_enqueueing_with_a_held_unique_key_returns_the_result_of_the_holding_job() -> None:
    enqueued_ids: list[Any] = []

    def note_id(task_result: Any, **_: Any) -> None:
        enqueued_ids.append(task_result.id)

    task_enqueued.connect(note_id)
    try:
        first = tasks.keyed.enqueue("DE1")
        second = tasks.keyed.enqueue("DE1", times=2)
        result_of_other_key = tasks.keyed.enqueue("DE2")
    finally:
        task_enqueued.disconnect(note_id)
    assert second == first
    assert second.id != result_of_other_key.id
    assert enqueued_ids == [first.id, result_of_other_key.id]


def test_a_unique_key_can_be_held_by_a_job_of_another_task() -> None:
    holder = jobs.add.using(unique_key="keyed-DE1").defer(1)
    result = tasks.keyed.enqueue("DE1")
    assert result.id == str(holder.pk)
    assert Job.objects.count() == 1
    tasks.keyed_with_context.enqueue(5)
    task_without_key = variant(tasks.echo)
    assert task_without_key.enqueue(1).id != result.id


def test_a_unique_key_function_does_not_get_the_context() -> None:
    first, second = (tasks.keyed_with_context.enqueue(5) for _ in range(2))
    assert Job.objects.get().unique_key == "context-5"
    assert first.id == second.id


def test_a_call_with_wrong_arguments_for_the_unique_key_inserts_no_job() -> None:
    with transaction.atomic(), pytest.raises(TypeError):
        tasks.keyed.enqueue(wrong=1)  # type: ignore[call-arg]
    assert not Job.objects.exists()


def test_a_task_of_another_backend_keeps_its_options_when_sent_to_this_one() -> None:
    tasks.visit_once.using(backend="default").enqueue("a")
    tasks.visit_once.using(backend="default").enqueue("b")
    assert Job.objects.get().unique_key == "visit once"


def test_a_unique_key_is_made_of_normalized_arguments() -> None:
    first = tasks.unique_call.enqueue((1, b"x"))
    second = tasks.unique_call.enqueue([1, "x"], "a")
    of_other_value = tasks.unique_call.enqueue([1], "b")
    assert first.id == second.id != of_other_value.id
    key = f'{tasks.unique_call.module_path}(value=[1, "x"])'
    assert Job.objects.get(pk=first.id).unique_key == key


def test_until_and_on_conflict_apply_to_django_tasks() -> None:
    first = tasks.debounced.enqueue(1, "a")
    second = tasks.debounced.enqueue(1, "b")
    assert second.id == first.id
    assert second.args == [1, "b"]
    run_next()
    assert tasks.debounced.enqueue(1, "c").id != first.id
    tasks.lone.enqueue()
    with pytest.raises(UniqueKeyTaken):
        tasks.lone.enqueue()


def test_unique_by_an_unknown_parameter_is_refused_at_import() -> None:
    task: Any = vars(tasks)["task"]
    with pytest.raises(InvalidOption, match="no parameter"):
        task(with_options(unique=unique_by("wrong"))(tasks.unplaced))
    with pytest.raises(InvalidOption, match="no parameter"):
        task(takes_context=True)(with_options(unique=unique_by("context"))(tasks.unplaced_with_context))


def test_a_task_may_be_fair_and_its_queue_limited(settings: Any) -> None:
    tasks.fair.enqueue("a")
    settings.SKIPQUEUE = {"QUEUES": {"default": {"concurrency": 3}}}
    tasks.fair.enqueue("b")
    tasks.add.enqueue(1, 2)
    limits = Job.objects.order_by("pk").values_list("limit_key", "limit_kind", "capacity")
    key_prefix = f"fair:{Job.objects.order_by('pk')[0].task} tenant="
    assert list(limits) == [
        (f'{key_prefix}"a"', "fair", 2),
        (f'{key_prefix}"b"', "fair", 2),
        ("queue:default", "concurrency", 3),
    ]

"""Typed arguments and results of Django's tasks arrive as they do with `@job`."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from django_skipqueue import Batch, chain
from django_skipqueue.exceptions import InvalidArguments, RowMissing, UndecodableArguments
from django_skipqueue.integrations.django_tasks.framework import task_backends
from django_skipqueue.jobs.registry import registry
from django_skipqueue.models import Job
from django_skipqueue.testing import assert_deferred, assert_not_deferred, run_jobs

from ...app.typed_jobs import Line, Size
from .app import typed_tasks as tasks

pytestmark = pytest.mark.django_db

MOMENT = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
MOMENT_AS_STORED = "2026-03-29T01:30:00+00:00"


@pytest.fixture(autouse=True)
def received() -> Iterator[list[Any]]:
    tasks.received_arguments.clear()
    yield tasks.received_arguments
    tasks.received_arguments.clear()


@pytest.fixture
def user() -> User:
    return User.objects.create(username="ada")


def run_and_return(result: Any) -> Any:
    """Run the only job, and return its return value."""
    (finished_job,) = run_jobs()
    assert finished_job.status == "completed", finished_job.last_error
    result.refresh()
    return result.return_value


def test_annotated_arguments_arrive_unchanged_and_all_others_as_django_normalizes_them(received: list[Any]) -> None:
    lines = [Line("mug", Decimal("9.90"), Size.LARGE)]
    result: Any = tasks.see.enqueue(MOMENT, Decimal("1.50"), timedelta(hours=2), lines=lines, note=(1, b"b"))
    assert result.args == [MOMENT_AS_STORED, "1.50", "P0DT02H00M00S"]
    assert result.kwargs == {"lines": [{"sku": "mug", "price": "9.90", "size": "l"}], "note": [1, "b"]}
    assert task_backends["default"].get_result(result.id) == result
    assert run_and_return(result) is None
    assert received == [(MOMENT, Decimal("1.50"), (timedelta(hours=2),), lines, [1, "b"])]


def test_a_model_instance_is_fetched_for_the_task_and_for_the_reader_of_its_result(
    user: User, received: list[Any]
) -> None:
    result: Any = tasks.see_user.enqueue(user, size=Size.SMALL)
    User.objects.update(username="lovelace")
    return_value = run_and_return(result)
    reference = {"model": "auth.user", "pk": user.pk, "database": "default"}
    assert received == [([reference], user, Size.SMALL)]
    [(_, received_user, _)] = received
    assert (received_user.username, type(return_value), return_value.username) == ("lovelace", User, "lovelace")
    User.objects.all().delete()
    with pytest.raises(RowMissing):
        _ = result.return_value


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_gets_typed_values(user: User, received: list[Any]) -> None:
    assert run_and_return(tasks.asee_user.enqueue(user)) == Decimal("1.50")
    assert received == [user]


def test_a_process_without_the_task_reads_its_result_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    result: Any = tasks.priced.enqueue("1.50")
    assert run_and_return(result) == Decimal("1.50")
    monkeypatch.delitem(registry.by_name, tasks.priced.module_path)
    assert result.return_value == "1.50"


def test_a_result_that_does_not_fit_its_annotation_is_stored_as_django_does(received: list[Any]) -> None:
    result: Any = tasks.priced.enqueue([1, 2])
    with pytest.raises(UndecodableArguments, match="The result was stored as"):
        run_and_return(result)
    assert Job.objects.get().result == [1, 2]


def test_wrong_typed_arguments_are_refused_before_a_job_is_inserted() -> None:
    no_datetime: Any = "tomorrow"
    with pytest.raises(InvalidArguments, match="at is 'tomorrow', but its annotation is datetime"):
        tasks.see.enqueue(no_datetime, Decimal(1))
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.see.enqueue(MOMENT, Decimal(1), note=MOMENT)
    assert not Job.objects.exists()


def test_calls_for_batches_and_chains_take_typed_values(received: list[Any]) -> None:
    see: Any = tasks.see
    with Batch(on_success=see.s(MOMENT, Decimal(1))):
        chain(see.s(MOMENT, Decimal(2)), see.s(MOMENT, Decimal(3))).defer()
    run_jobs()
    assert [price for _, price, *_ in received] == [2, 3, 1]


def test_unique_keys_are_made_of_typed_values() -> None:
    first: Any = tasks.unique_at.enqueue(MOMENT, note=1)
    assert tasks.unique_at.enqueue(MOMENT, note=2).id == first.id
    tasks.keyed_at.enqueue(MOMENT, (b"b",))
    assert Job.objects.get(task=tasks.keyed_at.module_path).unique_key == "2026-b"


def test_assert_deferred_compares_typed_values() -> None:
    tasks.see.enqueue(MOMENT, Decimal("1.5"))
    assert_deferred(tasks.see, MOMENT, price=Decimal("1.5"))
    assert_not_deferred(tasks.see, MOMENT, price=Decimal("1.6"))


def test_the_size_of_typed_arguments_is_limited() -> None:
    with override_settings(SKIPQUEUE={"MAX_ARGUMENT_BYTES": 20}), pytest.raises(InvalidArguments, match="20"):
        tasks.see.enqueue(MOMENT, Decimal(1))

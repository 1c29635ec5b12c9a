"""Django's tasks with several databases: results, signals and imports."""

from typing import Any

import pytest

from django_skipqueue import Batch, with_options
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.integrations.django_tasks.backend import SkipQueueBackend
from django_skipqueue.integrations.django_tasks.definition import registered
from django_skipqueue.integrations.django_tasks.framework import (
    Task,
    TaskResultDoesNotExist,
    task_backends,
    task_finished,
    task_started,
)
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ..databases.conftest import BOTH, placed  # noqa: F401 (a fixture)
from .app import tasks
from .running import claim, run_next

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture
def finished() -> Any:
    """The ids of the results that `task_started` and `task_finished` carry."""
    ids: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    for signal in (task_started, task_finished):
        signal.connect(note)
    yield ids
    for signal in (task_started, task_finished):
        signal.disconnect(note)


@with_options(shard_by="account_id")
def pay(account_id: int, payment_id: int) -> None:
    """A task takes this function."""


def test_the_placement_decides_and_the_id_names_the_database(placed: Any, finished: list[str]) -> None:  # noqa: F811
    placed("spread")
    results: list[Any] = [tasks.add.enqueue(number) for number in range(4)]
    assert {result.database for result in results} == set(BOTH)
    for result in results:
        job = Job.objects.by_handle(result.id)
        assert (result.id, job._state.db) == (job.handle, result.database)
        run_next(database=result.database)
        result.refresh()
        assert result.return_value == result.args[0]
    assert sorted(finished) == sorted(result.id for result in results for _ in range(2))


def test_the_database_of_the_options_stays(placed: Any) -> None:  # noqa: F811
    placed("spread")
    ids = [tasks.add.using(backend="other").enqueue(1).id for _ in range(3)]
    assert ids == [f"other:{pk}" for pk in Job.objects.using("other").order_by("pk").values_list("pk", flat=True)]


def test_an_id_of_before_is_found_and_one_of_no_queue_is_not(placed: Any) -> None:  # noqa: F811
    result: Any = tasks.add.enqueue(1)
    assert result.id.isdecimal()
    placed()
    backend = task_backends["default"]
    assert backend.get_result(result.id).id == backend.get_result(f"default:{result.id}").id == f"default:{result.id}"
    assert result.database == "default"
    for wrong in (f"nowhere:{result.id}", f"default:0{result.id}", f":{result.id}", "default:", f"default:{10**19}"):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(wrong)
    placed(DATABASES=("default",))
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(f"other:{result.id}")


def test_a_result_stands_for_its_job(placed: Any) -> None:  # noqa: F811
    placed("spread")
    for _ in range(2):
        with Batch() as batch:
            result: Any = tasks.add.enqueue(1)
        found = Batch.of(result)
        assert found is not None
        assert (found.id, found.database) == (batch.id, batch.database)
        call: Any = tasks.add
        after = call.s(2).after(result).defer()
        assert after._state.db == result.database


def test_shard_by_of_with_options(placed: Any, registry: Registry) -> None:  # noqa: F811
    placed("spread")
    task: Any = task_backends["default"].task_class(
        priority=0,
        func=pay,
        backend="default",
        queue_name="default",
        run_after=None,
        takes_context=False,
    )
    chosen = {number: {task.enqueue(number, each).database for each in range(3)} for number in range(12)}
    assert {len(aliases) for aliases in chosen.values()} == {1}
    assert {alias for aliases in chosen.values() for alias in aliases} == set(BOTH)
    assert isinstance(task, Task)
    assert registered(task).named_database is None


@pytest.mark.parametrize("alias", BOTH)
def test_a_job_whose_worker_died_tells_of_its_own_database(placed: Any, finished: list[str], alias: str) -> None:  # noqa: F811
    placed(DATABASE=alias)
    result: Any = tasks.add.enqueue(1)
    for _ in range(2):
        claim(database=alias, worker_id="gone")
        Job.objects.using(alias).update(max_attempts=2)
        Store(alias).recover(worker_ids=["gone"], reason="worker died")
    assert finished == [result.id]


def test_a_database_of_no_queue_is_reported(placed: Any) -> None:  # noqa: F811
    placed(DATABASES=("default",))
    (message,) = SkipQueueBackend("x", {"OPTIONS": {"database": "other"}}).check()
    assert "'database' is 'other', which SKIPQUEUE['DATABASES'] does not list." in message.msg
    with pytest.raises(InvalidOption, match="database must be one of default"):
        tasks.add.using(backend="other").enqueue(1)

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

from ...parts.databases.conftest import BOTH, set_placement  # noqa: F401 (a fixture)
from .app import tasks
from .running import claim, run_next

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture
def signalled_ids() -> Any:
    """Collect the ids of the results in the signals `task_started` and `task_finished`."""
    ids: list[str] = []

    def receive(task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    for signal in (task_started, task_finished):
        signal.connect(receive)
    yield ids
    for signal in (task_started, task_finished):
        signal.disconnect(receive)


@with_options(shard_by="account_id")
def pay(account_id: int, payment_id: int) -> None:
    """The function of a task with a shard key."""


def test_the_placement_chooses_the_database_and_the_id_names_it(set_placement: Any, signalled_ids: list[str]) -> None:  # noqa: F811
    set_placement("spread")
    results: list[Any] = [tasks.add.enqueue(number) for number in range(4)]
    assert {result.database for result in results} == set(BOTH)
    for result in results:
        job = Job.objects.by_handle(result.id)
        assert (result.id, job._state.db) == (job.handle, result.database)
        run_next(database=result.database)
        result.refresh()
        assert result.return_value == result.args[0]
    assert sorted(signalled_ids) == sorted(result.id for result in results for _ in range(2))  # one id for each signal


def test_the_database_in_the_options_of_an_alias_wins_over_the_placement(set_placement: Any) -> None:  # noqa: F811
    set_placement("spread")
    ids = [tasks.add.using(backend="other").enqueue(1).id for _ in range(3)]
    assert ids == [f"other:{pk}" for pk in Job.objects.using("other").order_by("pk").values_list("pk", flat=True)]


def test_an_id_without_a_database_is_found_but_not_an_id_of_an_unknown_database(set_placement: Any) -> None:  # noqa: F811
    result: Any = tasks.add.enqueue(1)
    assert result.id.isdecimal()
    set_placement()
    backend = task_backends["default"]
    assert backend.get_result(result.id).id == backend.get_result(f"default:{result.id}").id == f"default:{result.id}"
    assert result.database == "default"
    for wrong_id in (f"nowhere:{result.id}", f"default:0{result.id}", f":{result.id}", "default:", f"default:{10**19}"):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(wrong_id)
    set_placement(DATABASES=("default",))
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(f"other:{result.id}")


def test_a_result_finds_the_batch_of_its_job_and_can_be_a_predecessor(set_placement: Any) -> None:  # noqa: F811
    set_placement("spread")
    for _ in range(2):
        with Batch() as batch:
            result: Any = tasks.add.enqueue(1)
        found_batch = Batch.of(result)
        assert found_batch is not None
        assert (found_batch.id, found_batch.database) == (batch.id, batch.database)
        add: Any = tasks.add
        next_job = add.s(2).after(result).defer()
        assert next_job._state.db == result.database


def test_shard_by_of_with_options_chooses_the_database(set_placement: Any, registry: Registry) -> None:  # noqa: F811
    set_placement("spread")
    task: Any = task_backends["default"].task_class(
        priority=0,
        func=pay,
        backend="default",
        queue_name="default",
        run_after=None,
        takes_context=False,
    )
    databases_by_account = {
        account_id: {task.enqueue(account_id, payment_id).database for payment_id in range(3)}
        for account_id in range(12)
    }
    assert {len(aliases) for aliases in databases_by_account.values()} == {1}
    assert {alias for aliases in databases_by_account.values() for alias in aliases} == set(BOTH)
    assert isinstance(task, Task)
    assert registered(task).named_database is None


@pytest.mark.parametrize("alias", BOTH)
def test_task_finished_is_sent_for_a_job_whose_worker_died_in_any_database(
    set_placement: Any,  # noqa: F811
    signalled_ids: list[str],
    alias: str,
) -> None:
    set_placement(DATABASE=alias)
    result: Any = tasks.add.enqueue(1)
    for _ in range(2):
        claim(database=alias, worker_id="gone")
        Job.objects.using(alias).update(max_attempts=2)
        Store(alias).recover(worker_ids=["gone"], reason="worker died")
    assert signalled_ids == [result.id]


def test_the_check_reports_a_database_that_holds_no_queue(set_placement: Any) -> None:  # noqa: F811
    set_placement(DATABASES=("default",))
    (message,) = SkipQueueBackend("x", {"OPTIONS": {"database": "other"}}).check()
    assert "'database' is 'other', which SKIPQUEUE['DATABASES'] does not list." in message.msg
    with pytest.raises(InvalidOption, match="database must be one of default"):
        tasks.add.using(backend="other").enqueue(1)

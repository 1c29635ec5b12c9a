"""`skipqueue defer`: enqueues a job by hand."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue import job
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job

from ...app.rows import make_worker
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def send(payment_id: int, *, copy: bool = False) -> None:
    """Do nothing: the tests only enqueue this task."""


@pytest.fixture(autouse=True)
def send_task_with_a_worker(registry: Registry) -> None:
    job(name="shop.jobs.send", queue_name="mail")(send)
    make_worker(queues=["mail"])


@pytest.mark.core
def test_defer_prints_the_id_of_the_job_and_nothing_else() -> None:
    result = skipqueue("defer", "shop.jobs.send", '{"payment_id": 1, "copy": true}')
    deferred = Job.objects.get()
    assert (result.code, result.out, result.err) == (0, f"{deferred.pk}\n", "")
    assert (deferred.kwargs, deferred.queue_name, deferred.status) == (
        {"payment_id": 1, "copy": True},
        "mail",
        "queued",
    )


@pytest.mark.core
def test_defer_takes_positional_arguments_as_a_list_and_the_end_of_a_task_name() -> None:
    assert skipqueue("defer", "send", "[7]").code == 0
    assert Job.objects.get().args == [7]


@pytest.mark.core
def test_options_of_defer_set_the_queue_the_priority_and_the_delay() -> None:
    result = skipqueue("defer", "send", "[7]", "--in", "5m", "--queue", "slow", "--priority", "-3")
    deferred = Job.objects.get()
    assert (deferred.queue_name, deferred.priority, deferred.status) == ("slow", -3, "scheduled")
    assert deferred.run_after - deferred.enqueued_at == timedelta(minutes=5)
    assert result.err == "No live worker serves the queue slow.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sned", "[1]"], "No task is called 'sned'. Did you mean 'shop.jobs.send'?"),
        (["send"], "missing a required argument: 'payment_id'"),
        (["send", '{"payment": 1}'], "unexpected keyword argument 'payment'"),
        (["send", "[1]", "--priority", "101"], "priority must be"),
        (["send", "[1]", "--queue", "a,b"], "queue_name must be"),
    ],
)
def test_a_wrong_argument_is_reported_in_one_sentence_and_enqueues_nothing(arguments: list[str], message: str) -> None:
    result = skipqueue("defer", *arguments)
    assert (result.code, result.out) == (Exit.ERROR, "")
    assert message in result.err
    assert not Job.objects.exists()


@pytest.mark.parametrize("text", ["{payment_id: 1}", "[" * 100_000, "1", '"x"'])
def test_arguments_that_are_no_json_object_or_list_are_a_usage_error(manage: Callable[..., Any], text: str) -> None:
    process = manage("skipqueue", "defer", "tests.app.jobs.noop", text)
    assert process.wait() == Exit.USAGE
    assert """An example: '{"payment_id": 1}'""" in process.log

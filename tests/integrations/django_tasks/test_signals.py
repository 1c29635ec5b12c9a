"""Django's signals `task_enqueued`, `task_started` and `task_finished`: their senders, times and costs."""

import logging
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from django_skipqueue.contrib.celery import wire
from django_skipqueue.integrations.django_tasks.backend import SkipQueueBackend
from django_skipqueue.integrations.django_tasks.framework import (
    LOGGER,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.signals import emit, lease_lost
from django_skipqueue.values.outcomes import COMPLETED, Outcome

from ...app import jobs
from .app import tasks
from .running import claim, execute, finish, report, run_next

pytestmark = pytest.mark.django_db

SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


class ReceivedSignals(list[tuple[str, Any]]):
    """The names of the received signals with their results, in their order."""

    def __init__(self) -> None:
        self.senders: set[Any] = set()
        self.error: BaseException | None = None

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]

    def listen(self, name: str) -> Any:
        def receive(sender: Any, task_result: Any, **_: Any) -> None:
            self.append((name, task_result))
            self.senders.add(sender)
            self.error = sys.exc_info()[1]

        return receive


@pytest.fixture
def received() -> Iterator[ReceivedSignals]:
    received = ReceivedSignals()
    receivers = {name: received.listen(name) for name in SIGNALS}
    for name, signal in SIGNALS.items():
        signal.connect(receivers[name])
    yield received
    for name, signal in SIGNALS.items():
        signal.disconnect(receivers[name])


@pytest.mark.parametrize("name", ["add", "aadd"])
@pytest.mark.django_db(transaction=True)
def test_each_signal_is_sent_once_by_the_class_of_the_backend(received: ReceivedSignals, name: str) -> None:
    result = getattr(tasks, name).enqueue(1, b=2)
    run_next()
    assert received.names == ["enqueued", "started", "finished"]
    assert received.senders == {SkipQueueBackend}
    enqueued, started, finished = (received_result for _, received_result in received)
    assert enqueued == result
    assert (started.status, started.attempts, started.args, started.task) == ("RUNNING", 1, [1], result.task)
    assert finished == task_backends["default"].get_result(result.id)
    assert finished.return_value == 3


def test_a_job_that_is_not_of_a_django_task_sends_no_signal_of_django(received: ReceivedSignals) -> None:
    jobs.add.defer(1)
    run_next()
    assert received == []


def test_task_started_comes_before_the_task_and_task_finished_after_the_outcome(
    received: ReceivedSignals,
) -> None:
    tasks.add.enqueue(1)
    job = claim()
    assert received.names == ["enqueued"]
    attempt = execute(job)
    assert received.names == ["enqueued", "started"]
    finish(attempt)
    assert received.names == ["enqueued", "started", "finished"]


def test_task_finished_is_sent_after_the_last_attempt_only(received: ReceivedSignals) -> None:
    result = tasks.fail.enqueue("why")
    Job.objects.update(max_attempts=2)
    run_next()
    Job.objects.update(status="queued")
    run_next()
    assert received.names == ["enqueued", "started", "started", "finished"]
    _, finished = received[-1]
    assert (finished.id, finished.status, finished.attempts) == (result.id, "FAILED", 2)
    assert [error.exception_class for error in finished.errors] == [ValueError, ValueError]
    assert "ValueError: why" in str(received.error)


def test_task_finished_reads_the_job_if_the_relay_lacks_its_arguments(received: ReceivedSignals) -> None:
    result = tasks.fail.enqueue("why")
    Job.objects.update(max_attempts=2)
    run_next()
    Job.objects.update(status="queued")
    attempt = execute(claim())
    attempt_without_arguments = attempt._replace(job=wire.without_large_arguments(attempt.job, 0), outcome=COMPLETED)
    finish(attempt_without_arguments)
    _, finished = received[-1]
    assert (finished.id, finished.status, finished.args) == (result.id, "SUCCESSFUL", ["why"])
    assert received.error is None, "the error of the first attempt is over"
    Job.objects.all().delete()
    report(attempt_without_arguments)
    assert received.names.count("finished") == 1


def test_task_finished_is_sent_for_a_discarded_job(received: ReceivedSignals) -> None:
    tasks.fail.enqueue()
    attempt = execute(claim())
    finish(attempt._replace(outcome=Outcome("discarded", last_error="x", error=attempt.outcome.error)))
    _, finished = received[-1]
    assert finished.status == "FAILED"


def test_task_finished_is_not_sent_for_a_lost_lease(received: ReceivedSignals) -> None:
    tasks.add.enqueue(1)
    attempt = execute(claim())
    emit(lease_lost, attempt.job.task, attempt=attempt)
    assert received.names == ["enqueued", "started"]


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.django_db(databases=["default", "other"])
def test_task_finished_is_sent_when_the_worker_of_the_last_attempt_died(received: ReceivedSignals, alias: str) -> None:
    result = tasks.add.using(backend=alias).enqueue(1)
    jobs_of_alias = Job.objects.using(alias)
    for attempts_left in (1, 0):
        claim(database=alias, worker_id="gone")
        jobs_of_alias.update(max_attempts=2)
        assert Store(alias).recover(worker_ids=["gone"], reason="worker died: signal 9")
        assert received.names.count("finished") == 1 - attempts_left
    _, finished = received[-1]
    assert (finished.id, finished.status, finished.attempts) == (result.id, "FAILED", 2)
    assert "signal 9" in str(received.error)


def test_a_receiver_of_a_django_signal_that_raises_does_not_fail_the_job() -> None:
    def broken(**_: Any) -> None:
        raise OSError("broken")

    task_started.connect(broken)
    task_finished.connect(broken)
    try:
        result = tasks.add.enqueue(1)
        run_next()
    finally:
        task_started.disconnect(broken)
        task_finished.disconnect(broken)
    result.refresh()
    assert result.return_value == 1


class TestCost:
    def test_the_log_lines_of_a_job_need_no_query(
        self, caplog: pytest.LogCaptureFixture, django_assert_num_queries: Any
    ) -> None:
        result = tasks.add.enqueue(1)
        job = claim()
        with caplog.at_level(logging.INFO, LOGGER), django_assert_num_queries(0):
            report(execute(job))
        messages = [record.message for record in caplog.records if record.name == LOGGER]
        assert [message.rpartition(" ")[2] for message in messages] == ["state=RUNNING", "state=SUCCESSFUL"]
        assert all(f"id={result.id}" in message for message in messages)

    def test_no_result_is_made_for_a_logger_that_is_disabled(self, caplog: pytest.LogCaptureFixture) -> None:
        tasks.add.enqueue(1)
        job = claim()
        with (
            caplog.at_level(logging.ERROR, LOGGER),
            mock.patch("django_skipqueue.integrations.django_tasks.definition.unread") as make_result,
        ):
            finish(execute(job))
        make_result.assert_not_called()

    def test_a_failure_is_logged_with_its_traceback_at_the_level_error(self, caplog: pytest.LogCaptureFixture) -> None:
        tasks.fail.enqueue("why")
        Job.objects.update(max_attempts=1)
        with caplog.at_level(logging.ERROR, LOGGER):
            run_next()
        assert "ValueError: why" in caplog.text

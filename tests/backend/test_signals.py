"""Django's `task_enqueued`, `task_started` and `task_finished`: who sends them, when, and what they cost."""

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

from ..app import jobs
from .app import tasks
from .running import claim, execute, finish, report, run_next

pytestmark = pytest.mark.django_db

SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


class Heard(list[tuple[str, Any]]):
    """The names of received signals, with their results."""

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
def heard() -> Iterator[Heard]:
    heard = Heard()
    receivers = {name: heard.listen(name) for name in SIGNALS}
    for name, signal in SIGNALS.items():
        signal.connect(receivers[name])
    yield heard
    for name, signal in SIGNALS.items():
        signal.disconnect(receivers[name])


@pytest.mark.parametrize("name", ["add", "aadd"])
@pytest.mark.django_db(transaction=True)
def test_each_signal_comes_once_from_the_class_of_the_backend(heard: Heard, name: str) -> None:
    result = getattr(tasks, name).enqueue(1, b=2)
    run_next()
    assert heard.names == ["enqueued", "started", "finished"]
    assert heard.senders == {SkipQueueBackend}
    enqueued, started, finished = (result for _, result in heard)
    assert enqueued == result
    assert (started.status, started.attempts, started.args, started.task) == ("RUNNING", 1, [1], result.task)
    assert finished == task_backends["default"].get_result(result.id)
    assert finished.return_value == 3


def test_a_job_of_no_django_task_sends_no_signal(heard: Heard) -> None:
    jobs.add.defer(1)
    run_next()
    assert heard == []


def test_started_is_sent_before_the_task_runs_and_finished_after_the_outcome_is_written(heard: Heard) -> None:
    tasks.add.enqueue(1)
    job = claim()
    assert heard.names == ["enqueued"]
    attempt = execute(job)
    assert heard.names == ["enqueued", "started"]
    finish(attempt)
    assert heard.names == ["enqueued", "started", "finished"]


def test_finished_is_sent_after_the_last_attempt_only(heard: Heard) -> None:
    result = tasks.fail.enqueue("why")
    Job.objects.update(max_attempts=2)
    run_next()
    Job.objects.update(status="queued")
    run_next()
    assert heard.names == ["enqueued", "started", "started", "finished"]
    finished = heard[-1][1]
    assert (finished.id, finished.status, finished.attempts) == (result.id, "FAILED", 2)
    assert [error.exception_class for error in finished.errors] == [ValueError, ValueError]
    assert "ValueError: why" in str(heard.error)


def test_a_relay_that_has_not_the_arguments_reads_the_row(heard: Heard) -> None:
    result = tasks.fail.enqueue("why")
    Job.objects.update(max_attempts=2)
    run_next()
    Job.objects.update(status="queued")
    attempt = execute(claim())
    carried = attempt._replace(job=wire.without_large_arguments(attempt.job, 0), outcome=COMPLETED)
    finish(carried)
    finished = heard[-1][1]
    assert (finished.id, finished.status, finished.args) == (result.id, "SUCCESSFUL", ["why"])
    assert heard.error is None, "that of the first attempt is over"
    Job.objects.all().delete()
    report(carried)
    assert heard.names.count("finished") == 1


def test_a_discarded_job_has_finished(heard: Heard) -> None:
    tasks.fail.enqueue()
    attempt = execute(claim())
    finish(attempt._replace(outcome=Outcome("discarded", last_error="x", error=attempt.outcome.error)))
    assert heard[-1][1].status == "FAILED"


def test_a_lost_lease_is_no_end(heard: Heard) -> None:
    tasks.add.enqueue(1)
    attempt = execute(claim())
    emit(lease_lost, attempt.job.task, attempt=attempt)
    assert heard.names == ["enqueued", "started"]


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.django_db(databases=["default", "other"])
def test_a_job_whose_worker_died_in_its_last_attempt_has_finished(heard: Heard, alias: str) -> None:
    result = tasks.add.using(backend=alias).enqueue(1)
    rows = Job.objects.using(alias)
    for left in (1, 0):
        claim(database=alias, worker_id="gone")
        rows.update(max_attempts=2)
        assert Store(alias).recover(worker_ids=["gone"], reason="worker died: signal 9")
        assert heard.names.count("finished") == 1 - left
    assert (heard[-1][1].id, heard[-1][1].status, heard[-1][1].attempts) == (result.id, "FAILED", 2)
    assert "signal 9" in str(heard.error)


def test_a_receiver_that_raises_harms_nothing() -> None:
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
    def test_no_query_for_a_log_line(self, caplog: pytest.LogCaptureFixture, django_assert_num_queries: Any) -> None:
        result = tasks.add.enqueue(1)
        job = claim()
        with caplog.at_level(logging.INFO, LOGGER), django_assert_num_queries(0):
            report(execute(job))
        assert [record.message.rpartition(" ")[2] for record in caplog.records if record.name == LOGGER] == [
            "state=RUNNING",
            "state=SUCCESSFUL",
        ]
        assert all(f"id={result.id}" in record.message for record in caplog.records if record.name == LOGGER)

    def test_no_result_is_made_for_a_logger_that_is_disabled(self, caplog: pytest.LogCaptureFixture) -> None:
        tasks.add.enqueue(1)
        job = claim()
        with (
            caplog.at_level(logging.ERROR, LOGGER),
            mock.patch("django_skipqueue.integrations.django_tasks.definition.unread") as made,
        ):
            finish(execute(job))
        made.assert_not_called()

    def test_a_failure_is_logged_with_its_traceback_also_where_only_errors_are(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        tasks.fail.enqueue("why")
        Job.objects.update(max_attempts=1)
        with caplog.at_level(logging.ERROR, LOGGER):
            run_next()
        assert "ValueError: why" in caplog.text

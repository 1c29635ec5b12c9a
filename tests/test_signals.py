"""Signals have the documented arguments, and an error in a receiver does no harm."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from django_skipqueue import Batch, signals
from django_skipqueue.models import Job
from django_skipqueue.signals import batch_finished, emit, job_deferred
from django_skipqueue.testing import run_jobs

from .app import jobs
from .app.rows import make_job

Received = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def deferred_signals() -> Iterator[Received]:
    """The sender and the arguments of each `job_deferred` signal."""
    events: Received = []

    def receiver(sender: str, **event: Any) -> None:
        event.pop("signal")
        events.append((sender, event))

    job_deferred.connect(receiver)
    yield events
    job_deferred.disconnect(receiver)


@pytest.mark.django_db
class TestJobDeferred:
    def test_job_deferred_carries_the_task_the_queue_and_the_ids(self, deferred_signals: Received) -> None:
        job = jobs.noop.using(queue_name="q").defer()
        ids = jobs.add.defer_many([(1,), (2,)])
        assert deferred_signals == [
            ("tests.app.jobs.noop", {"database": "default", "queue_name": "q", "job_ids": [job.pk]}),
            ("tests.app.jobs.add", {"database": "default", "queue_name": "default", "job_ids": ids}),
        ]

    def test_job_deferred_is_sent_for_scheduled_jobs_too(self, deferred_signals: Received) -> None:
        jobs.noop.using(run_after=timedelta(hours=1)).defer()
        assert len(deferred_signals) == 1

    def test_job_deferred_is_sent_only_for_new_jobs(self, deferred_signals: Received) -> None:
        make_job(unique_key="1")
        new_id = jobs.echo.using(unique_key=str).defer_many([(1,), (2,)])[1]
        jobs.echo.using(unique_key=str).defer(2)
        arguments = {"database": "default", "queue_name": "default", "job_ids": [new_id]}
        assert deferred_signals == [("tests.app.jobs.echo", arguments)]

    def test_job_deferred_is_not_sent_for_a_refused_call(self, deferred_signals: Received) -> None:
        with pytest.raises(TypeError):
            jobs.noop.defer(1)  # type: ignore[call-arg]
        assert deferred_signals == []

    def test_a_receiver_can_be_connected_to_one_task(self) -> None:
        senders: list[str] = []

        def receiver(sender: str, **_: Any) -> None:
            senders.append(sender)

        job_deferred.connect(receiver, sender="tests.app.jobs.add")
        try:
            jobs.noop.defer()
            jobs.add.defer(1)
        finally:
            job_deferred.disconnect(receiver, sender="tests.app.jobs.add")
        assert senders == ["tests.app.jobs.add"]

    @pytest.mark.parametrize("error", [ValueError("no"), KeyError("x")], ids=repr)
    def test_a_receiver_that_raises_harms_nothing_and_is_logged(
        self, error: Exception, deferred_signals: Received, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(**_: Any) -> None:
            raise error

        job_deferred.connect(broken)
        try:
            with transaction.atomic():
                job = jobs.noop.defer()
                jobs.noop.defer_many([(), ()])
        finally:
            job_deferred.disconnect(broken)
        assert job.created
        assert Job.objects.count() == 3
        assert len(deferred_signals) == 2, "the other receiver is called nevertheless"
        records = [record for record in caplog.records if record.name == "django_skipqueue"]
        assert [record.levelno for record in records] == [logging.ERROR] * 2
        assert "broken" in records[0].getMessage()
        assert repr(error) in records[0].getMessage()


def test_the_package_has_exactly_these_django_signals() -> None:
    names = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert names >= {
        "job_deferred",
        "job_started",
        "job_completed",
        "job_failed",
        "job_retrying",
        "job_discarded",
        "job_recovered",
        "lease_lost",
        "jobs_admitted",
        "jobs_released",
        "jobs_operated",
        "jobs_pruned",
        "worker_started",
        "worker_stopped",
    }


@pytest.mark.django_db
def test_batch_finished_carries_the_counts_of_the_batch() -> None:
    senders: list[tuple[str, dict[str, Any]]] = []

    def receiver(sender: str, **event: Any) -> None:
        senders.append((sender, event))

    batch_finished.connect(receiver, sender="receipts")
    ids = []
    try:
        for name in ("receipts", "another"):
            with Batch(name=name, on_finish=jobs.noop) as batch:
                jobs.add.defer(1)
                jobs.discard.defer()
            run_jobs()
            ids.append(batch.id)
    finally:
        batch_finished.disconnect(receiver, sender="receipts")
    [(sender, event)] = senders
    finished_batch = event["batch"]
    assert (sender, event["database"], finished_batch.id) == ("receipts", "default", ids[0])
    assert (finished_batch.completed, finished_batch.discarded, finished_batch.is_failure) == (1, 1, True)


class Broken:
    """A receiver that is an object without a name, like a `functools.partial`."""

    def __call__(self, **_: Any) -> None:
        raise ValueError("no")


def test_the_receivers_after_a_callable_object_that_raises_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called_with: list[str] = []

    def record_sender(sender: str, **_: Any) -> None:
        called_with.append(sender)

    signal, broken = signals.QueueSignal(), Broken()
    signal.connect(broken)
    signal.connect(record_sender)
    emit(signal, "sender")
    assert called_with == ["sender"]
    assert "ValueError('no')" in caplog.text

"""The testing kit for tasks with steps."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase

from django_skipqueue import JobContext, job
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job, JobStep
from django_skipqueue.testing import crash_after, run_jobs

from ...app.models import Ledger

LEDGER = Ledger.objects


def charge() -> int:
    return LEDGER.create(entry="charged").pk


def mail(number: int) -> None:
    LEDGER.create(entry=f"mailed {number}")


@job(takes_context=True, name="kit.order")
def order(context: JobContext) -> str:
    number = context.step("charge", charge, atomic=True)
    context.sleep("cool off", timedelta(days=1))
    answer = context.wait("approved", timeout=timedelta(days=3))
    context.step("mail", mail, number)
    return str(answer)


@job(takes_context=True, name="kit.async_order")
async def async_order(context: JobContext) -> int:
    number = await context.astep("charge", charge, atomic=True)
    await context.astep("mail", mail, number)
    return number


class TestTheKit(TestCase):
    """The kit works in a `TestCase`, whose transaction is never committed."""

    def test_run_jobs_until_a_time_ends_the_sleeps_before_that_time(self) -> None:
        deferred_job = order.defer()
        run_jobs(until=timedelta(hours=23))
        assert Job.objects.get(pk=deferred_job.pk).status == "scheduled"
        run_jobs(until=timedelta(hours=25))
        assert Job.objects.get(pk=deferred_job.pk).status == "blocked"
        assert deferred_job.signal("approved", "yes")
        [job_run] = run_jobs()
        assert (job_run.status, job_run.result) == ("completed", "yes")

    def test_run_jobs_until_a_time_ends_the_wait_for_a_signal(self) -> None:
        deferred_job = order.defer()
        run_jobs(until=timedelta(days=5))
        assert "SignalTimeout" in Job.objects.get(pk=deferred_job.pk).last_error

    def test_crash_after_ends_the_attempt_after_the_step(self) -> None:
        order.defer()
        with crash_after("charge"):
            [job_run] = run_jobs()
        assert (job_run.status, job_run.attempts) == ("scheduled", 0)
        assert LEDGER.filter(entry="charged").count() == 1
        assert "crash_after" in job_run.last_error

    def test_crash_after_works_for_async_tasks(self) -> None:
        async_order.defer()
        with crash_after("charge"):
            [job_run] = run_jobs(include_scheduled=True)
        assert job_run.status == "completed"
        assert sorted(LEDGER.values_list("entry", flat=True)) == ["charged", f"mailed {job_run.result}"]

    def test_crash_after_ends_the_attempt_after_a_loop(self) -> None:
        looping.defer()
        with crash_after("all"):
            run_jobs(include_scheduled=True)
        run_jobs(include_scheduled=True)
        assert Job.objects.get().status == "completed"
        assert list(LEDGER.order_by("pk").values_list("entry", flat=True)) == ["item 0", "item 1", "after"]

    def test_crash_after_can_end_several_attempts(self) -> None:
        order.defer()
        with crash_after("mail", times=2):
            deferred_job = Job.objects.get()
            run_jobs(until=timedelta(days=2))
            deferred_job.signal("approved", 1)
            run_jobs()
        run_jobs(include_scheduled=True)
        assert Job.objects.get().status == "completed"
        assert LEDGER.filter(entry__startswith="mailed").count() == 1

    def test_crash_after_fails_if_no_attempt_records_the_step(self) -> None:
        order.defer()
        with pytest.raises(AssertionError, match="No attempt has recorded a step 'nothing'"), crash_after("nothing"):
            run_jobs()

    def test_a_transaction_of_the_task_counts_although_that_of_the_test_does_not(self) -> None:
        in_transaction.defer()
        with pytest.raises(InvalidOption, match="would roll back the transaction"):
            run_jobs(raise_errors=True)


@job(takes_context=True, name="kit.looping")
def looping(context: JobContext) -> None:
    for number in context.each("all", range(2)):
        if number and context.attempt == 1:
            raise ValueError
        LEDGER.create(entry=f"item {number}")
    LEDGER.create(entry="after")


@job(takes_context=True, name="kit.in_transaction")
def in_transaction(context: JobContext) -> None:
    with transaction.atomic():
        context.sleep("nap", 1)


@pytest.mark.django_db(transaction=True)
def test_kill_after_kills_a_worker_after_the_step(kill_after: Callable[..., Any]) -> None:
    deferred_job = order.defer()
    kill_after("charge")
    assert JobStep.objects.get().name == "charge"
    assert Job.objects.get(pk=deferred_job.pk).status == "queued"
    run_jobs(until=timedelta(days=2))
    assert deferred_job.signal("approved")
    kill_after("mail")
    run_jobs(include_scheduled=True)
    assert Job.objects.get(pk=deferred_job.pk).status == "completed"
    assert list(LEDGER.order_by("pk").values_list("entry", flat=True)) == [
        "charged",
        f"mailed {LEDGER.get(entry='charged').pk}",
    ]


@pytest.mark.django_db(transaction=True)
def test_kill_after_fails_if_no_attempt_records_the_step(kill_after: Callable[..., Any]) -> None:
    order.defer()
    with pytest.raises(AssertionError, match="No attempt has recorded a step"):
        kill_after("nothing")

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

WRITTEN = Ledger.objects


def charge() -> int:
    return WRITTEN.create(entry="charged").pk


def mail(number: int) -> None:
    WRITTEN.create(entry=f"mailed {number}")


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
        made = order.defer()
        run_jobs(until=timedelta(hours=23))
        assert Job.objects.get(pk=made.pk).status == "scheduled"
        run_jobs(until=timedelta(hours=25))
        assert Job.objects.get(pk=made.pk).status == "blocked"
        assert made.signal("approved", "yes")
        [ran] = run_jobs()
        assert (ran.status, ran.result) == ("completed", "yes")

    def test_run_jobs_until_a_time_ends_the_wait_for_a_signal(self) -> None:
        made = order.defer()
        run_jobs(until=timedelta(days=5))
        assert "SignalTimeout" in Job.objects.get(pk=made.pk).last_error

    def test_crash_after_ends_the_attempt_after_the_step(self) -> None:
        order.defer()
        with crash_after("charge"):
            [ran] = run_jobs()
        assert (ran.status, ran.attempts) == ("scheduled", 0)
        assert WRITTEN.filter(entry="charged").count() == 1
        assert "crash_after" in ran.last_error

    def test_crash_after_works_for_async_tasks(self) -> None:
        async_order.defer()
        with crash_after("charge"):
            [ran] = run_jobs(include_scheduled=True)
        assert ran.status == "completed"
        assert sorted(WRITTEN.values_list("entry", flat=True)) == ["charged", f"mailed {ran.result}"]

    def test_crash_after_ends_the_attempt_after_a_loop(self) -> None:
        looping.defer()
        with crash_after("all"):
            run_jobs(include_scheduled=True)
        run_jobs(include_scheduled=True)
        assert Job.objects.get().status == "completed"
        assert list(WRITTEN.order_by("pk").values_list("entry", flat=True)) == ["item 0", "item 1", "after"]

    def test_crash_after_can_end_several_attempts(self) -> None:
        order.defer()
        with crash_after("mail", times=2):
            made = Job.objects.get()
            run_jobs(until=timedelta(days=2))
            made.signal("approved", 1)
            run_jobs()
        run_jobs(include_scheduled=True)
        assert Job.objects.get().status == "completed"
        assert WRITTEN.filter(entry__startswith="mailed").count() == 1

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
        WRITTEN.create(entry=f"item {number}")
    WRITTEN.create(entry="after")


@job(takes_context=True, name="kit.in_transaction")
def in_transaction(context: JobContext) -> None:
    with transaction.atomic():
        context.sleep("nap", 1)


@pytest.mark.django_db(transaction=True)
def test_kill_after_kills_a_worker_after_the_step(kill_after: Callable[..., Any]) -> None:
    made = order.defer()
    kill_after("charge")
    assert JobStep.objects.get().name == "charge"
    assert Job.objects.get(pk=made.pk).status == "queued"
    run_jobs(until=timedelta(days=2))
    assert made.signal("approved")
    kill_after("mail")
    run_jobs(include_scheduled=True)
    assert Job.objects.get(pk=made.pk).status == "completed"
    assert list(WRITTEN.order_by("pk").values_list("entry", flat=True)) == [
        "charged",
        f"mailed {WRITTEN.get(entry='charged').pk}",
    ]


@pytest.mark.django_db(transaction=True)
def test_kill_after_fails_if_no_attempt_records_the_step(kill_after: Callable[..., Any]) -> None:
    order.defer()
    with pytest.raises(AssertionError, match="No attempt has recorded a step"):
        kill_after("nothing")

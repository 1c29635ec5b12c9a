"""`testing.assert_deferred`, `assert_not_deferred` and `capture_deferred`."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.test import TestCase

from django_skipqueue.exceptions import InvalidArguments, InvalidTask
from django_skipqueue.models import Job
from django_skipqueue.testing import (
    aassert_deferred,
    aassert_not_deferred,
    assert_deferred,
    assert_not_deferred,
    capture_deferred,
    run_jobs,
)

from ..app import jobs
from ..app.rows import make_job
from ..app.unique.jobs import send_once
from . import jobs as tasks


def failure_message_of(call: Any, *args: Any, **kwargs: Any) -> str:
    """The message with which an assertion fails."""
    with pytest.raises(AssertionError) as error_info:
        call(*args, **kwargs)
    return str(error_info.value)


class TestAssertDeferred(TestCase):
    databases = {"default", "other"}

    def test_a_job_is_found_by_all_or_some_arguments_by_position_or_by_name(self) -> None:
        job = jobs.add.defer(1, b=2)
        matching: list[Any] = [((), {}), ((1,), {}), ((1, 2), {}), ((), {"a": 1}), ((), {"b": 2}), ((1,), {"b": 2})]
        for args, kwargs in matching:
            assert [found_job.pk for found_job in assert_deferred(jobs.add, *args, **kwargs)] == [job.pk]
            with pytest.raises(AssertionError):
                assert_not_deferred(jobs.add, *args, **kwargs)
        other_arguments: list[Any] = [((2,), {}), ((1, 1), {}), ((), {"a": 2}), ((1,), {"b": 1})]
        for args, kwargs in other_arguments:
            assert_not_deferred(jobs.add, *args, **kwargs)
            with pytest.raises(AssertionError):
                assert_deferred(jobs.add, *args, **kwargs)

    def test_a_job_is_found_by_the_default_of_an_argument(self) -> None:
        jobs.add.defer(1)
        assert_deferred(jobs.add, b=0)
        assert_not_deferred(jobs.add, b=1)

    def test_a_job_is_found_by_star_arguments_and_extra_keywords(self) -> None:
        jobs.gather.defer(1, 2, 3, flag=True, color="red")
        assert_deferred(jobs.gather, 1, 2, 3, color="red")
        assert_deferred(jobs.gather, flag=True)
        assert_not_deferred(jobs.gather, 1, 2)
        assert_not_deferred(jobs.gather, size=1)

    def test_expected_values_are_compared_as_json(self) -> None:
        jobs.echo.defer({"pair": [1, 2], "price": 1.5})
        assert_deferred(jobs.echo, {"pair": (1, 2), "price": 1.5})
        assert_deferred(jobs.echo, ANY)
        with pytest.raises(InvalidArguments, match="which is not JSON"):
            assert_deferred(jobs.echo, object())

    def test_an_argument_that_the_task_does_not_have_is_an_error(self) -> None:
        for call in (assert_deferred, assert_not_deferred):
            with pytest.raises(InvalidArguments, match="paymnt_id"):
                call(jobs.send_mail, paymnt_id=1)

    def test_an_object_that_is_not_a_task_is_an_error(self) -> None:
        for task in (print, 3):
            with pytest.raises(InvalidTask, match="is no task"):
                assert_deferred(task)

    def test_jobs_of_an_unregistered_task_are_found_by_its_name(self) -> None:
        Job.objects.enqueue("far.away", args="[1, 2]", kwargs='{"x": 3}')
        jobs.add.defer(1)
        assert_deferred("far.away", 1, 2, x=3)
        assert_deferred("far.away", x=3)
        assert_not_deferred("far.away", 2)
        assert_not_deferred("far.away", y=3)
        assert_deferred(jobs.add.name, a=1)

    def test_assert_deferred_finds_a_job_that_has_already_run(self) -> None:
        jobs.add.defer(1)
        run_jobs()
        assert_deferred(jobs.add, 1)

    def test_the_number_of_jobs_can_be_asserted(self) -> None:
        jobs.add.defer_many([(1,), (1,), (2,)])
        assert len(assert_deferred(jobs.add, 1, count=2)) == 2
        assert_deferred(jobs.add, 3, count=0)
        assert "2 jobs of tests.app.jobs.add with a=1 were deferred, not 1." in failure_message_of(
            assert_deferred, jobs.add, 1, count=1
        )

    def test_the_queue_and_the_run_after_of_a_job_can_be_asserted(self) -> None:
        jobs.noop.using(queue_name="mail", run_after=timedelta(hours=1)).defer()
        assert_deferred(jobs.noop, queue_name="mail", run_after=timedelta(hours=1))
        assert_not_deferred(jobs.noop, queue_name="default")
        assert_not_deferred(jobs.noop, run_after=timedelta(0))
        moment = datetime(2190, 1, 1, tzinfo=UTC)
        jobs.noop.using(run_after=moment).defer()
        assert_deferred(jobs.noop, run_after=moment + timedelta(milliseconds=300), count=1)
        with pytest.raises(InvalidArguments, match="datetime or a timedelta"):
            assert_deferred(jobs.noop, run_after="tomorrow")  # type: ignore[arg-type]

    def test_the_options_given_to_using_must_match_too(self) -> None:
        jobs.noop.using(priority=5).defer()
        assert_deferred(jobs.noop.using(priority=5))
        assert_deferred(jobs.noop)
        assert_not_deferred(jobs.noop.using(priority=4))
        assert_not_deferred(jobs.noop.using(queue_name="bulk"))
        assert_not_deferred(jobs.noop.using(run_after=timedelta(hours=1)))

    def test_an_option_of_using_that_is_not_a_column_is_an_error(self) -> None:
        with pytest.raises(InvalidArguments, match="after is no column of a job"):
            assert_not_deferred(jobs.noop.using(after=[jobs.noop.defer()]))

    def test_parameters_named_like_options_of_the_assertion_go_into_arguments(self) -> None:
        tasks.report.using(queue_name="reports").defer(3, queue_name="mail")
        assert_deferred(tasks.report, arguments={"count": 3, "queue_name": "mail"})
        assert_deferred(tasks.report.using(queue_name="reports"), 3)
        assert_not_deferred(tasks.report, arguments={"queue_name": "reports"})
        with pytest.raises(InvalidArguments, match="queue_name is an option of the assertion, and also a parameter"):
            assert_deferred(tasks.report, queue_name="reports")
        with pytest.raises(InvalidArguments, match="count is an option of the assertion, and also a parameter"):
            assert_deferred(tasks.report, count=3)

    def test_only_the_named_database_is_searched(self) -> None:
        jobs.noop.using(database="other").defer()
        assert_not_deferred()
        assert_deferred(jobs.noop, database="other")

    def test_assert_not_deferred_without_a_task_fails_for_any_job(self) -> None:
        assert_not_deferred()
        jobs.add.defer(1)
        assert failure_message_of(assert_not_deferred).splitlines()[0] == "1 job was deferred:"
        start = "1 job of tests.app.jobs.add with a=1 was deferred:"
        assert failure_message_of(assert_not_deferred, jobs.add, 1).startswith(start)


class TestFailureMessages(TestCase):
    def test_a_failure_lists_the_jobs_that_were_deferred_instead(self) -> None:
        assert "No job was deferred at all." in failure_message_of(assert_deferred, jobs.add)
        jobs.noop.using(queue_name="mail", priority=7, run_after=timedelta(hours=1)).defer()
        jobs.add.defer(1, b=2)
        expected_job, heading, similar_job, other_job = failure_message_of(
            assert_deferred, jobs.add, 1, b=3, queue_name="mail"
        ).splitlines()
        assert expected_job == "No job of tests.app.jobs.add with a=1, b=3 and queue_name='mail' was deferred."
        assert heading == "Deferred were:"
        assert similar_job == "  tests.app.jobs.add(a=1, b=2)  [queue_name='default'] queued  (other: b, queue_name)"
        pattern = (
            r"  tests\.app\.jobs\.noop\(\)  \[queue_name='mail', priority=7, run_after=\S+ \S+, in 1:00:00\] scheduled"
        )
        assert re.fullmatch(pattern, other_job)

    def test_passwords_are_masked_in_a_failure(self) -> None:
        tasks.log_in.defer("ada", "correct horse")
        text = failure_message_of(assert_deferred, tasks.log_in, "eve")
        assert "name='ada'" in text
        assert "correct horse" not in text
        assert "correct horse" not in failure_message_of(assert_deferred, tasks.log_in, password="correct horse!")

    def test_a_long_list_of_jobs_is_shortened_in_a_failure(self) -> None:
        jobs.add.defer_many([(number,) for number in range(30)])
        text = failure_message_of(assert_deferred, jobs.add, 99)
        assert text.count("\n") == 22
        assert text.endswith("… and 10 more")
        jobs.echo.defer("x" * 10_000)
        assert len(failure_message_of(assert_deferred, jobs.echo, 1)) < 5_000


class TestCaptureDeferred(TestCase):
    def test_only_jobs_deferred_within_the_block_are_captured(self) -> None:
        jobs.add.defer(1)
        with capture_deferred() as captured_jobs:
            assert len(captured_jobs) == 0
            jobs.add.defer(2)
            jobs.add.defer_many([(3,), (4,)])
            Job.objects.enqueue("by.name")
            assert [job.args for job in captured_jobs] == [[2], [3], [4], []]
        jobs.add.defer(5)
        assert len(captured_jobs) == 4
        assert (captured_jobs[0].args, [job.args for job in captured_jobs[1:3]]) == ([2], [[3], [4]])
        assert_deferred(jobs.add, 3, among=captured_jobs)
        assert_not_deferred(jobs.add, 1, among=captured_jobs)
        assert repr(captured_jobs).splitlines()[:2] == [
            "<4 deferred jobs>",
            "  tests.app.jobs.add(a=2)  [queue_name='default'] queued",
        ]

    def test_a_job_is_captured_although_another_job_has_a_higher_id(self) -> None:
        make_job(id=1_000_000)
        with capture_deferred() as captured_jobs:
            jobs.noop.defer()
        assert len(captured_jobs) == 1

    def test_a_job_that_was_rolled_back_is_not_captured(self) -> None:
        with capture_deferred() as captured_jobs:
            with transaction.atomic():
                jobs.noop.defer()
                transaction.set_rollback(True)
            jobs.add.defer(1)
        assert [job.task for job in captured_jobs] == [jobs.add.name]

    def test_an_existing_job_found_by_its_unique_key_is_not_captured(self) -> None:
        send_once.defer(1)
        with capture_deferred() as captured_jobs:
            send_once.defer(1)
        assert not captured_jobs

    def test_an_exception_of_the_block_is_raised_unchanged(self) -> None:
        """`capture_deferred` sends no query then, because the exception may have broken the transaction."""
        with pytest.raises(KeyError), capture_deferred():
            raise KeyError

    def test_capture_deferred_can_be_used_for_a_second_block(self) -> None:
        captured = capture_deferred()
        for number in range(2):
            with captured:
                jobs.add.defer(number)
            assert [job.args for job in captured] == [[number]]


class TestAsyncForms(TestCase):
    async def test_each_assertion_has_an_async_form(self) -> None:
        async with capture_deferred() as captured_jobs:
            await jobs.add.adefer(1)
        assert len(captured_jobs) == 1
        await aassert_deferred(jobs.add, 1, count=1)
        await aassert_not_deferred(jobs.add, 2)
        with pytest.raises(AssertionError, match="1 job of tests"):
            await aassert_not_deferred(jobs.add)

    async def test_the_error_of_a_sync_form_in_async_code_names_the_async_form(self) -> None:
        for call, name in (
            (lambda: assert_deferred(jobs.noop), r"await aassert_deferred\(\)"),
            (assert_not_deferred, r"await aassert_not_deferred\(\)"),
            (capture_deferred().__enter__, r"async with capture_deferred\(\)"),
        ):
            with pytest.raises(SynchronousOnlyOperation, match=name):
                call()

"""`@job` makes a task from a function. `.defer()` makes a job from a call, and refuses a call that cannot run."""

import asyncio
import contextlib
import functools
import inspect
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_skipqueue import JobContext, Task, TaskCall, job
from django_skipqueue.exceptions import (
    DuplicateTask,
    InvalidArguments,
    InvalidOption,
    InvalidTask,
    SkipQueueError,
    UnknownTask,
)
from django_skipqueue.jobs.registry import RUNNER_NAMES, Registry, registry
from django_skipqueue.models import Job, Status
from django_skipqueue.queue.store import Store
from django_skipqueue.values.backoff import exponential
from django_skipqueue.values.records import EncodedCall, JobSpec
from django_skipqueue.worker.attempts.pool import RUNNERS

from ..app import jobs
from ..app.rows import state
from ..harness.table import Case

store = Store("default")

# Functions that become tasks inside tests. The fixture `registry` gives each test an empty registry.


def generator() -> Iterator[int]:
    yield 1


async def agenerator() -> AsyncIterator[int]:
    yield 1


def subtract(a: int, b: int = 0) -> int:
    """The docstring of the function."""
    return a - b


async def coroutine(a: int) -> int:
    return a * 2


def with_context(context: JobContext, /, a: int) -> Any:
    return context, a


def function_without_parameters() -> None:
    """A second function, which cannot take a context because it has no parameters."""


REFUSED_BY_THE_DECORATOR: list[dict[str, Any]] = [
    {"priority": 101},
    {"priority": -101},
    {"priority": 1.0},
    {"priority": True},
    {"priority": None},
    {"max_attempts": 0},
    {"max_attempts": 32_768},
    {"max_attempts": "3"},
    {"max_attempts": False},
    {"queue_name": ""},
    {"queue_name": "a,b"},
    {"queue_name": " a"},
    {"queue_name": "a\n"},
    {"queue_name": None},
    {"queue_name": 5},
    {"unique_key": 5},
    {"name": 5},
    {"atomic": "no"},
    {"atomic": None},
    {"takes_context": 1},
    {"backoff": 60},
    {"backoff": "exponential"},
    {"retry_on": "OSError"},
    {"retry_on": (OSError, "ValueError")},
    {"discard_on": OSError()},
]

REFUSED_BY_USING: list[dict[str, Any]] = [
    {"priority": 101},
    {"priority": -101},
    {"priority": 0.5},
    {"max_attempts": 0},
    {"max_attempts": 32_768},
    {"queue_name": ""},
    {"queue_name": "a,b"},
    {"queue_name": "a\0b"},
    {"queue_name": "\ud800"},
    {"queue_name": "q" * 10_000},
    {"run_after": "tomorrow"},
    {"run_after": 60},
    {"run_after": date(2026, 1, 1)},
    {"run_after": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"run_after": timedelta.max},
    {"run_after": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
    {"run_after": datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))},
]

REFUSED_BY_THE_STORE: list[dict[str, Any]] = [
    {"priority": 101},
    {"priority": "5"},
    {"max_attempts": 0},
    {"queue_name": " gpu"},
    {"run_after": datetime(9999, 1, 1, tzinfo=UTC)},
    {"run_after": timedelta(days=400_000)},
    {"timeout": 0},
    {"timeout": 10**400},
]


class TestJobDecorator:
    def test_job_without_brackets_makes_a_task(self, registry: Registry) -> None:
        task = job(subtract)
        assert isinstance(task, Task)
        assert task.name == "tests.jobs.test_tasks.subtract"
        assert registry.get("tests.jobs.test_tasks.subtract") is task
        assert list(registry) == [task]
        assert len(registry) == 1

    def test_job_with_empty_brackets_makes_a_task(self, registry: Registry) -> None:
        assert job()(subtract).name == "tests.jobs.test_tasks.subtract"

    def test_job_with_options_makes_a_task(self, registry: Registry) -> None:
        task = job(
            name="sums",
            queue_name="maths",
            priority=-7,
            max_attempts=3,
            backoff=lambda attempt: 42.0,
            retry_on=(OSError,),
            discard_on=(KeyError,),
        )(subtract)
        assert registry.get("sums") is task
        assert (task.options.queue_name, task.options.priority, task.options.max_attempts) == ("maths", -7, 3)
        assert task.policy.backoff(1) == 42
        assert task.policy.retry_on == (OSError,)
        assert task.policy.discard_on == (KeyError,)

    def test_retry_on_takes_one_exception_class_or_several(self, registry: Registry) -> None:
        task = job(retry_on=OSError, discard_on=[KeyError, LookupError])(subtract)  # type: ignore[call-overload]
        assert task.policy.retry_on == (OSError,)
        assert task.policy.discard_on == (KeyError, LookupError)

    def test_calling_a_task_calls_its_function(self, registry: Registry) -> None:
        assert job(subtract)(5, b=2) == 3

    def test_calling_an_async_task_makes_its_coroutine(self, registry: Registry) -> None:
        task = job(coroutine)
        assert task.is_async
        assert asyncio.run(task(4)) == 8

    def test_a_task_with_takes_context_is_called_with_a_context(self, registry: Registry) -> None:
        context = JobContext(1, 1, 1, queue_name="default", worker="me", database="default")
        assert job(takes_context=True)(with_context)(context, a=3) == (context, 3)

    def test_a_task_has_the_name_docstring_and_signature_of_its_function(self, registry: Registry) -> None:
        task = job(subtract)
        assert task.__doc__ == "The docstring of the function."
        assert (task.__name__, task.__qualname__, task.__module__) == ("subtract", "subtract", __name__)
        assert inspect.unwrap(task) is subtract
        assert inspect.signature(task) == inspect.signature(subtract)
        assert repr(task) == "<Task tests.jobs.test_tasks.subtract>"

    def test_a_decorated_function_can_be_a_task(self, registry: Registry) -> None:
        @functools.wraps(subtract)
        def wrapper(*args: Any) -> Any:
            return subtract(*args)

        assert job(wrapper).name == "tests.jobs.test_tasks.subtract"

    def test_a_function_that_is_not_at_module_level_cannot_be_a_task(self, registry: Registry) -> None:
        def inner() -> None: ...

        with pytest.raises(
            InvalidTask, match=r"tests\.jobs\.test_tasks\..*inner is not at module level.* Move the function"
        ):
            job(inner)

    def test_a_lambda_cannot_be_a_task(self, registry: Registry) -> None:
        with pytest.raises(InvalidTask, match="not at module level"):
            job(lambda: None)

    def test_a_method_cannot_be_a_task(self, registry: Registry) -> None:
        with pytest.raises(InvalidTask, match="not at module level"):
            job(TestJobDecorator.test_job_without_brackets_makes_a_task)

    def test_an_object_that_is_not_a_function_cannot_be_a_task(
        self, registry: Registry, subtests: pytest.Subtests
    ) -> None:
        objects: list[Any] = [functools.partial(subtract, 1), int, print, 5, "name", jobs.noop]
        for value in objects:
            with subtests.test(value=value), pytest.raises(InvalidTask, match="@job takes a function, not"):
                job(value)

    @pytest.mark.parametrize("function", [generator, agenerator])
    def test_a_generator_cannot_be_a_task(self, registry: Registry, function: Any) -> None:
        """Calling a generator function does not run its body."""
        with pytest.raises(InvalidTask, match="generator yields, so calling it would run nothing of it"):
            job(function)

    def test_takes_context_is_refused_for_a_function_without_parameters(self, registry: Registry) -> None:
        with pytest.raises(InvalidTask, match="first parameter must be the context"):
            job(takes_context=True)(function_without_parameters)  # type: ignore[arg-type]

    def test_the_decorator_refuses_each_invalid_option_by_name(
        self, registry: Registry, subtests: pytest.Subtests
    ) -> None:
        untyped_job: Any = job
        for options in REFUSED_BY_THE_DECORATOR:
            [name_of_option] = options
            with subtests.test(options=options):
                with pytest.raises(InvalidOption, match=name_of_option):
                    untyped_job(**options)(subtract)
                assert not list(registry)

    @pytest.mark.parametrize(
        "backoff", [exponential, lambda: 3, lambda attempt, error: 3], ids=["a factory", "no argument", "two arguments"]
    )
    def test_a_backoff_function_without_exactly_one_argument_is_refused(self, backoff: Any) -> None:
        with pytest.raises(InvalidOption, match="backoff must be"):
            job(backoff=backoff)(subtract)

    @pytest.mark.parametrize("backoff", [math.sqrt, max, lambda *numbers: 3.0], ids=["sqrt", "max", "stars"])
    def test_a_builtin_function_or_one_with_star_args_can_be_a_backoff(self, registry: Registry, backoff: Any) -> None:
        assert job(backoff=backoff)(subtract).policy.backoff is backoff

    def test_all_errors_are_skip_queue_errors_and_some_are_builtin_errors_too(self) -> None:
        assert issubclass(InvalidArguments, TypeError)
        assert issubclass(InvalidOption, ValueError)
        for error in (DuplicateTask, InvalidArguments, InvalidOption, InvalidTask, UnknownTask):
            assert issubclass(error, SkipQueueError)
            assert str(error()) == error.__doc__


class TestRegistry:
    def test_the_jobs_module_of_each_installed_app_is_imported_at_start(self) -> None:
        assert registry.get("tests.app.jobs.noop") is jobs.noop
        assert registry.get("mail.send") is jobs.send_mail

    def test_the_error_for_an_unknown_task_has_its_name(self, registry: Registry) -> None:
        with pytest.raises(UnknownTask, match=r"No task is registered as 'no\.such\.task'"):
            registry.get("no.such.task")

    @pytest.mark.django_db
    @pytest.mark.parametrize("defer", ["defer", "defer_many", "using"])
    def test_of_two_functions_registered_under_one_name_neither_can_be_deferred(
        self, registry: Registry, defer: str
    ) -> None:
        defer_functions: dict[str, Callable[[Task[..., Any], list[int]], object]] = {
            "defer": lambda task, args: task.defer(*args),
            "defer_many": lambda task, args: task.defer_many([args]),
            "using": lambda task, args: task.using(priority=1).defer(*args),
        }
        first_task, second_task = job(name="sums")(subtract), job(name="sums")(function_without_parameters)
        for task in (first_task, second_task):
            with pytest.raises(DuplicateTask) as error_info:
                defer_functions[defer](task, [1] * len(task.signature.parameters))
            assert str(error_info.value) == (
                "Two tasks are registered as 'sums': tests.jobs.test_tasks.subtract and "
                "tests.jobs.test_tasks.function_without_parameters. "
                "Give one of them another name with @job(name=…)."
            )
        assert not Job.objects.exists()

    def test_a_reload_of_a_module_replaces_its_tasks(self, registry: Registry) -> None:
        job(subtract)
        reloaded_task = job(subtract)
        assert not registry.duplicates
        assert registry.get(reloaded_task.name) is reloaded_task
        registry.require_findable(reloaded_task)

    def test_a_task_with_another_name_is_not_affected_by_a_duplicate(self, registry: Registry) -> None:
        job(name="sums")(subtract)
        job(name="sums")(function_without_parameters)
        registry.require_findable(job(coroutine))


def test_each_runner_name_that_a_task_can_use_has_a_runner() -> None:
    assert tuple(RUNNERS) == RUNNER_NAMES


@pytest.mark.django_db
class TestDeferring:
    @pytest.mark.core
    def test_defer_returns_a_job_with_all_values_of_its_row(self) -> None:
        deferred_job = jobs.add.defer(1, b=2)
        assert isinstance(deferred_job, Job)
        assert deferred_job.created
        assert deferred_job.task == "tests.app.jobs.add"
        assert (deferred_job.args, deferred_job.kwargs) == ([1], {"b": 2})
        assert (deferred_job.status, deferred_job.queue_name, deferred_job.priority) == (Status.QUEUED, "default", 0)
        assert (deferred_job.attempts, deferred_job.max_attempts, deferred_job.lease) == (0, 10, 0)
        assert deferred_job.run_after == deferred_job.enqueued_at
        assert (deferred_job.locked_at, deferred_job.locked_by, deferred_job.started_at, deferred_job.finished_at) == (
            None,
            "",
            None,
            None,
        )
        assert (deferred_job.result, deferred_job.last_error, deferred_job.errors, deferred_job.metadata) == (
            None,
            "",
            [],
            {},
        )
        stored_job = Job.objects.get()
        for field in Job._meta.fields:
            assert getattr(deferred_job, field.attname) == getattr(stored_job, field.attname), field.attname

    @pytest.mark.core
    def test_a_job_has_the_options_of_its_task(self) -> None:
        deferred_job = jobs.send_mail.defer(payment_id=3)
        assert (deferred_job.task, deferred_job.queue_name, deferred_job.priority, deferred_job.max_attempts) == (
            "mail.send",
            "mail",
            7,
            3,
        )

    @pytest.mark.core
    def test_using_changes_the_options_of_one_job_only(self) -> None:
        deferred_job = jobs.send_mail.using(queue_name="slow", priority=-3, max_attempts=1).defer(payment_id=3)
        assert (deferred_job.queue_name, deferred_job.priority, deferred_job.max_attempts) == ("slow", -3, 1)
        assert jobs.send_mail.defer(payment_id=3).queue_name == "mail"

    def test_several_calls_of_using_combine_their_options(self) -> None:
        deferred_job = jobs.noop.using(priority=5).using(queue_name="slow").using(priority=6).defer()
        assert (deferred_job.priority, deferred_job.queue_name) == (6, "slow")

    def test_priorities_from_minus_100_to_100_are_accepted(self, subtests: pytest.Subtests) -> None:
        for priority in (-100, -1, 0, 1, 100):
            with subtests.test(priority=priority):
                assert jobs.noop.using(priority=priority).defer().priority == priority

    @pytest.mark.parametrize("max_attempts", [1, 32_767])
    def test_the_smallest_and_the_largest_max_attempts_are_accepted(self, max_attempts: int) -> None:
        assert jobs.noop.using(max_attempts=max_attempts).defer().max_attempts == max_attempts

    @pytest.mark.core
    def test_using_refuses_each_invalid_option_by_name(self, case: Case) -> None:
        for options in REFUSED_BY_USING:
            [name_of_option] = options
            with case(options=options):
                with pytest.raises((InvalidOption, InvalidArguments), match=name_of_option):
                    jobs.noop.using(**options).defer()
                assert not Job.objects.exists()

    def test_the_store_refuses_each_invalid_column_before_any_query(self, case: Case) -> None:
        for columns in REFUSED_BY_THE_STORE:
            [name_of_column] = columns
            with case(columns=columns), CaptureQueriesContext(connection) as queries:
                with pytest.raises(InvalidOption, match=name_of_column):
                    Job.objects.enqueue("t", **columns)
                with pytest.raises(InvalidOption, match=name_of_column):
                    store.enqueue_many(JobSpec("t", **columns), [EncodedCall("[]", "{}")])
                assert len(queries) == 0

    def test_a_naive_run_after_is_refused_with_use_tz(self, settings: Any) -> None:
        settings.USE_TZ = True
        with pytest.raises(InvalidOption, match="run_after must be an aware datetime under USE_TZ = True"):
            jobs.noop.using(run_after=datetime(2026, 1, 1))  # noqa: DTZ001

    def test_an_aware_run_after_is_refused_without_use_tz(self, settings: Any) -> None:
        settings.USE_TZ = False
        with pytest.raises(InvalidOption, match="run_after must be a naive datetime under USE_TZ = False"):
            jobs.noop.using(run_after=datetime(2026, 1, 1, tzinfo=UTC))

    def test_the_default_of_max_attempts_comes_from_the_settings(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"MAX_ATTEMPTS": 4}
        assert jobs.noop.defer().max_attempts == 4
        assert Job.objects.get(pk=jobs.noop.defer_many([()])[0]).max_attempts == 4

    def test_a_timedelta_as_run_after_counts_from_the_clock_of_the_database(self, case: Case) -> None:
        delays = {
            timedelta(hours=1): ("scheduled", 3600),
            timedelta(milliseconds=100_500): ("scheduled", 100.5),
            timedelta(0): ("queued", 0),
            timedelta(hours=-1): ("queued", -3600),
            timedelta(days=365): ("scheduled", 365 * 86_400),
        }
        for (run_after, (status, seconds)), with_defer_many in product(delays.items(), [False, True]):
            with case(run_after=run_after, with_defer_many=with_defer_many):
                task = jobs.noop.using(run_after=run_after)
                deferred_job = Job.objects.get(pk=task.defer_many([()])[0]) if with_defer_many else task.defer()
                assert deferred_job.status == status
                with connection.cursor() as cursor:  # now() is the start of the transaction, which is enqueued_at
                    cursor.execute("SELECT extract(epoch FROM statement_timestamp() - now())::float8")
                    (elapsed,) = cursor.fetchone()
                assert (
                    seconds <= (deferred_job.run_after - deferred_job.enqueued_at).total_seconds() <= seconds + elapsed
                )

    def test_a_datetime_as_run_after_is_stored_exactly(self, case: Case) -> None:
        times = {
            datetime(2999, 1, 1, tzinfo=UTC): "scheduled",
            datetime(2999, 1, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))): "scheduled",
            datetime(1999, 1, 1, tzinfo=UTC): "queued",
        }
        for (run_after, status), with_defer_many in product(times.items(), [False, True]):
            with case(run_after=run_after, with_defer_many=with_defer_many):
                task = jobs.noop.using(run_after=run_after)
                deferred_job = Job.objects.get(pk=task.defer_many([()])[0]) if with_defer_many else task.defer()
                assert deferred_job.run_after == run_after
                assert deferred_job.status == status

    @pytest.mark.core
    def test_arguments_are_stored_by_position_or_by_name_as_they_were_given(self, case: Case) -> None:
        # Name: arguments of the call by position and by name, stored arguments by position and by name.
        calls: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[Any], dict[str, Any]]] = {
            "positional": ((1,), {}, [1], {}),
            "by name": ((), {"first": 1}, [], {"first": 1}),
            "rest": ((1, 2, 3), {"flag": True}, [1, 2, 3], {"flag": True}),
            "others": ((1,), {"other": None, "Łódź": "ü"}, [1], {"other": None, "Łódź": "ü"}),
            "nested": (((1, 2),), {"nested": {"a": [1.5]}}, [[1, 2]], {"nested": {"a": [1.5]}}),
        }
        for name, (args, kwargs, stored_args, stored_kwargs) in calls.items():
            with case(name):
                deferred_job = jobs.gather.defer(*args, **kwargs)
                assert (deferred_job.args, deferred_job.kwargs) == (stored_args, stored_kwargs)
                job_of_defer_many = Job.objects.get(pk=jobs.gather.defer_many([args or kwargs])[0])
                assert (job_of_defer_many.args, job_of_defer_many.kwargs) == (
                    stored_args if args else [],
                    {} if args else stored_kwargs,
                )

    def test_the_default_of_a_parameter_is_not_stored(self) -> None:
        assert jobs.add.defer(1).kwargs == {}

    def test_using_refuses_a_database_that_the_settings_do_not_have(self) -> None:
        with pytest.raises(InvalidOption, match="database must be one of default, other, not 'nope'"):
            jobs.noop.using(database="nope")

    def test_the_context_of_a_task_is_not_given_to_defer(self) -> None:
        assert jobs.see_context.defer("a").args == ["a"]
        assert jobs.see_context.defer(note="a").kwargs == {"note": "a"}
        with pytest.raises(InvalidArguments):
            jobs.see_context.defer(None, "a")  # type: ignore[call-arg, arg-type]
        with pytest.raises(InvalidArguments, match="context"):
            jobs.see_context.defer(context=None)  # type: ignore[call-arg]

    def test_defer_sends_at_most_two_statements(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            jobs.noop.defer()
        assert len(queries) <= 2, "the INSERT, and the NOTIFY where there is no transaction"


def list_that_contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


# Name: task, arguments by position, arguments by name, part of the error message.
REFUSED_CALLS: dict[str, tuple[Task[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "wrong name": (
        jobs.add,
        (1,),
        {"c": 1},
        "tests.app.jobs.add(a: int, b: int = 0) -> int: got an unexpected keyword argument 'c'",
    ),
    "missing": (jobs.add, (), {"b": 1}, "missing a required argument: 'a'"),
    "too many": (jobs.add, (1, 2, 3), {}, "too many positional arguments"),
    "twice": (jobs.add, (1,), {"a": 1}, "multiple values for argument 'a'"),
    "set": (jobs.add, ({1},), {}, "a is a set"),
    "set by name": (jobs.add, (1,), {"b": {1}}, "b is a set"),
    "model": (jobs.add, (Job(),), {}, "a is a Job, which is not JSON"),
    "nan": (jobs.add, (1, math.nan), {}, "b is nan"),
    "inf": (jobs.add, (), {"a": math.inf}, "a is inf"),
    "nul": (jobs.echo, ("\0",), {}, "value contains a NUL"),
    "surrogate": (jobs.echo, ("\ud800",), {}, "value contains half of a surrogate"),
    "key": (jobs.echo, ({1: 2},), {}, "value has the key 1"),
    "deep inside": (jobs.echo, ({"a": [1, {"b": {2}}]},), {}, "value['a'][1]['b'] is a set"),
    "in the rest": (jobs.gather, (1, 2, {3}), {}, "rest[1] is a set"),
    "among the others": (jobs.gather, (1,), {"other": {3}}, "other is a set"),
    "contains itself": (
        jobs.echo,
        (list_that_contains_itself(),),
        {},
        "value is nested too deeply, or contains itself",
    ),
    "huge number": (jobs.echo, (10**5000,), {}, "value cannot be stored as JSON"),
    "nul in a name": (jobs.gather, (1,), {"a\0b": 1}, r"'a\x00b'"),
    "surrogate in a name": (jobs.gather, (1,), {"\ud800": 1}, r"'\ud800'"),
}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options",
    [{}, {"run_after": timedelta(hours=1), "priority": 5, "max_attempts": 2, "unique_key": "k", "timeout": 3.5}],
    ids=["plain", "with options"],
)
def test_each_field_of_the_returned_job_equals_the_stored_row(options: dict[str, Any]) -> None:
    """`defer` fills the returned job from the values that it has sent. The test fails if a new column is forgotten."""
    job = jobs.gather.using(**options).defer(1, "ü", [1.5, None, 1e23], flag={"b": 1, "a": True})  # type: ignore[arg-type]
    stored_job = Job.objects.get()
    assert {field.name: getattr(job, field.name) for field in Job._meta.fields} == state(stored_job)
    assert (job._state.adding, job._state.db) == (False, stored_job._state.db)
    job.save()


def make_key_function(key: Any) -> Callable[..., Any]:
    return lambda a, b=0: key


@pytest.mark.django_db
class TestRefusedCalls:
    def test_defer_refuses_a_call_that_could_never_run_and_names_the_argument(self, case: Case) -> None:
        for name, (task, args, kwargs, message_part) in REFUSED_CALLS.items():
            with case(name), CaptureQueriesContext(connection) as queries:
                with pytest.raises(InvalidArguments) as error_info:
                    task.defer(*args, **kwargs)
                assert message_part in str(error_info.value)
                assert not queries.captured_queries, "nothing reaches the database"

    def test_defer_many_names_the_call_that_could_never_run_and_writes_nothing(self, case: Case) -> None:
        for name, (task, args, kwargs, message_part) in REFUSED_CALLS.items():
            if args and kwargs:
                continue  # `defer_many` takes one or the other
            first_parameter = {jobs.add.name: "a", jobs.echo.name: "value"}.get(task.name, "first")
            valid_call: Any = {first_parameter: 1}
            with case(name), CaptureQueriesContext(connection) as queries:
                with pytest.raises(InvalidArguments) as error_info:
                    task.defer_many([valid_call, valid_call, args or kwargs])
                assert message_part in str(error_info.value)
                assert str(error_info.value).startswith("call 2: ")
                assert not queries.captured_queries

    @pytest.mark.parametrize("call", ["ab", 5, None, {1, 2}], ids=repr)
    def test_defer_many_names_an_item_that_is_not_a_call(self, call: Any) -> None:
        with pytest.raises(InvalidArguments, match=r"call 1: give task\.s\(…\), a dict of keyword"):
            jobs.gather.defer_many([(1,), call])


@pytest.mark.django_db(transaction=True)
class TestAsync:
    def test_adefer_makes_a_job_in_async_code(self) -> None:
        deferred_job = async_to_sync(jobs.aadd.adefer)(1, b=2)
        assert (deferred_job.task, deferred_job.args, deferred_job.kwargs) == ("tests.app.jobs.aadd", [1], {"b": 2})

    def test_adefer_many_returns_the_ids_of_its_jobs(self) -> None:
        ids = async_to_sync(jobs.aadd.adefer_many)([{"a": 1}, (2, 3)])
        assert list(Job.objects.order_by("pk").values_list("pk", flat=True)) == ids

    def test_adefer_refuses_an_argument_that_is_not_json(self) -> None:
        with pytest.raises(InvalidArguments, match="a is a set"):
            async_to_sync(jobs.aadd.adefer)({1})  # type: ignore[arg-type]

    def test_50_concurrent_adefer_calls_make_50_jobs(self) -> None:
        async def defer_50_jobs() -> list[Job]:
            return list(await asyncio.gather(*(jobs.aadd.adefer(number) for number in range(50))))

        deferred_jobs = async_to_sync(defer_50_jobs)()
        assert sorted(job.args[0] for job in deferred_jobs) == list(range(50))
        assert Job.objects.count() == 50


@pytest.mark.django_db(transaction=True)
class TestDeferringMany:
    def test_fifty_thousand_calls_are_one_statement_with_the_ids_in_order(self) -> None:
        calls = [(number,) for number in range(50_000)]
        started_at = time.monotonic()
        with CaptureQueriesContext(connection) as queries:
            ids = jobs.add.defer_many(calls)
        assert ["INSERT INTO" in query["sql"] for query in queries] == [True, False]
        assert len(queries) == 2, "one INSERT and one NOTIFY"
        assert ids == sorted(set(ids))
        with connection.cursor() as cursor:
            cursor.execute("SELECT id, (args ->> 0)::int FROM skipqueue_job ORDER BY (args ->> 0)::int")
            assert cursor.fetchall() == list(zip(ids, range(50_000), strict=True))
        assert time.monotonic() - started_at < 20

    def test_defer_many_without_calls_sends_no_statement(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            assert jobs.add.defer_many([]) == []
        assert not queries.captured_queries

    def test_defer_many_takes_dicts_tuples_and_lists(self) -> None:
        ids = jobs.add.defer_many([{"a": 1, "b": 2}, (3,), [4, 5], {"a": 6}])
        stored_arguments = {job.pk: (job.args, job.kwargs) for job in Job.objects.all()}
        assert [stored_arguments[id] for id in ids] == [([], {"a": 1, "b": 2}), ([3], {}), ([4, 5], {}), ([], {"a": 6})]

    def test_defer_many_takes_calls_made_by_s(self) -> None:
        ids = jobs.add.defer_many([jobs.add.s(1, b=2), (3,), jobs.add.s(a=4)])
        stored_arguments = {job.pk: (job.args, job.kwargs) for job in Job.objects.all()}
        assert [stored_arguments[id] for id in ids] == [([1], {"b": 2}), ([3], {}), ([], {"a": 4})]

    def test_defer_many_refuses_a_call_of_another_task_or_with_other_options(self, case: Case) -> None:
        urgent_add = jobs.add.using(priority=5)
        refused_calls: list[tuple[Task[..., Any], TaskCall, str]] = [
            (jobs.add, jobs.aadd.s(1), r"call 1: \S+\.aadd is another task\. Give calls of \S+\.add, "),
            (jobs.add, urgent_add.s(1), r"call 1: it has other options than the other calls\. Give them once: "),
            (urgent_add, jobs.add.s(1), "call 1: it has other options"),
        ]
        for task, call, message_part in refused_calls:
            with case(message_part):
                with pytest.raises(InvalidOption, match=message_part):
                    task.defer_many([(0,), call])
                assert not Job.objects.filter(task=jobs.add.name).exists()

    def test_defer_many_takes_a_generator(self) -> None:
        assert len(jobs.add.defer_many((number,) for number in range(3))) == 3  # type: ignore[arg-type]

    def test_all_jobs_of_defer_many_have_the_options_of_the_task(self) -> None:
        task = jobs.add.using(queue_name="sums", priority=3, max_attempts=2, run_after=timedelta(hours=1))
        task.defer_many([(1,), (2,)])
        distinct_columns = Job.objects.values_list("queue_name", "priority", "max_attempts", "status").distinct()
        assert list(distinct_columns) == [("sums", 3, 2, "scheduled")]

    def test_the_jobs_of_defer_many_are_atomic_with_the_callers_data(self) -> None:
        with transaction.atomic():
            jobs.add.defer_many([(1,), (2,)])
            transaction.set_rollback(True)
        assert not Job.objects.exists()

    def test_texts_with_special_characters_are_stored_unchanged(self) -> None:
        texts = ["\\", '"', "\\u0000", "%s %(x)s %%", "a\nb", "\u2028", "🐘", "'", "$1", "\x01"]
        ids = jobs.echo.defer_many([(text,) for text in texts])
        job_by_id = Job.objects.in_bulk(ids)
        assert [job_by_id[id].args for id in ids] == [[text] for text in texts]


@pytest.mark.django_db(transaction=True)
class TestTransactions:
    def test_a_rollback_removes_the_jobs_of_defer_and_defer_many(self) -> None:
        with contextlib.suppress(RuntimeError), transaction.atomic():
            jobs.noop.defer()
            jobs.add.defer_many([(1,)])
            raise RuntimeError
        assert not Job.objects.exists()

    def test_another_session_sees_a_job_only_after_the_commit(self, connect: Callable[..., Any]) -> None:
        other_connection = connect()
        with transaction.atomic():
            jobs.noop.defer()
            assert other_connection.execute("SELECT count(*) FROM skipqueue_job").fetchone() == (0,)
        assert other_connection.execute("SELECT count(*) FROM skipqueue_job").fetchone() == (1,)

    def test_a_rollback_to_a_savepoint_keeps_the_jobs_deferred_before_it(self) -> None:
        with transaction.atomic():
            kept_job = jobs.noop.defer()
            with contextlib.suppress(RuntimeError), transaction.atomic():
                jobs.noop.defer()
                raise RuntimeError
        assert list(Job.objects.values_list("pk", flat=True)) == [kept_job.pk]

    def test_a_refused_call_does_not_break_the_transaction(self) -> None:
        with transaction.atomic():
            with pytest.raises(InvalidArguments):
                jobs.add.defer({1})  # type: ignore[arg-type]
            jobs.add.defer(1)
        assert Job.objects.count() == 1


class TestArgumentSize:
    @pytest.mark.django_db
    def test_arguments_of_101_bytes_are_refused_if_the_limit_is_100(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"MAX_ARGUMENT_BYTES": 100}
        text_of_100_bytes = "x" * (100 - len('[""]{}'))
        assert jobs.echo.defer(text_of_100_bytes).args == [text_of_100_bytes]
        with pytest.raises(InvalidArguments, match=r"101 bytes long, and SKIPQUEUE\['MAX_ARGUMENT_BYTES'\] is 100"):
            jobs.echo.defer(text_of_100_bytes + "x")
        assert Job.objects.count() == 1

    @pytest.mark.django_db
    def test_the_size_limit_counts_bytes_and_not_characters(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"MAX_ARGUMENT_BYTES": 100}
        with pytest.raises(InvalidArguments, match="Store what is large elsewhere, and pass its key"):
            jobs.echo.defer("é" * 60)

    @pytest.mark.django_db
    def test_defer_many_names_a_call_with_too_large_arguments_and_writes_nothing(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"MAX_ARGUMENT_BYTES": 100}
        with pytest.raises(InvalidArguments, match="call 1: the arguments are"):
            jobs.echo.defer_many([("a",), ("b" * 100,)])
        assert not Job.objects.exists()


@pytest.mark.django_db
def test_the_error_of_defer_in_async_code_names_adefer() -> None:
    async def defer() -> None:
        jobs.add.defer(1, 2)

    with pytest.raises(SynchronousOnlyOperation, match=r"await task\.adefer\(…\)"):
        async_to_sync(defer)()


def test_using_refuses_an_option_that_only_the_decorator_has() -> None:
    with pytest.raises(TypeError, match=r"using\(\) has no option 'concurrency'\. Give concurrency to @job\."):
        jobs.add.using(concurrency=3)  # type: ignore[call-arg]

"""`Executor`: whatever a task does, the executor returns an attempt with an outcome. The tests use no database."""

import asyncio
import contextvars
import decimal
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import override_settings

from django_skipqueue import JobContext, Retry, job
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.signals import job_started
from django_skipqueue.values.outcomes import MESSAGE_LIMIT, TRACEBACK_LIMIT, Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker.attempts.executor import UNKNOWN_TASK_DELAY, Executor
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt

from ...app import jobs, worker_jobs

APP = "tests.app.jobs"
WORKER_APP = "tests.app.worker_jobs"


def make_claimed(task: str, *args: Any, attempt: int = 1, max_attempts: int = 10, **fields: Any) -> ClaimedJob:
    kwargs = fields.pop("kwargs", {})
    defaults = {"run_after": 1000.0, "locked_at": 1001.5, "metadata": "{}", "priority": 0, "queue_name": "default"}
    return ClaimedJob(
        id=7,
        lease=3,
        task=task,
        args=json.dumps(args),
        kwargs=json.dumps(kwargs),
        attempt=attempt,
        max_attempts=max_attempts,
        **{**defaults, **fields},
    )


Execute = Callable[[ClaimedJob], Attempt]


@pytest.fixture
def executor() -> Executor:
    return Executor(worker="host/1", database="default")


@pytest.fixture
def execute(executor: Executor) -> Execute:
    return lambda job: executor.execute(RunningAttempt(job))


@pytest.fixture(params=["def", "async def"])
def execute_def_or_async(request: pytest.FixtureRequest, executor: Executor) -> Callable[..., Outcome]:
    """Runs a `def` task, or the `async def` task that has its name with an `a` before it."""

    def outcome_of(task: str, *args: Any, **fields: Any) -> Outcome:
        module, _, name = task.rpartition(".")
        if request.param == "def":
            return executor.execute(RunningAttempt(make_claimed(task, *args, **fields))).outcome
        attempt = RunningAttempt(make_claimed(f"{module}.a{name}", *args, **fields))
        return asyncio.run(executor.execute_async(attempt)).outcome

    return outcome_of


def test_the_value_that_a_task_returns_is_the_result_of_its_completed_job(
    execute_def_or_async: Callable[..., Outcome],
) -> None:
    assert execute_def_or_async(f"{APP}.add", 2, kwargs={"b": 3}) == Outcome("completed", result="5")


def test_a_task_that_returns_nothing_has_no_result(execute_def_or_async: Callable[..., Outcome]) -> None:
    assert execute_def_or_async(f"{APP}.noop") == Outcome("completed", result=None)


def test_an_exception_schedules_a_retry_and_is_recorded_with_its_traceback(
    execute_def_or_async: Callable[..., Outcome],
) -> None:
    outcome = execute_def_or_async(f"{APP}.fail", "no luck", max_attempts=3)
    assert (outcome.status, outcome.delay, outcome.refund) == ("scheduled", 0, 0)
    assert outcome.last_error == "ValueError: no luck"
    assert outcome.error is not None
    assert outcome.error["exception"] == "builtins.ValueError"
    assert outcome.error["message"] == "no luck"
    assert (outcome.error["attempt"], outcome.error["worker"]) == (1, "host/1")
    assert "raise ValueError(message)" in outcome.error["traceback"]
    assert outcome.error["duration_ms"] >= 0


@pytest.mark.parametrize("name", ["fail", "afail"])
def test_a_recorded_traceback_begins_in_the_code_of_the_task(executor: Executor, name: str) -> None:
    job = make_claimed(f"{APP}.{name}", "boom")
    task_is_async = name.startswith("a")
    attempt = RunningAttempt(job)
    outcome = (asyncio.run(executor.execute_async(attempt)) if task_is_async else executor.execute(attempt)).outcome
    assert outcome.error is not None
    _heading, first_frame, *_ = outcome.error["traceback"].splitlines()
    assert "tests/app/jobs.py" in first_frame
    assert "django_skipqueue/" not in outcome.error["traceback"]
    assert isinstance(outcome.exception, ValueError)
    assert outcome.exception.__traceback__ is not None
    assert outcome.exception.__traceback__.tb_frame.f_code.co_filename.endswith("tests/app/jobs.py")


def test_a_traceback_without_a_frame_of_the_task_has_the_innermost_frame(execute: Execute) -> None:
    outcome = execute(make_claimed(f"{APP}.add", 1, 2, 3, 4)).outcome
    assert outcome.error is not None
    assert outcome.error["traceback"].count("  File ") == 1
    assert "takes from 1 to 2 positional arguments but 4 were given" in outcome.error["traceback"]


@pytest.mark.parametrize("name", ["ask_for_retry", "discard", "snooze"])
def test_retry_discard_and_snooze_are_not_reported_as_exceptions(execute: Execute, name: str) -> None:
    assert execute(make_claimed(f"{APP}.{name}")).outcome.exception is None


def test_an_exception_in_the_last_attempt_fails_the_job(execute_def_or_async: Callable[..., Outcome]) -> None:
    outcome = execute_def_or_async(f"{APP}.fail", "no luck", attempt=3, max_attempts=3)
    assert (outcome.status, outcome.last_error) == ("failed", "ValueError: no luck")


def test_a_task_with_takes_context_gets_the_context_of_its_job(execute: Execute, registry: Registry) -> None:
    contexts: list[JobContext] = []

    def keep_context(context: JobContext, word: str) -> str:
        contexts.append(context)
        return word

    _register(registry, keep_context, takes_context=True)
    attempt = execute(make_claimed("keep_context", "hi", attempt=2, max_attempts=2, queue_name="q"))
    assert attempt.outcome.result == '"hi"'
    (context,) = contexts
    assert (context.job_id, context.attempt, context.max_attempts) == (7, 2, 2)
    assert (context.queue_name, context.worker, context.database) == ("q", "host/1", "default")
    assert context.is_last_attempt


@pytest.mark.parametrize(
    ("task", "args", "expected"),
    [
        # expected: the status, the delay in seconds, and how many attempts are given back
        ("ask_for_retry", [90], ("scheduled", 90, 0)),
        ("snooze", [60], ("scheduled", 60, 1)),
        ("discard", ["enough"], ("discarded", 0, 0)),
        ("picky", ["Transient"], ("scheduled", 0, 0)),
        ("picky", ["Hopeless"], ("discarded", 0, 0)),
        ("picky", ["Other"], ("failed", 0, 0)),
    ],
)
def test_the_exception_of_a_task_decides_the_status_the_delay_and_whether_the_attempt_counts(
    execute: Execute, task: str, args: list[Any], expected: Any
) -> None:
    outcome = execute(make_claimed(f"{APP}.{task}", *args)).outcome
    assert (outcome.status, outcome.delay, outcome.refund) == expected


@pytest.mark.parametrize("kind", sorted(worker_jobs.BASE_EXCEPTIONS))
def test_a_base_exception_such_as_system_exit_only_fails_the_attempt(
    execute_def_or_async: Callable[..., Outcome], kind: str
) -> None:
    outcome = execute_def_or_async(f"{WORKER_APP}.raise_base_exception", kind, max_attempts=1)
    assert outcome.status == "failed"
    assert (outcome.last_error or "").startswith(kind)


@pytest.mark.parametrize("kind", sorted(jobs.UNSTORABLE))
def test_a_result_that_cannot_be_stored_fails_the_job_without_retries(execute: Execute, kind: str) -> None:
    outcome = execute(make_claimed(f"{APP}.return_unstorable", kind, max_attempts=10)).outcome
    assert outcome.status == "failed"
    assert "its result cannot be kept" in (outcome.last_error or "")


def test_an_exception_whose_str_raises_is_recorded_without_a_message(execute: Execute) -> None:
    outcome = execute(make_claimed(f"{WORKER_APP}.raise_unprintable", max_attempts=1)).outcome
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error["exception"] == f"{WORKER_APP}.Unprintable"
    assert "could not be read" in outcome.error["message"]


def test_an_exception_whose_str_raises_system_exit_only_fails_the_attempt(execute: Execute) -> None:
    outcome = execute(make_claimed(f"{WORKER_APP}.raise_exit_in_str", max_attempts=1)).outcome
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert "could not be read: SystemExit" in outcome.error["message"]


def test_a_task_does_not_see_the_decimal_context_of_the_task_before_it(execute: Execute, registry: Registry) -> None:
    decimal.getcontext()  # this thread's context: a task that only got a copy of the thread's variables would change it

    def set_precision() -> int:
        value_before = decimal.getcontext().prec
        decimal.getcontext().prec = 5
        return value_before

    _register(registry, set_precision)
    results = [execute(make_claimed("set_precision")).outcome.result for _ in range(2)]
    assert results == ["28", "28"], "Python's default precision, in both attempts"


def test_a_task_sees_context_variables_that_a_receiver_of_job_started_has_set(
    execute: Execute, registry: Registry
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    def receive(**_: Any) -> None:
        variable.set("by the receiver")

    def read() -> str:
        return variable.get()

    _register(registry, read)
    job_started.connect(receive)
    try:
        assert execute(make_claimed("read")).outcome.result == '"by the receiver"'
    finally:
        job_started.disconnect(receive)
    assert variable.get() == "unset"


def test_an_error_message_of_ten_megabytes_is_shortened(execute: Execute) -> None:
    outcome = execute(make_claimed(f"{WORKER_APP}.raise_long", 10_000_000, max_attempts=1)).outcome
    assert outcome.error is not None
    assert len(outcome.error["message"]) <= MESSAGE_LIMIT
    assert len(outcome.error["traceback"]) <= TRACEBACK_LIMIT
    assert len(outcome.last_error or "") <= 500


def test_characters_that_postgresql_cannot_store_are_replaced_in_an_error(execute: Execute) -> None:
    outcome = execute(make_claimed(f"{APP}.raise_unstorable", max_attempts=1)).outcome
    assert outcome.error is not None
    for text in (outcome.last_error or "", outcome.error["message"], outcome.error["traceback"]):
        assert "\0" not in text
        assert text.encode().decode() == text  # `encode` raises for half of a surrogate pair
        assert "before" in text
        assert "after" in text


@pytest.mark.parametrize(
    ("name", "backoff_error"),
    [
        # the name of a backoff function, and the beginning of the error that it raises
        ("none", "TypeError: "),
        ("text", "ValueError: "),
        ("raises", "ZeroDivisionError: "),
        ("exits", "SystemExit: 3"),
    ],
)
def test_a_backoff_that_raises_is_replaced_by_the_default_backoff(
    execute: Execute, caplog: pytest.LogCaptureFixture, name: str, backoff_error: str
) -> None:
    outcome = execute(make_claimed(f"backoff.{name}", attempt=3)).outcome
    assert outcome.status == "scheduled"
    assert 7 < outcome.delay < 9, "2 to the power of 3, and the jitter"
    assert outcome.error is not None
    assert f"as asked\nThe task's backoff raised {backoff_error}" in outcome.error["message"]
    assert (outcome.last_error or "").startswith(f"ValueError: as asked (the task's backoff raised {backoff_error}")
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith(f"backoff failed task=backoff.{name} id=7 error=")
    assert backoff_error in record.getMessage()


def test_a_backoff_that_raises_does_not_add_an_attempt(execute: Execute) -> None:
    assert execute(make_claimed("backoff.raises", attempt=10)).outcome.status == "failed"


class Unreadable(Retry):
    """An exception whose delay cannot be read."""

    def __init__(self) -> None:
        """Leave the delay unset."""


def test_a_retry_without_a_readable_delay_gets_the_default_backoff(execute: Execute, registry: Registry) -> None:
    def raise_unreadable() -> None:
        raise Unreadable

    _register(registry, raise_unreadable)
    outcome = execute(make_claimed("raise_unreadable")).outcome
    assert outcome.status == "scheduled"
    assert 1.5 < outcome.delay < 2.5  # the default delay of 2 seconds, with jitter


@pytest.mark.parametrize("name", ["nan", "negative"])
def test_a_negative_or_nan_backoff_means_a_retry_at_once(execute: Execute, name: str) -> None:
    outcome = execute(make_claimed(f"backoff.{name}")).outcome
    assert (outcome.status, outcome.delay) == ("scheduled", 0.0)


def test_arguments_that_do_not_fit_the_task_are_retried_like_other_errors(execute: Execute) -> None:
    outcome = execute(make_claimed(f"{APP}.noop", kwargs={"gone": 1})).outcome
    assert outcome.status == "scheduled"
    assert "unexpected keyword argument 'gone'" in (outcome.last_error or "")


def test_a_task_does_not_see_a_context_variable_of_the_task_before_it(execute: Execute, registry: Registry) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    def set_and_return_before() -> str:
        value_before = variable.get()
        variable.set("set")
        return value_before

    _register(registry, set_and_return_before)
    assert [execute(make_claimed("set_and_return_before")).outcome.result for _ in range(2)] == ['"unset"', '"unset"']


def test_an_attempt_has_its_job_its_worker_and_its_duration(execute: Execute) -> None:
    job = make_claimed(f"{APP}.slow", 0.01)
    attempt = execute(job)
    assert (attempt.job, attempt.worker) == (job, "host/1")
    assert attempt.duration_ms >= 10
    assert job.wait_ms == 1500
    assert attempt.settlement == (7, 3, attempt.outcome, attempt.started, attempt.ended)


def test_a_recorded_error_has_the_time_for_which_the_job_had_been_due(execute: Execute) -> None:
    outcome = execute(make_claimed("backoff.inf")).outcome
    assert outcome.error is not None
    assert outcome.error["wait_ms"] == 1500


# Tasks that are not registered


def test_a_job_of_an_unregistered_task_is_postponed_without_losing_an_attempt(execute: Execute) -> None:
    outcome = execute(make_claimed("shop.jobs.soon", locked_at=5000.0)).outcome
    assert (outcome.status, outcome.delay, outcome.refund) == ("scheduled", UNKNOWN_TASK_DELAY, 1)
    assert outcome.is_unknown
    assert outcome.error is None
    assert "shop.jobs.soon" in (outcome.last_error or "")


@override_settings(SKIPQUEUE={"UNKNOWN_TASK_GRACE": 600})
def test_a_job_of_an_unregistered_task_fails_after_the_grace_with_a_hint(execute: Execute) -> None:
    assert execute(make_claimed("shop.jobs.soon", locked_at=5599.0, unknown_since=5000.0)).outcome.status == "scheduled"
    outcome = execute(make_claimed("shop.jobs.soon", locked_at=5600.0, unknown_since=5000.0)).outcome
    assert outcome.status == "failed"
    assert outcome.error is not None
    for text in (outcome.last_error or "", outcome.error["message"]):
        assert "shop.jobs.soon" in text
        assert "Is the app of shop.jobs in INSTALLED_APPS" in text


# The signal `job_started`


@pytest.fixture
def started_events() -> Iterator[list[dict[str, Any]]]:
    """The arguments that a receiver of `job_started` gets for the task `add`."""
    events: list[dict[str, Any]] = []

    def receive(**event: Any) -> None:
        events.append(event)

    job_started.connect(receive, sender=f"{APP}.add")
    yield events
    job_started.disconnect(receive, sender=f"{APP}.add")


def test_job_started_is_sent_to_the_receiver_of_this_task_only(
    execute: Execute, started_events: list[dict[str, Any]]
) -> None:
    job = make_claimed(f"{APP}.add", 1)
    execute(job)
    execute(make_claimed(f"{APP}.noop"))
    assert [(event["sender"], event["job"], event["worker"]) for event in started_events] == [(job.task, job, "host/1")]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_receiver_of_job_started_that_raises_does_not_fail_the_job(
    execute: Execute, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def receive(**_: Any) -> None:
        raise error("in a receiver")

    job_started.connect(receive)
    try:
        with caplog.at_level(logging.ERROR):
            assert execute(make_claimed(f"{APP}.add", 1)).outcome == Outcome("completed", result="1")
    finally:
        job_started.disconnect(receive)
    assert "in a receiver" in caplog.text


def _register(registry: Registry, function: Callable[..., Any], **options: Any) -> None:
    """Make a task of a function that is local to its test."""
    function.__qualname__ = function.__name__
    decorate: Any = job(name=function.__name__, **options)
    registry.register(decorate(function))


def test_an_attempt_whose_coroutine_is_closed_early_has_no_outcome(executor: Executor) -> None:
    attempts: list[Attempt] = []

    async def execute() -> None:
        attempts.append(await executor.execute_async(RunningAttempt(make_claimed(f"{APP}.aslow", 60))))

    loop, attempt_coroutine = asyncio.new_event_loop(), execute()
    asyncio_task = loop.create_task(attempt_coroutine, context=contextvars.Context())
    while not executor.interrupter.attempts:
        loop.run_until_complete(asyncio.sleep(0))
    attempt_coroutine.close()
    assert not attempts
    assert not executor.interrupter.attempts
    asyncio_task.cancel()
    with pytest.raises(RuntimeError, match="already awaited"):
        loop.run_until_complete(asyncio_task)
    loop.close()


def test_a_result_over_max_result_bytes_fails_the_job_without_retries(execute: Execute, settings: Any) -> None:
    settings.SKIPQUEUE = {"MAX_RESULT_BYTES": 100}
    assert execute(make_claimed(f"{WORKER_APP}.return_long", 98)).outcome.status == "completed"
    outcome = execute(make_claimed(f"{WORKER_APP}.return_long", 99)).outcome
    assert (outcome.status, outcome.result) == ("failed", None)
    assert outcome.error is not None
    assert "It is 101 bytes long, and SKIPQUEUE['MAX_RESULT_BYTES'] is 100" in outcome.error["message"]

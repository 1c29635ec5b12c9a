"""Enqueueing on our backend, and the results that any process reads from it."""

import asyncio
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.test import override_settings
from django.utils.module_loading import import_string

from django_skipqueue.console.admin.jobs.links import defer_call
from django_skipqueue.console.arguments import redacted
from django_skipqueue.exceptions import InvalidArguments, UnknownTask, WorkerDied
from django_skipqueue.integrations.django_tasks import framework
from django_skipqueue.integrations.django_tasks.backend import SkipQueueBackend
from django_skipqueue.integrations.django_tasks.definition import registered
from django_skipqueue.integrations.django_tasks.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)
from django_skipqueue.integrations.django_tasks.mapping import unread, variant
from django_skipqueue.jobs.registry import Registry, registry
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ...app import jobs
from ...app.rows import FINISHED, STATUSES, are_in_order, make_job
from ...harness.table import Case
from .app import tasks
from .conftest import FRAMEWORK, OUR_BACKEND, TASKS
from .running import WORKER, claim, execute, run_next

store = Store("default")

pytestmark = pytest.mark.django_db(databases=["default", "other"])

HOUR = timedelta(hours=1)
ADD = "tests.integrations.django_tasks.app.tasks.add"


def yields_numbers() -> Iterator[int]:
    yield 1


def read(result: Any) -> Any:
    """Read a result from the database, as another process does."""
    return task_backends[result.backend].get_result(result.id)


def run_attempts(result: Any, *, count: int, worker_id: str = WORKER) -> None:
    """Run a job that fails `count` times, without waiting between its attempts."""
    for _ in range(count):
        run_next(worker_id=worker_id)
        Job.objects.scheduled().update(status="queued")


class TestEnqueue:
    def test_a_generator_function_is_refused_as_a_task(self) -> None:
        """Calling a generator function does not run its body."""
        with pytest.raises(InvalidTask, match="yields, so calling it would run nothing of it"):
            task_backends["default"].validate_task(variant(tasks.add, func=yields_numbers))

    def test_enqueueing_a_task_inserts_a_job(self) -> None:
        result = tasks.add.using(priority=7, queue_name="high").enqueue(1, b=2)
        job = Job.objects.get()
        assert str(job.pk) == result.id
        assert (job.task, job.args, job.kwargs) == (ADD, [1], {"b": 2})
        assert (job.queue_name, job.priority, job.status, job.max_attempts) == ("high", 7, "queued", 10)
        assert job.metadata == {"backend": "default"}

    def test_a_job_is_inserted_at_once_and_rolls_back_with_the_callers_transaction(self) -> None:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            assert read(result) == result
            transaction.set_rollback(True)
        assert not Job.objects.exists()
        with pytest.raises(TaskResultDoesNotExist):
            read(result)

    def test_run_after_can_be_a_datetime(self) -> None:
        due = datetime.now(UTC) + HOUR
        result = tasks.add.using(run_after=due).enqueue(1)
        job = Job.objects.get()
        assert (job.status, job.run_after) == ("scheduled", due)
        assert result.status == TaskResultStatus.READY
        assert result.task.run_after == read(result).task.run_after == due

    def test_run_after_as_a_timedelta_counts_from_the_databases_clock(self) -> None:
        result = tasks.add.using(run_after=HOUR).enqueue(1)  # type: ignore[arg-type]  # Django's type allows no timedelta
        job = Job.objects.get()
        assert (job.status, job.run_after) == ("scheduled", job.enqueued_at + HOUR)
        assert result.task.run_after == read(result).task.run_after == job.run_after
        with pytest.raises(InvalidTask, match="Queue 'x' is not valid"):  # all other options are validated
            tasks.add.using(backend="mail", queue_name="x", run_after=HOUR)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"run_after": datetime(2030, 1, 1)}, "aware"),  # noqa: DTZ001
            ({"run_after": timedelta.max}, "within 1000 years"),
            ({"priority": 101}, "priority"),
            ({"queue_name": "a,b"}, "without commas"),
            ({"queue_name": "a\0b"}, "NUL"),
        ],
    )
    def test_an_option_that_no_job_can_have_is_an_invalid_task(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidTask, match=message):
            tasks.add.using(**options)

    @pytest.mark.parametrize("argument", [datetime(2030, 1, 1), {1, 2}, object()])  # noqa: DTZ001
    def test_an_argument_that_is_not_json_is_refused(self, argument: Any) -> None:
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.echo.enqueue(argument)
        assert not Job.objects.exists()

    @pytest.mark.parametrize("argument", [float("nan"), "a\0b", "\ud800"])
    def test_an_argument_that_postgresql_cannot_keep_is_refused_by_its_name(self, argument: Any) -> None:
        with pytest.raises(InvalidArguments, match=r"args\[0\]\['x'\]"):
            tasks.echo.enqueue({"x": argument})
        assert not Job.objects.exists()

    def test_every_result_has_the_arguments_as_django_normalizes_them(self) -> None:
        result = tasks.echo.enqueue({"a": (1, b"x"), 2: None})
        assert result.args == read(result).args == [{"a": [1, "x"], "2": None}]

    def test_a_task_is_validated_again_when_it_is_enqueued(self) -> None:
        task_of_missing_queue = tasks.add.using(queue_name="gone")
        strict_settings = override_settings(TASKS={"default": {"BACKEND": OUR_BACKEND}})
        with strict_settings, pytest.raises(InvalidTask, match="Queue 'gone' is not valid"):
            task_of_missing_queue.enqueue(1)
        assert not Job.objects.exists()

    def test_the_setting_queues_limits_the_queue_names_unless_it_is_empty(self) -> None:
        with pytest.raises(InvalidTask, match="Queue 'default' is not valid"):
            tasks.add.using(backend="mail")
        assert tasks.add.using(queue_name="whatever").enqueue(1).task.queue_name == "whatever"

    def test_an_alias_has_its_own_options(self) -> None:
        tasks.add.using(backend="mail", queue_name="mail").enqueue(1)
        job = Job.objects.get()
        assert job.max_attempts == 3
        assert (job.metadata, job.timeout) == ({"backend": "mail"}, 45.0)

    def test_an_alias_can_use_another_database(self) -> None:
        result = tasks.add.using(backend="other").enqueue(1)
        assert not Job.objects.using("default").exists()
        assert Job.objects.using("other").get().metadata == {"backend": "other"}
        run_next(database="other")
        result.refresh()
        assert result.return_value == 1
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(result.id)

    async def _enqueue(self) -> Any:
        result = await tasks.aadd.aenqueue(1, b=2)
        assert await tasks.aadd.aget_result(result.id) == result
        await result.arefresh()
        await sync_to_async(connections.close_all)()
        return result

    @pytest.mark.django_db(transaction=True)
    def test_a_task_is_enqueued_and_read_from_async_code(self) -> None:
        result = asyncio.run(self._enqueue())
        run_next()
        result.refresh()
        assert result.return_value == 3

    def test_a_backend_object_is_made_without_a_model_or_a_database(self, django_db_blocker: Any) -> None:
        with django_db_blocker.block():
            backend = SkipQueueBackend("x", {"OPTIONS": {"backoff": "not.there", "database": "nowhere"}})
        assert backend.supports_defer
        assert backend.supports_async_task
        assert backend.supports_get_result
        assert backend.supports_priority

    def test_a_result_can_be_pickled(self) -> None:
        if framework.AnyTask.__reduce__ is object.__reduce__:
            pytest.skip("Django 6.0's tasks cannot be")
        result = tasks.add.enqueue(1)
        assert pickle.loads(pickle.dumps(result)) == result


class TestRegistry:
    def test_a_task_is_registered_where_it_is_defined(self, registry: Registry) -> None:
        task = tasks.add.using()
        (registered_task,) = registry
        assert (registered_task.name, registered_task.is_async) == (ADD, False)
        assert str(registered_task.signature) == "(a: int, b: int = 0) -> int"
        assert f"{registered_task.__module__}.{registered_task.__qualname__}" == ADD
        task.using(priority=3)
        assert [*registry] == [registered_task]

    def test_a_task_of_another_backend_is_registered_where_it_is_enqueued(self, registry: Registry) -> None:
        assert type(tasks.visit) is framework.Task
        result = tasks.visit.using(backend="default").enqueue("a")
        run_next()
        assert read(result).return_value == "a"

    def test_discovery_registers_the_tasks_of_each_app_even_if_they_have_another_backend(
        self, registry: Registry
    ) -> None:
        with override_settings(
            INSTALLED_APPS=["django.contrib.contenttypes", "django_skipqueue", "tests.integrations.django_tasks.app"]
        ):
            SkipQueueBackend.discover_tasks()
        names = {task.name.rpartition(".")[2] for task in registry}
        assert {"add", "aadd", "visit", "fail"} <= names

    def test_the_registered_task_does_not_have_the_context_as_a_parameter(self) -> None:
        assert list(registered(tasks.fail_times).signature.parameters) == ["times"]

    def test_a_task_and_a_job_share_the_registry_and_the_rows(self) -> None:
        jobs.add.defer(1, b=2)
        tasks.add.enqueue(3, b=4)
        assert [run_next().outcome.result for _ in range(2)] == ["3", "7"]

    def test_a_job_enqueued_by_the_name_of_a_task_runs(self) -> None:
        Job.objects.enqueue(ADD, args="[1, 2]")
        run_next()
        result = task_backends["default"].get_result(str(Job.objects.get().pk))
        assert (result.return_value, result.backend) == (3, "default")


class TestResult:
    def test_each_status_of_a_job_gives_its_result_a_status_of_django(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status, task=ADD, args=[1], result=5 if status == "completed" else None)
                result = task_backends["default"].get_result(str(job.pk))
                expected = {
                    "scheduled": "READY",
                    "blocked": "READY",
                    "queued": "READY",
                    "running": "RUNNING",
                    "completed": "SUCCESSFUL",
                }
                assert result.status == expected.get(status, "FAILED")
                assert result.is_finished == (status in FINISHED)
                assert (result.finished_at, result.enqueued_at) == (job.finished_at, job.enqueued_at)
                if status == "completed":
                    assert result.return_value == 5
                else:
                    with pytest.raises(ValueError, match="Task failed" if status in FINISHED else "not finished"):
                        assert result.return_value

    def test_the_result_of_an_unknown_id_does_not_exist(self, case: Case) -> None:
        cases: list[Any] = ["", "abc", "-1", "9" * 18, "9" * 19, "9" * 5000, None, 1.5, b"1", {}]
        for id in cases:
            with case(id=id):
                tasks.add.enqueue(1)
                with pytest.raises(TaskResultDoesNotExist):
                    task_backends["default"].get_result(id)

    def test_a_result_is_found_only_by_the_exact_spelling_of_its_id(self, case: Case) -> None:
        for template in ("0{}", " {}", "{}\n", "+{}", "{}.0", "{}e0"):
            with case(template=template):
                id = tasks.add.enqueue(1).id
                arabic_id = id.translate({ord("0") + digit: 0x660 + digit for digit in range(10)})
                for wrong_id in (template.format(id), arabic_id):
                    with pytest.raises(TaskResultDoesNotExist):
                        task_backends["default"].get_result(wrong_id)

    def test_a_job_of_a_task_that_is_not_djangos_has_no_django_result(self) -> None:
        job = jobs.add.defer(1)
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(str(job.pk))

    def test_any_alias_of_the_same_database_finds_a_result_with_its_own_alias(self) -> None:
        result = tasks.add.using(backend="mail", queue_name="mail").enqueue(1)
        found_result = tasks.add.get_result(result.id)
        assert found_result == result
        assert (found_result.backend, found_result.task.backend) == ("mail", "mail")

    def test_a_result_of_a_task_that_this_process_does_not_know_can_be_read_but_not_run(self) -> None:
        job = make_job("completed", task="os.system", args=["true"], result=1, metadata={"backend": "default"})
        result = task_backends["default"].get_result(str(job.pk))
        assert (result.return_value, result.task.module_path, result.args) == (1, "os.system", ["true"])
        result.refresh()
        with pytest.raises(UnknownTask, match=r"os\.system"):
            result.task.call("true")
        with pytest.raises(Exception, match="does not match"):
            tasks.add.get_result(result.id)

    def test_a_result_whose_queue_the_settings_no_longer_allow_can_still_be_read(self) -> None:
        result = tasks.add.using(queue_name="gone").enqueue(1)
        with override_settings(TASKS={"default": {"BACKEND": OUR_BACKEND, "QUEUES": ["default"]}}):
            assert task_backends["default"].get_result(result.id).task.queue_name == "gone"

    def test_a_result_that_is_read_equals_the_enqueued_result(self) -> None:
        variants = [tasks.add, tasks.add.using(priority=-3, queue_name="q"), tasks.add.using(run_after=-HOUR)]  # type: ignore[arg-type]
        results = [variant.enqueue(1, b=2) for variant in variants]
        assert [read(result) for result in results] == results
        assert [result.task for result in results[:2]] == variants[:2]
        run_next()
        results[0].refresh()
        first_due_job = Job.objects.order_by("id")[2]  # its `run_after` is an hour ago
        finished_result = read(results[2])
        assert finished_result.started_at == finished_result.last_attempted_at == first_due_job.started_at
        assert finished_result.enqueued_at == first_due_job.enqueued_at
        assert finished_result.finished_at == first_due_job.finished_at

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("none", None),
            ("tuple", [1, ["a", "b"]]),
            ("nested", {"a": [1, {"b": None}], "c": 1.5, "d": True}),
            ("number keys", {"1": "one"}),
        ],
    )
    def test_a_return_value_is_what_django_normalizes_it_to(self, kind: str, value: Any) -> None:
        result = tasks.give.enqueue(kind)
        run_next()
        assert read(result).return_value == value

    @pytest.mark.parametrize(
        ("kind", "exception"),
        [
            ("function", TypeError),
            ("not utf-8", ValueError),
            ("nan", TypeError),
            ("nul", TypeError),
            ("endless", RecursionError),
        ],
    )
    def test_a_return_value_that_cannot_be_kept_fails_the_job_for_good_and_says_so(
        self, kind: str, exception: type[Exception]
    ) -> None:
        result = tasks.give.enqueue(kind)
        run_next()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        (error,) = result.errors
        assert issubclass(error.exception_class, exception)
        assert "The task ran to its end, but its result cannot be kept" in error.traceback


class TestAttempts:
    def test_a_result_that_has_not_run_has_no_attempts(self) -> None:
        result = tasks.add.enqueue(1)
        assert (result.attempts, result.worker_ids, result.errors) == (0, [], [])
        assert result.started_at is result.last_attempted_at is result.finished_at is None

    def test_a_running_attempt_counts_and_names_its_worker(self) -> None:
        result = tasks.add.enqueue(1)
        claim()
        result.refresh()
        assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.RUNNING, 1, [WORKER])
        assert result.started_at == result.last_attempted_at == Job.objects.get().started_at

    def test_a_result_names_the_worker_of_each_attempt(self) -> None:
        result = tasks.fail_times.enqueue(2)
        run_attempts(result, count=1, worker_id="one")
        run_attempts(result, count=1, worker_id="two")
        result.refresh()
        assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.READY, 2, ["one", "two"])
        assert len(result.errors) == 2
        run_attempts(result, count=1, worker_id="three")
        result.refresh()
        assert result.return_value == 3
        assert (result.attempts, result.worker_ids) == (3, ["one", "two", "three"])
        assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
        assert "attempt 1 of 2" in result.errors[0].traceback
        job = Job.objects.get()
        assert are_in_order(job.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at)
        assert result.last_attempted_at == job.started_at

    def test_attempts_whose_errors_the_row_no_longer_has_count_without_a_worker(self) -> None:
        result = tasks.fail_times.enqueue(12)
        Job.objects.update(max_attempts=20)
        run_attempts(result, count=13)
        result.refresh()
        assert result.return_value == 13
        assert (result.attempts, result.worker_ids) == (13, ["", "", *[WORKER] * 11])  # the row keeps ten errors
        assert len(result.errors) == 10
        assert are_in_order(result.started_at, result.last_attempted_at)

    def test_an_attempt_whose_worker_died_counts_with_an_error(self) -> None:
        result = tasks.add.enqueue(1)
        claim(worker_id="gone")
        started_at = Job.objects.get().started_at
        store.recover(worker_ids=["gone"], reason="worker died: signal 9 (SIGKILL)")
        result.refresh()
        assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.READY, 1, ["gone"])
        assert result.started_at == result.last_attempted_at == started_at
        (error,) = result.errors
        assert error.exception_class is WorkerDied
        assert "SIGKILL" in error.traceback
        run_next()
        result.refresh()
        assert (result.return_value, result.worker_ids) == (1, ["gone", WORKER])
        assert result.started_at == started_at

    def test_a_released_attempt_does_not_count(self) -> None:
        result = tasks.fail.enqueue()
        run_attempts(result, count=1)
        started_at = Job.objects.get().started_at
        job = claim()
        store.release([(job.id, job.lease)])
        result.refresh()
        assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.READY, 1, [WORKER])
        assert result.last_attempted_at is not None
        assert started_at is not None
        assert abs(result.last_attempted_at - started_at) < timedelta(seconds=1)
        assert result.started_at == result.last_attempted_at

    def test_attempts_start_again_after_a_manual_retry(self) -> None:
        result = tasks.fail.enqueue()
        Job.objects.update(max_attempts=2)
        run_attempts(result, count=2)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)
        assert Job.objects.get().retry()
        result.refresh()
        assert (result.status, result.attempts, result.worker_ids, result.errors) == (TaskResultStatus.READY, 0, [], [])
        assert result.started_at is result.last_attempted_at is None
        claim(worker_id="new")
        result.refresh()
        assert (result.attempts, result.worker_ids, result.errors) == (1, ["new"], [])

    @pytest.mark.parametrize("attempt_count", [1, 2])
    def test_errors_before_a_manual_retry_are_left_out(self, attempt_count: int) -> None:
        result = tasks.fail.enqueue("before")
        Job.objects.update(max_attempts=1)
        run_attempts(result, count=1)
        Job.objects.get().retry()
        Job.objects.update(max_attempts=attempt_count, args=["after"])
        run_attempts(result, count=attempt_count)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (
            TaskResultStatus.FAILED,
            attempt_count,
            attempt_count,
        )
        assert all("after" in error.traceback for error in result.errors)

    def test_a_success_after_a_manual_retry_has_no_earlier_attempts(self) -> None:
        result = tasks.fail_times.enqueue(1)
        Job.objects.update(max_attempts=1)
        run_attempts(result, count=1)
        Job.objects.get().retry()
        Job.objects.update(args=[0])
        run_attempts(result, count=1, worker_id="second")
        result.refresh()
        assert (result.return_value, result.worker_ids, result.errors) == (1, ["second"], [])

    def test_a_job_discarded_by_an_operator_fails_without_an_attempt(self) -> None:
        result = tasks.add.enqueue(1)
        Job.objects.get().discard()
        result.refresh()
        assert (result.status, result.attempts, result.errors) == (TaskResultStatus.FAILED, 0, [])

    def test_the_times_of_a_result_are_naive_with_use_tz_off(self, settings: Any) -> None:
        settings.USE_TZ = False
        result = tasks.fail_times.enqueue(1)
        run_attempts(result, count=2)
        result.refresh()
        assert are_in_order(result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at)
        assert result.started_at is not None
        assert result.started_at.tzinfo is None


class TestOptions:
    def test_the_delay_of_a_retry_comes_from_the_backoff_of_the_alias(self) -> None:
        result_of_default = tasks.fail.enqueue()
        result_of_mail = tasks.fail.using(backend="mail", queue_name="mail").enqueue()
        run_next()
        run_next("mail")
        delays = {job.pk: (job.run_after - job.enqueued_at).total_seconds() for job in Job.objects.all()}
        assert delays[int(result_of_default.id)] < 5  # the default backoff
        assert 59 < delays[int(result_of_mail.id)] < 65  # the backoff in the OPTIONS of the alias "mail"

    @pytest.mark.skipif(not tasks.HAS_OPTIONS, reason="Django 6.0's @task takes no options")
    def test_the_options_of_a_task_override_the_options_of_the_alias(self) -> None:
        result = tasks.picky.using(backend="mail", queue_name="mail").enqueue()
        job = Job.objects.get()
        assert (job.max_attempts, job.metadata) == (2, {"backend": "mail"})
        run_next("mail")
        assert Job.objects.get().status == "queued"
        run_next("mail")
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
        assert registry.get(tasks.picky.module_path).timeout == 30

    @pytest.mark.skipif(not tasks.HAS_OPTIONS, reason="Django 6.0's @task takes no options")
    @pytest.mark.parametrize("option", [{"max_attempts": 0}, {"timeout": -1}, {"max_attempts": "3"}])
    def test_an_option_that_cannot_be_used_is_an_invalid_task(self, option: dict[str, Any]) -> None:
        [option_name] = option
        with pytest.raises(InvalidTask, match=option_name):
            import_string(f"{FRAMEWORK}.task")(**option)(tasks.add.func)

    def test_the_jobs_of_an_alias_have_its_retention(self) -> None:
        backend = {"BACKEND": "django_skipqueue.backend.SkipQueueBackend"}
        brief_backend = backend | {"OPTIONS": {"retention": {"completed": 0, "failed": timedelta(hours=1)}}}
        with override_settings(TASKS={"default": backend, "brief": brief_backend}):
            kept_result = tasks.add.enqueue(1, 2)
            brief_result = tasks.add.using(backend="brief").enqueue(1, 2)
            assert Job.objects.get(pk=brief_result.id).retention == {"completed": 0.0, "failed": 3600.0}
            run_next("default")
            run_next("default")
            assert store.prune() == {"completed": 1}
        assert Job.objects.get().pk == int(kept_result.id)

    def test_a_job_of_an_alias_that_was_removed_from_the_settings_still_runs(self) -> None:
        result = tasks.fail_times.using(backend="mail", queue_name="mail").enqueue(1)
        with override_settings(TASKS={"default": TASKS["default"]}):
            run_next("mail")
            Job.objects.update(status="queued")
            run_next("mail")
            found_result = task_backends["default"].get_result(result.id)
        assert (found_result.return_value, found_result.backend) == (2, "mail")

    def test_the_check_names_each_wrong_option_of_an_alias(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"max_attemps": 3}, "there is no option 'max_attemps'. Did you mean 'max_attempts'?"),
            ({"max_attempts": 0}, "max_attempts must be an integer from 1"),
            ({"timeout": "5"}, "timeout must be a number of seconds"),
            ({"database": "nowhere"}, "'database': DATABASES has no alias 'nowhere'."),
            ({"backoff": "not.there"}, "'backoff' cannot be used: ModuleNotFoundError"),
            ({"backoff": 5}, "'backoff' cannot be used: TypeError"),
            ({"backoff": "django_skipqueue.values.backoff.exponential"}, "'backoff' must give seconds"),
            ({"backoff": lambda attempt: -1}, "'backoff' must give seconds"),
            ({"retention": 60}, "'retention' must be a dict of finished statuses"),
            ({"retention": {"complete": 60}}, "'retention' has no status 'complete'"),
            ({"retention": {"failed": "long"}}, "'retention'['failed'] must be a timedelta"),
            ({"retention": {"completed": timedelta(days=2)}}, "is longer than SKIPQUEUE['RETENTION'] says"),
            ({"retention": {"completed": None}}, "is longer than SKIPQUEUE['RETENTION'] says"),
        ]
        for options, problem in cases:
            with subtests.test(options=options, problem=problem):
                (message,) = SkipQueueBackend("x", {"OPTIONS": options}).check()
                assert message.id == "skipqueue.E007"
                assert message.msg.startswith("TASKS['x']['OPTIONS']: ")
                assert problem in message.msg
                assert message.hint

    @pytest.mark.parametrize("alias", ["default", "mail", "other"])
    def test_the_check_returns_nothing_for_a_correct_alias(self, alias: str) -> None:
        assert task_backends[alias].check() == []

    def test_the_check_names_the_app_that_is_not_installed(self, settings: Any) -> None:
        settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_skipqueue"]
        assert [message.id for message in task_backends["default"].check()] == ["skipqueue.E006"]

    def test_the_check_names_a_database_that_is_not_postgresql(self) -> None:
        sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        connections.settings["lite"] = connections.configure_settings({"default": sqlite})["default"]
        try:
            (message,) = SkipQueueBackend("x", {"OPTIONS": {"database": "lite"}}).check()
        finally:
            del connections.settings["lite"]
            del connections["lite"]
        assert "needs PostgreSQL" in message.msg


class TestContext:
    @pytest.mark.parametrize("name", ["see_context", "asee_context"])
    @pytest.mark.django_db(transaction=True)
    def test_the_context_of_a_second_attempt_has_the_error_of_the_first(self, name: str) -> None:
        result = getattr(tasks, name).enqueue(note="n")
        job = claim()
        store.recover(worker_ids=[WORKER])
        assert job.attempt == 1
        run_next()
        assert read(result).return_value == {
            "id": result.id,
            "attempt": 2,
            "errors": 1,
            "path": f"tests.integrations.django_tasks.app.tasks.{name}",
            "note": "n",
        }

    def test_the_number_of_the_attempt_is_known_without_a_query(self, django_assert_num_queries: Any) -> None:
        tasks.fail_times.enqueue(0)
        job = claim()
        with django_assert_num_queries(0):
            attempt = execute(job)
        assert attempt.outcome.result == "1"

    def test_the_result_of_a_context_equals_the_result_that_is_read(self) -> None:
        result = tasks.add.using(priority=3, run_after=-HOUR).enqueue(1, b=2)  # type: ignore[arg-type]
        unread_result = unread(claim(), tasks.add, status="running", database="default")
        assert unread_result.attempts == 1
        assert unread_result == read(result)
        assert read(result) == unread_result
        assert unread_result.attempts == 1
        assert unread_result != tasks.add.enqueue(1)
        assert unread_result != 5

    def test_the_result_of_a_context_does_not_change_with_the_job(self) -> None:
        tasks.add.enqueue(1)
        result = unread(claim(), tasks.add, status="running", database="default")
        Job.objects.update(status="queued", args=[2])
        assert result.errors == []
        assert (result.status, result.args) == (TaskResultStatus.RUNNING, [1])

    def test_the_result_of_a_context_whose_job_was_deleted_does_not_exist(self) -> None:
        tasks.add.enqueue(1)
        result = unread(claim(), tasks.add, status="running", database="default")
        Job.objects.all().delete()
        with pytest.raises(TaskResultDoesNotExist):
            result.read()


@pytest.mark.django_db
def test_arguments_that_are_too_large_are_refused(settings: Any) -> None:
    settings.SKIPQUEUE = {"MAX_ARGUMENT_BYTES": 10}
    with pytest.raises(InvalidArguments, match="Store what is large elsewhere"):
        tasks.add.enqueue(10_000_000, 10_000_000)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "add.enqueue("),
        ({"priority": 7, "queue_name": "high"}, 'add.using(queue_name="high", priority=7).enqueue('),
        ({"backend": "mail", "queue_name": "mail"}, 'add.using(queue_name="mail", backend="mail").enqueue('),
    ],
)
def test_the_code_that_a_page_shows_for_enqueueing_the_job_again_works(options: dict[str, Any], shown: str) -> None:
    def job_of(result: Any) -> Job:
        return Job.objects.using(registered(import_string(ADD).using(**options)).database).get(pk=result.id)

    add: Any = import_string(ADD)
    job = job_of(add.using(**options).enqueue(1, b=[{"x": "y"}]))
    code = defer_call(job, redacted(job.task, job.args, job.kwargs))
    assert code == f'from tests.integrations.django_tasks.app.tasks import add\n\n{shown}1, b=[{{"x": "y"}}])'
    names: dict[str, Any] = {}
    exec(code.replace("\n\nadd", "\n\nresult = add"), names)
    job_made_by_code = job_of(names["result"])
    for name in ("task", "args", "kwargs", "queue_name", "priority", "metadata"):
        assert getattr(job_made_by_code, name) == getattr(job, name)

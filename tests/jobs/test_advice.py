"""Mistakes of newcomers, for example the use of names from other job queues, get an error with advice."""

import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from django_skipqueue import job
from django_skipqueue.exceptions import InvalidArguments, InvalidOption, InvalidTask
from django_skipqueue.jobs.registry import Registry, registry
from django_skipqueue.models import Job

from ..app import jobs
from ..harness.processes import ManagePy
from ..management.test_runworker import SQLITE, UNMIGRATED

DEFER = "from tests.app import jobs; jobs.noop.defer()"
DEFER_MANY = "from tests.app import jobs; jobs.noop.defer_many([(), ()])"


# Names that other job queues (Celery, RQ, Huey and so on) use


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("delay", "Use .defer(…)."),
        ("apply_async", "Use .defer(…), with options .using(…).defer(…)."),
        ("enqueue", "Use .defer(…)."),
        ("defer_async", "Use .adefer(…)."),
        ("nosuch", "has no attribute 'nosuch'."),
    ],
)
def test_the_error_for_a_method_of_another_job_queue_names_our_method(name: str, expected: str) -> None:
    with pytest.raises(AttributeError) as error_info:
        getattr(jobs.send_mail, name)(1)
    assert str(error_info.value).startswith(f"'Task' object has no attribute '{name}'.")
    assert str(error_info.value).endswith(expected)
    assert not hasattr(jobs.send_mail, name)


SUGGESTION_FOR_OPTION = {
    "queue": "queue_name?",
    "delay": "run_after=timedelta(seconds=…)?",
    "countdown": "run_after=timedelta(seconds=…)?",
    "eta": "run_after?",
    "retries": "max_attempts, which counts the first attempt as well: three retries are max_attempts=4?",
    "max_retries": "max_attempts, which counts",
    "unique_keys": "'unique_key'?",
}


@pytest.mark.parametrize("name", SUGGESTION_FOR_OPTION)
def test_the_error_for_an_option_of_another_job_queue_names_our_option(name: str) -> None:
    with pytest.raises(TypeError) as error_info:
        jobs.send_mail.using(**{name: 1})  # type: ignore[arg-type]
    assert str(error_info.value).startswith(
        f"using() has no option {name!r}. Did you mean {SUGGESTION_FOR_OPTION[name]}"
    )


@pytest.mark.parametrize("name", ["queue", "retries", "time_limit", "bind"])
def test_the_error_of_the_decorator_for_such_an_option_has_a_suggestion(name: str) -> None:
    with pytest.raises(TypeError, match=rf"job\(\) has no option '{name}'\. Did you mean "):
        job(**{name: 1})  # type: ignore[call-overload]


SUGGESTION_FOR_POLICY = {
    "unique_by": 'Did you mean unique=unique_by("…")?',
    "debounce": 'Did you mean unique=unique_by("…"), on_conflict="replace" and .using(run_after=…)?',
    "limit": 'Did you mean concurrency=limit(…, by="…")?',
    "concurrency_limit": "Did you mean concurrency=limit(",
    "max_concurrency": "Did you mean concurrency=limit(",
    "limit_by": "Did you mean concurrency=limit(",
    "rate_limit": 'Did you mean rate=rate("100/m", by="…")?',
    "throttle": "Did you mean rate=rate(",
    "lock": 'Did you mean sequence=by("…")?',
    "order_by": 'Did you mean sequence=by("…")?',
    "ordering_key": "Did you mean sequence=by(",
}


def test_the_error_for_a_policy_of_another_job_queue_names_our_policy(subtests: pytest.Subtests) -> None:
    for name, expected in SUGGESTION_FOR_POLICY.items():
        with subtests.test(name):
            with pytest.raises(TypeError) as error_info:
                job(**{name: 1})  # type: ignore[call-overload]
            assert str(error_info.value).startswith(f"job() has no option {name!r}. {expected}")


def test_the_error_for_a_policy_given_to_using_says_to_give_it_to_the_decorator() -> None:
    with pytest.raises(TypeError, match=r'no option .throttle.\. Give rate=rate\("100/m", .*\) to @job\.'):
        jobs.send_mail.using(throttle="5/s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"using\(\) has no option 'unique_by'\. Did you mean unique=unique_by\("):
        jobs.send_mail.using(unique_by="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["cron", "every", "schedule"])
def test_the_error_for_a_schedule_given_to_job_names_the_periodic_decorator(name: str) -> None:
    with pytest.raises(TypeError, match=rf"job\(\) has no option '{name}'\. A schedule has a decorator.* @periodic\("):
        job(**{name: "* * * * *"})  # type: ignore[call-overload]


def test_the_error_for_an_unknown_option_lists_all_options() -> None:
    with pytest.raises(TypeError, match=r"job\(\) has no option 'zzz'\. It knows atomic, .*unique_key, until\."):
        job(zzz=1)  # type: ignore[call-overload]


# Arguments of a call


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"payment": 1}, "got an unexpected keyword argument 'payment'. Did you mean 'payment_id'?"),
        ({"x": 1}, "got an unexpected keyword argument 'x'. It knows payment_id."),
        ({}, "missing a required argument: 'payment_id'."),
        ({"payment_id": 1, "queue_name": "a"}, "before: .using(queue_name).defer(…)."),
        ({"payment_id": 1, "countdown": 5}, "before: .using(run_after=timedelta(seconds=…)).defer(…)."),
    ],
)
def test_the_error_for_a_wrong_keyword_argument_suggests_the_right_one(keywords: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidArguments) as error_info:
        jobs.send_mail.defer(**keywords)
    assert str(error_info.value).endswith(expected)


def test_the_error_for_a_naive_run_after_says_how_to_make_an_aware_one(settings: Any) -> None:
    settings.USE_TZ = True
    with pytest.raises(InvalidOption, match=r"Use a timedelta, .*timezone\.now\(\) \+ timedelta.* or .*make_aware"):
        jobs.noop.using(run_after=datetime(2026, 1, 1))  # noqa: DTZ001


# The module in which a task is defined


def module_level_function() -> None:
    """A task of no app."""


def test_a_function_in_main_cannot_be_a_task(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_level_function, "__module__", "__main__")
    with pytest.raises(InvalidTask, match=r"module_level_function is in __main__ or .*jobs\.py of an installed app"):
        job(module_level_function)
    with pytest.raises(InvalidTask, match="__main__"):
        job(name="function")(module_level_function)


@pytest.mark.django_db(transaction=True)
def test_a_function_given_to_shell_c_cannot_be_a_task(manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "-c", "from django_skipqueue import job\n@job\ndef typed(): ...")
    assert process.wait() == 1
    assert "typed is in __main__ or was typed into a shell, so a worker could not find it." in process.log


@pytest.mark.django_db(transaction=True)
def test_a_function_typed_into_an_interactive_shell_cannot_be_a_task(manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "--interface", "python", "--no-startup", terminal=True)
    process.wait_for(">>> ")
    process.type("from django_skipqueue import job\n@job\ndef typed(): ...\n\n")
    process.wait_for("typed is in __main__ or was typed into a shell, so a worker could not find it.")
    process.type("exit()\n")
    assert process.wait() == 0


@pytest.fixture
def register_in_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Registers a task in the given module after all apps are ready, as happens if only a view imports the module."""
    registered_names = []

    def register_late(module: str) -> Any:
        monkeypatch.setattr(module_level_function, "__module__", module)
        task = job(module_level_function)
        registered_names.append(task.name)
        return task

    yield register_late
    for name in registered_names:
        registry.by_name.pop(name, None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("module", "advice"),
    [
        (
            "tests.app.tasks",
            "it is in tests.app.tasks, which nothing imports at start. Move it to tests/app/jobs.py",
        ),
        ("helpers.jobs", "helpers.jobs is in no installed app. Add its app to INSTALLED_APPS"),
    ],
)
def test_with_debug_the_first_defer_of_a_task_that_workers_may_not_find_warns(
    settings: Any, register_in_module: Callable[[str], Any], module: str, advice: str
) -> None:
    task = register_in_module(module)
    settings.DEBUG = True
    with pytest.warns(RuntimeWarning) as warned:
        task.defer()
    assert str(warned[0].message).startswith(f"A worker may not find {module}.module_level_function: {advice}")
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.defer()
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_no_warning_is_issued_without_debug_or_for_a_task_that_workers_find(
    settings: Any, register_in_module: Callable[[str], Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_in_module("tests.app.tasks").defer()
        settings.DEBUG = True
        jobs.noop.defer()


# The database


@pytest.mark.django_db(transaction=True)
def test_the_error_of_defer_with_sqlite_says_that_postgresql_is_needed(manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "-c", DEFER, settings=SQLITE)
    assert process.wait() == 1
    last_line = process.log.strip().splitlines()[-1]
    assert "QueueUnavailable: The queue needs PostgreSQL, but the database 'default' is SQLite." in last_line
    assert (
        "Set DATABASES['default']['ENGINE'] to 'django.db.backends.postgresql', or SKIPQUEUE['DATABASE']" in last_line
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("defer", [DEFER, DEFER_MANY], ids=["one", "many"])
def test_the_error_of_defer_without_tables_says_to_run_migrate(defer: str, manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "-c", defer, settings=UNMIGRATED)
    assert process.wait() == 1
    assert process.log.strip().endswith("Is the queue's table up to date? Run: manage.py migrate django_skipqueue")

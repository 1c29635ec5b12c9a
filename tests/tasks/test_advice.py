"""The mistakes of a newcomer are answered with advice."""

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


# Names of other queues


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
def test_a_method_of_another_queue_is_answered_with_ours(name: str, expected: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(jobs.send_mail, name)(1)
    assert str(raised.value).startswith(f"'Task' object has no attribute '{name}'.")
    assert str(raised.value).endswith(expected)
    assert not hasattr(jobs.send_mail, name)


OPTIONS = {
    "queue": "queue_name?",
    "delay": "run_after=timedelta(seconds=…)?",
    "countdown": "run_after=timedelta(seconds=…)?",
    "eta": "run_after?",
    "retries": "max_attempts, which counts the first attempt as well: three retries are max_attempts=4?",
    "max_retries": "max_attempts, which counts",
    "unique_keys": "'unique_key'?",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_another_queue_is_answered_with_ours(name: str) -> None:
    with pytest.raises(TypeError) as raised:
        jobs.send_mail.using(**{name: 1})  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"using() has no option {name!r}. Did you mean {OPTIONS[name]}")


@pytest.mark.parametrize("name", ["queue", "retries", "time_limit", "bind"])
def test_the_decorator_suggests_the_right_option_too(name: str) -> None:
    with pytest.raises(TypeError, match=rf"job\(\) has no option '{name}'\. Did you mean "):
        job(**{name: 1})  # type: ignore[call-overload]


POLICIES = {
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


def test_a_policy_by_the_name_of_another_queue_is_answered_with_ours(subtests: pytest.Subtests) -> None:
    for name, expected in POLICIES.items():
        with subtests.test(name):
            with pytest.raises(TypeError) as raised:
                job(**{name: 1})  # type: ignore[call-overload]
            assert str(raised.value).startswith(f"job() has no option {name!r}. {expected}")


def test_a_policy_that_a_call_cannot_choose_belongs_to_the_decorator() -> None:
    with pytest.raises(TypeError, match=r'no option .throttle.\. Give rate=rate\("100/m", .*\) to @job\.'):
        jobs.send_mail.using(throttle="5/s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"using\(\) has no option 'unique_by'\. Did you mean unique=unique_by\("):
        jobs.send_mail.using(unique_by="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["cron", "every", "schedule"])
def test_a_schedule_is_answered_with_the_decorator_for_it(name: str) -> None:
    with pytest.raises(TypeError, match=rf"job\(\) has no option '{name}'\. A schedule has a decorator.* @periodic\("):
        job(**{name: "* * * * *"})  # type: ignore[call-overload]


def test_an_option_that_this_place_does_not_have_lists_those_it_has() -> None:
    with pytest.raises(TypeError, match=r"job\(\) has no option 'zzz'\. It knows atomic, .*unique_key, until\."):
        job(zzz=1)  # type: ignore[call-overload]


# Arguments


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
def test_a_wrong_keyword_is_named(keywords: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidArguments) as raised:
        jobs.send_mail.defer(**keywords)
    assert str(raised.value).endswith(expected)


def test_a_naive_time_is_answered_with_ways_to_an_aware_one(settings: Any) -> None:
    settings.USE_TZ = True
    with pytest.raises(InvalidOption, match=r"Use a timedelta, .*timezone\.now\(\) \+ timedelta.* or .*make_aware"):
        jobs.noop.using(run_after=datetime(2026, 1, 1))  # noqa: DTZ001


# Where the function is


def plain() -> None:
    """A task of no app."""


def test_a_function_of_main_is_no_task(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "__module__", "__main__")
    with pytest.raises(InvalidTask, match=r"plain is in __main__ or .*jobs\.py of an installed app"):
        job(plain)
    with pytest.raises(InvalidTask, match="__main__"):
        job(name="plain")(plain)


@pytest.mark.django_db(transaction=True)
def test_a_function_typed_into_a_shell_is_no_task(manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "-c", "from django_skipqueue import job\n@job\ndef typed(): ...")
    assert process.wait() == 1
    assert "typed is in __main__ or was typed into a shell, so a worker could not find it." in process.log


@pytest.mark.django_db(transaction=True)
def test_a_function_typed_by_hand_is_no_task(manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "--interface", "python", "--no-startup", terminal=True)
    process.wait_for(">>> ")
    process.type("from django_skipqueue import job\n@job\ndef typed(): ...\n\n")
    process.wait_for("typed is in __main__ or was typed into a shell, so a worker could not find it.")
    process.type("exit()\n")
    assert process.wait() == 0


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Registers a task of a module that is imported when all apps are ready, as by a view."""
    registered = []

    def register(module: str) -> Any:
        monkeypatch.setattr(plain, "__module__", module)
        task = job(plain)
        registered.append(task.name)
        return task

    yield register
    for name in registered:
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
def test_under_debug_a_task_that_a_worker_may_not_find_is_warned_of_once(
    settings: Any, late: Callable[[str], Any], module: str, advice: str
) -> None:
    task = late(module)
    settings.DEBUG = True
    with pytest.warns(RuntimeWarning) as warned:
        task.defer()
    assert str(warned[0].message).startswith(f"A worker may not find {module}.plain: {advice}")
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.defer()
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_a_task_that_is_found_is_not_warned_of_and_none_is_without_debug(
    settings: Any, late: Callable[[str], Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late("tests.app.tasks").defer()
        settings.DEBUG = True
        jobs.noop.defer()


# The database


@pytest.mark.django_db(transaction=True)
def test_sqlite_is_named_at_defer(manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "-c", DEFER, settings=SQLITE)
    assert process.wait() == 1
    last = process.log.strip().splitlines()[-1]
    assert "QueueUnavailable: The queue needs PostgreSQL, but the database 'default' is SQLite." in last
    assert "Set DATABASES['default']['ENGINE'] to 'django.db.backends.postgresql', or SKIPQUEUE['DATABASE']" in last


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("defer", [DEFER, DEFER_MANY], ids=["one", "many"])
def test_tables_that_are_missing_at_defer_say_what_to_run(defer: str, manage: Callable[..., ManagePy]) -> None:
    process = manage("shell", "-c", defer, settings=UNMIGRATED)
    assert process.wait() == 1
    assert process.log.strip().endswith("Is the queue's table up to date? Run: manage.py migrate django_skipqueue")

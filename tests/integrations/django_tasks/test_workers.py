"""Django's tasks on real `manage.py runworker` processes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from django_skipqueue.integrations.django_tasks.framework import LOGGER, TaskResultStatus, task_backends
from django_skipqueue.models import Job

from ...app.models import Ledger
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, wait_for_statuses
from .app import tasks
from .conftest import TASKS

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

SETTINGS = f"INSTALLED_APPS += ['tests.integrations.django_tasks.app']\nTASKS = {TASKS!r}\n"

Start = Callable[..., ManagePy]


@pytest.fixture
def start(runworker: Start) -> Start:
    """Starts a worker of a project that has `TASKS`."""
    return lambda *arguments, **options: runworker(*arguments, settings=SETTINGS, **options)


def pay(request: HttpRequest) -> HttpResponse:
    """A view as in the documentation: it saves data and enqueues a task in one transaction."""
    try:
        with transaction.atomic():
            Ledger.objects.create(entry="paid")
            result = tasks.record.enqueue("receipt")
            if request.GET.get("fail"):
                raise ValueError("no money")
    except ValueError:
        return HttpResponse(status=402)
    return HttpResponse(result.id)


async def apay(request: HttpRequest) -> HttpResponse:
    result = await tasks.arecord.aenqueue("receipt")
    return HttpResponse(result.id)


urlpatterns = [path("pay", pay), path("apay", apay)]


def ledger_entries() -> list[str]:
    return sorted(Ledger.objects.values_list("entry", flat=True))


@override_settings(ROOT_URLCONF=__name__)
def test_a_task_of_a_view_runs_only_after_commit(start: Start) -> None:
    id = Client().get("/pay").content.decode()
    assert Client().get("/pay?fail=1").status_code == 402  # this view's transaction is rolled back
    worker = start("--drain")
    assert worker.wait() == 0
    assert ledger_entries() == ["paid", "receipt"]
    result = task_backends["default"].get_result(id)
    assert (result.return_value, result.attempts) == ("receipt", 1)
    assert LOGGER not in worker.log.replace(__package__, "")  # Django's logger of tasks wrote nothing


@override_settings(ROOT_URLCONF=__name__)
def test_an_async_view_enqueues_an_async_task(start: Start) -> None:
    async def get() -> str:
        response = await AsyncClient().get("/apay")
        await sync_to_async(connections.close_all)()
        return response.content.decode()

    id = asyncio.run(get())
    assert start("--drain").wait() == 0
    assert ledger_entries() == ["receipt"]
    assert task_backends["default"].get_result(id).return_value == "receipt"


def test_a_result_is_refreshed_while_its_task_runs(start: Start) -> None:
    start()
    result = tasks.record_and_hold.enqueue("here")
    wait_until(lambda: ledger_entries() == ["here"], "the task runs")
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.RUNNING, 1, False)
    assert result.started_at is not None
    Ledger.objects.create(entry="go")

    def has_ended() -> bool:
        result.refresh()
        return result.is_finished

    wait_until(has_ended, "the task has ended")
    assert result.return_value == "here"


def test_tasks_whose_worker_was_killed_are_retried_or_fail(start: Start) -> None:
    retried, failed = tasks.die_once.enqueue(), tasks.die.enqueue()
    Job.objects.filter(pk=failed.id).update(max_attempts=1)
    start("-c", "1")
    wait_for_statuses(completed=1, failed=1)
    retried.refresh()
    failed.refresh()
    assert (retried.return_value, retried.attempts, len(set(retried.worker_ids))) == (2, 2, 2)
    assert failed.status == TaskResultStatus.FAILED
    for result in (retried, failed):
        (error,) = result.errors
        assert error.exception_class.__name__ == "WorkerDied"
        assert "SIGKILL" in error.traceback


SOURCE_OF_LISTENERS = f"""
    import os

    from {LOGGER}.signals import task_finished, task_started

    def say(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one write, so that lines of threads do not mix

    def started(sender, task_result, **kwargs):
        say("STARTED", task_result.task.name, task_result.attempts, task_result.enqueued_at is None)

    def finished(sender, task_result, **kwargs):
        say("FINISHED", task_result.task.name, task_result.status, task_result.finished_at is None)

    task_started.connect(started)
    task_finished.connect(finished)
"""


def signal_lines(worker: ManagePy) -> list[str]:
    assert worker.wait() == 0
    return sorted(line for line in worker.log.splitlines() if line.startswith(("STARTED", "FINISHED")))


def test_a_worker_sends_the_signals_in_its_process(start: Start) -> None:
    tasks.add.enqueue(1)
    tasks.aadd.enqueue(2)
    assert signal_lines(start("--drain", jobs=SOURCE_OF_LISTENERS)) == [
        "FINISHED aadd SUCCESSFUL False",
        "FINISHED add SUCCESSFUL False",
        "STARTED aadd 1 False",
        "STARTED add 1 False",
    ]


def test_the_supervisor_sends_task_finished_for_the_job_of_a_killed_worker(start: Start) -> None:
    tasks.die.enqueue()
    Job.objects.update(max_attempts=1)
    assert signal_lines(start("--drain", jobs=SOURCE_OF_LISTENERS)) == [
        "FINISHED die FAILED False",
        "STARTED die 1 False",
    ]


def test_a_worker_runs_a_task_of_another_backend_that_was_sent_to_this_one(start: Start) -> None:
    result = tasks.visit.using(backend="default").enqueue("a")
    assert start("--drain").wait() == 0
    result.refresh()
    assert result.return_value == "a"


def test_workers_run_a_thousand_tasks_of_two_aliases(start: Start) -> None:
    with transaction.atomic():
        results = [
            tasks.add.enqueue(number)
            if number % 2
            else tasks.add.using(backend="mail", queue_name="mail").enqueue(number)
            for number in range(1_000)
        ]
    assert start("--drain", "--processes", "2").wait() == 0
    wait_for_statuses(completed=1_000)
    for number in range(0, 1_000, 111):
        results[number].refresh()
        assert results[number].return_value == number
    assert {result.backend for result in results} == {"default", "mail"}
    assert Job.objects.filter(metadata__backend="mail").count() == 500


def test_an_alias_in_another_database_needs_a_worker_there(start: Start) -> None:
    in_default, in_other = tasks.add.enqueue(1), tasks.add.using(backend="other").enqueue(2)
    assert start("--drain").wait() == 0
    in_other.refresh()
    assert in_other.status == TaskResultStatus.READY
    assert start("--drain", "--database", "other").wait() == 0
    in_default.refresh()
    in_other.refresh()
    assert (in_default.return_value, in_other.return_value) == (1, 2)


def test_manage_py_check_reports_a_wrong_option_of_an_alias(manage: Start) -> None:
    wrong_setting: dict[str, Any] = {"default": {**TASKS["default"], "OPTIONS": {"max_attemps": 3}}}
    process = manage(
        "check",
        settings=f"TASKS = {wrong_setting!r}\nINSTALLED_APPS += {['django_tasks'] if LOGGER == 'django_tasks' else []}",
    )
    assert process.wait() == 1
    assert "skipqueue.E007" in process.log
    assert "Did you mean 'max_attempts'?" in process.log


def test_a_task_may_be_defined_where_apps_are_still_loading(manage: Start, tmp_path: Any) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "__init__.py").write_text("")
    (tmp_path / "early" / "models.py").write_text(f"from {LOGGER} import task\n\n@task\ndef early(a):\n    return a\n")
    process = manage(
        "shell",
        "-c",
        "from early.models import early\nresult = early.enqueue(1)\nresult.refresh()\n"
        "print(type(early).__name__, result.status)",
        settings=f"import sys\nsys.path.append({str(tmp_path)!r})\nTASKS = {TASKS!r}\nINSTALLED_APPS[:0] = ['early']\n",
    )
    assert process.wait() == 0, process.log
    assert "SkipQueueTask READY" in process.log


@pytest.mark.skipif(LOGGER != "django_tasks", reason="Django has tasks of its own")
def test_a_missing_backport_is_named_with_the_extra(manage: Start) -> None:
    process = manage("check", settings=f"import sys\nsys.modules['django_tasks'] = None\nTASKS = {TASKS!r}\n")
    assert process.wait() == 1
    assert "pip install 'django-skipqueue[tasks]'" in process.log

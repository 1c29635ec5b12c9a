"""Real workers run all kinds of tasks, whatever settings a project has for its databases and time zones."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import EncodedCall, JobSpec

from .app import jobs
from .app.models import Ledger
from .app.waiting import wait_until
from .harness.processes import ManagePy, statuses, wait_for_statuses, workers
from .queue.test_another_database import call_every_verb

store = Store("default")

RunWorker = Callable[..., ManagePy]
ONE_HOUR = "3600"
GET_OPTIONS = "OPTIONS = DATABASES['default'].setdefault('OPTIONS', {})\n"

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

SETTINGS = {
    "SERIALIZABLE": GET_OPTIONS + "OPTIONS['isolation_level'] = 4",
    "REPEATABLE READ": GET_OPTIONS + "OPTIONS['isolation_level'] = 3",
    "SERIALIZABLE for the whole session": GET_OPTIONS
    + "OPTIONS['options'] = '-c default_transaction_isolation=serializable'",
    "REPEATABLE READ for the whole session": GET_OPTIONS
    + "OPTIONS['options'] = '-c default_transaction_isolation=repeatable\\\\ read'",
    "CONN_MAX_AGE 0": "DATABASES['default']['CONN_MAX_AGE'] = 0",
    "CONN_MAX_AGE None": "DATABASES['default'] |= {'CONN_MAX_AGE': None, 'CONN_HEALTH_CHECKS': True}",
    "a pool": GET_OPTIONS + "OPTIONS['pool'] = True",
    "server-side binding": GET_OPTIONS + "OPTIONS['server_side_binding'] = True",
    "prepared statements": GET_OPTIONS + "OPTIONS['prepare_threshold'] = 0",
    "USE_TZ off": "USE_TZ, TIME_ZONE = False, 'America/New_York'",
    "a time zone": "TIME_ZONE = 'Asia/Kathmandu'",
    "a read replica": """\
        OPTIONS = DATABASES["other"].get("OPTIONS", {})
        DATABASES["other"]["OPTIONS"] = {**OPTIONS, "options": "-c default_transaction_read_only=on"}
        DATABASE_ROUTERS = ["process_settings.Router"]

        class Router:
            def db_for_read(self, model, **hints):
                return "other"

            def db_for_write(self, model, **hints):
                return "default"
    """,
}

# The tasks of a project. They use the database and the queue as tasks and views of projects do.
TASKS = """\
    from datetime import datetime, timedelta, UTC

    from django.conf import settings
    from django.db import OperationalError, transaction

    from django_skipqueue import Snooze, job
    from django_skipqueue.models import Job
    from tests.app import jobs
    from tests.app.models import Ledger


    @job(takes_context=True)
    def order(context, number):
        with transaction.atomic():
            Ledger.objects.create(entry=f"order {number}", attempt=context.attempt)
            jobs.record.defer(f"receipt {number}")
            assert context.job.status == "running"


    def surely(step, *args):
        # PostgreSQL may refuse any statement of a serializable transaction; a second attempt would repeat all steps.
        while True:
            try:
                return step(*args)
            except OperationalError as error:
                if "could not serialize" not in str(error):
                    raise


    @job
    def plan():
        past = datetime(2020, 1, 1, tzinfo=UTC if settings.USE_TZ else None)
        surely(jobs.record.using(run_after=past).defer, "past")
        surely(jobs.record.using(run_after=timedelta(seconds=0.3)).defer, "future")
        unique = jobs.record.using(unique_key="k", run_after=timedelta(hours=1))
        first, second = (surely(unique.defer, "k") for _ in range(2))
        assert first.pk == second.pk and not second.created
        assert surely(first.discard)
        surely(jobs.record.defer_many, [{"entry": "many"}] * 3)


    @job(takes_context=True)
    def again(context):
        if not Job.objects.filter(task=context.job.task, run_after__gt=context.job.enqueued_at).exists():
            raise Snooze(after=timedelta(seconds=0.1))
"""
ORDERS = 100


@pytest.mark.slow  # workers run all kinds of tasks under each of the settings
@pytest.mark.parametrize("settings_source", SETTINGS.values(), ids=SETTINGS.keys())
def test_workers_do_everything_under_settings_of_the_projects(runworker: RunWorker, settings_source: str) -> None:
    calls = [EncodedCall(f"[{number}]", "{}") for number in range(ORDERS)]
    store.enqueue_many(JobSpec("extra.jobs.order"), calls)
    for task in ("plan", "again"):
        Job.objects.enqueue(f"extra.jobs.{task}")
    jobs.fail.defer()
    process = runworker("--processes", "2", "--poll-interval", ONE_HOUR, jobs=TASKS, settings=settings_source)
    # An order and its receipt are two jobs. The other seven: `plan`, the five of its jobs that complete, and `again`.
    wait_for_statuses(completed=2 * ORDERS + 7, failed=1, discarded=1, deadline=45)
    jobs.record_and_die.defer("a worker dies")
    wait_for_statuses(completed=2 * ORDERS + 8, failed=1, discarded=1)
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.log
    assert not Worker.objects.exists()
    entries = list(Ledger.objects.values_list("entry", flat=True))
    assert {f"order {number}" for number in range(ORDERS)} <= set(entries)
    assert entries.count("many") == 3
    assert "database lost" not in process.log, process.log
    assert "Traceback" not in process.log, process.log


def test_every_verb_works_with_use_tz_off(settings: Any) -> None:
    settings.USE_TZ = False
    call_every_verb(Store("other"), Job.objects.db_manager("other"), Worker.objects.using("other"))


def defer_in_view(request: HttpRequest) -> HttpResponse:
    """A view that defers a job and, if the request asks for it, raises an error afterwards."""
    jobs.record.defer(request.GET["entry"])
    if "break" in request.GET:
        raise ValueError("after the defer")
    return HttpResponse(str(Job.objects.count()))


urlpatterns = [path("sell", defer_in_view)]


@pytest.mark.urls(__name__)
def test_with_atomic_requests_a_job_commits_with_its_request(
    runworker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    client = Client(raise_request_exception=False)
    atomic_requests = "DATABASES['default']['ATOMIC_REQUESTS'] = True"
    process = runworker("--poll-interval", ONE_HOUR, settings=atomic_requests)
    workers()
    assert client.get("/sell", {"entry": "lost", "break": "yes"}).status_code == 500
    assert statuses() == {}
    assert client.get("/sell", {"entry": "sold"}).content == b"1"
    wait_for_statuses(completed=1)
    assert list(Ledger.objects.values_list("entry", flat=True)) == ["sold"]
    process.send(signal.SIGTERM)
    assert process.wait() == 0


def test_workers_of_two_databases_run_the_jobs_of_their_own_database(runworker: RunWorker, settings: Any) -> None:
    """Each database has its own workers. The tasks of both write into the project's default database."""
    settings.SKIPQUEUE = {"DATABASE": "other"}
    jobs.record.defer_many([{"entry": "in the second"}] * 50)
    jobs.record.using(database="default").defer("in the first")
    process_of_other = runworker("--poll-interval", ONE_HOUR, skipqueue=settings.SKIPQUEUE)
    wait_for_statuses(completed=50)
    jobs.record_and_die.defer("a worker dies")
    wait_for_statuses(completed=51)
    assert Job.objects.using("default").get().status == "queued", "the worker serves the other database"
    process_of_default = runworker("--poll-interval", ONE_HOUR, "--database", "default", skipqueue=settings.SKIPQUEUE)
    wait_until(lambda: Job.objects.using("default").get().status == "completed")
    jobs.record.defer("woken")
    jobs.record.using(database="default").defer("woken")
    wait_until(lambda: Ledger.objects.filter(entry="woken").count() == 2, "each worker hears of its own database")
    assert Ledger.objects.filter(entry="in the second").count() == 50
    for process in (process_of_default, process_of_other):
        process.send(signal.SIGTERM)
        assert process.wait() == 0
    assert not Worker.objects.using("default").exists()
    assert not Worker.objects.using("other").exists()

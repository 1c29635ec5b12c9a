"""A page whose query takes too long ends with an error page, and its request changes nothing."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console.admin import notices
from django_skipqueue.console.admin.ui import time_limit
from django_skipqueue.console.admin.ui.views import OwnViews
from django_skipqueue.console.admin.verbs import many_jobs
from django_skipqueue.console.admin.verbs.many_jobs import ChangeTally
from django_skipqueue.console.metrics import scrape
from django_skipqueue.console.rules import examination
from django_skipqueue.models import Job
from django_skipqueue.queue.session import short_transaction
from django_skipqueue.queue.store import Store

from ....app.rows import make_job
from ....app.sessions import Session
from ..conftest import LIST, QUEUES, page
from ..pages import JOBS, QUESTIONS, made_addresses  # noqa: F401 (a fixture)

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = ", ".join(model._meta.db_table for model in apps.get_app_config("django_skipqueue").get_models())
SERVER_TIMEOUT = 60.0
"""Seconds after which the server itself ends a statement that has no limit."""

PAGES_WITHOUT_LOCKED_TABLES = {"index", "app", "doctor", "metrics", "pause", "add schedule"}
"""The pages that are shown without the locked tables."""


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Session]]:
    """Return a function that locks tables in another session. All time limits of queries are 0.2 seconds."""
    for module, name in (
        (time_limit, "QUERY_SECONDS"), (examination, "VERDICT_SECONDS"), (examination, "RULE_SECONDS"),
        (scrape, "PART_SECONDS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.2)
    execute(f"SET statement_timeout = '{SERVER_TIMEOUT}s'")
    session = Session()
    session.begin()

    def lock_tables(tables: str) -> Session:
        session(execute, f"LOCK TABLE {tables}")
        return session

    yield lock_tables
    session.rollback()
    session.close()
    execute("RESET statement_timeout")


def call_within_limit(request_page: Callable[[], Any]) -> Any:
    """Call `request_page`, and check that no statement without a time limit has waited for the lock."""
    started_at = time.monotonic()
    response = request_page()
    assert time.monotonic() - started_at < SERVER_TIMEOUT
    return response


@pytest.mark.slow
def test_every_page_answers_while_somebody_holds_a_lock(
    addresses: Mapping[str, str], operator: Client, lock: Callable[[str], Session]
) -> None:
    lock(f"{TABLES} IN ACCESS EXCLUSIVE MODE")
    status_codes = {}
    for name, address in {**addresses, "metrics": f"{JOBS}metrics/"}.items():
        notices.notices_cache.clear()
        status_codes[name] = call_within_limit(partial(operator.get, f"/admin/{address}")).status_code
    for name, fields in QUESTIONS.items():
        status_codes[name] = call_within_limit(partial(operator.post, LIST, fields)).status_code
    assert status_codes == {name: 200 if name in PAGES_WITHOUT_LOCKED_TABLES else 503 for name in status_codes}


def test_every_model_admin_of_the_package_limits_its_queries() -> None:
    our_admins = [
        model_admin for model_admin in admin.site._registry.values() if model_admin.opts.app_label == "django_skipqueue"
    ]
    assert our_admins
    assert all(isinstance(model_admin, OwnViews) for model_admin in our_admins)


@pytest.mark.parametrize("page", [f"{LIST}?status=queued&q=x", QUEUES])
def test_a_page_that_waits_for_a_lock_says_what_to_do(
    operator: Client, lock: Callable[[str], Session], page: str
) -> None:
    lock(f"{TABLES} IN ACCESS EXCLUSIVE MODE")
    response = operator.get(page)
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "10"
    assert "ETag" not in response.headers
    for expected in ("cancelled after 200 ms", "skipqueue doctor", "Try again", "VACUUM FULL"):
        assert expected in response.text
    assert ("remove a filter" in response.text) == ("?" in page)
    assert "Nothing was changed." not in response.text


def test_the_connection_keeps_its_own_timeout_after_a_slow_page(
    operator: Client, lock: Callable[[str], Session]
) -> None:
    lock(f"{TABLES} IN ACCESS EXCLUSIVE MODE")
    operator.get(LIST)
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("1min",)


def test_the_time_limit_ends_with_the_page(operator: Client) -> None:
    assert operator.get(LIST).status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_a_database_error_other_than_a_timeout_is_raised(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr("django_skipqueue.console.admin.queues.queue_states", fail)
    with pytest.raises(OperationalError, match="the connection is lost"):
        operator.get(QUEUES)


# The verdict


def test_a_verdict_that_takes_too_long_is_not_computed_again_at_once(
    operator: Client, lock: Callable[[str], Session]
) -> None:
    make_job()
    lock(f"{TABLES} IN ACCESS EXCLUSIVE MODE")
    response = call_within_limit(lambda: operator.get("/admin/"))
    assert response.status_code == 200
    assert "rules could not be applied" in response.text
    with CaptureQueriesContext(connection) as queries:
        assert operator.get("/admin/").status_code == 200
    assert not [query["sql"] for query in queries if "skipqueue_" in query["sql"]]


def test_the_verdict_restores_the_time_limit_of_the_page() -> None:
    store = Store.default()
    with connection.cursor() as cursor, short_transaction(store, 5.0):
        notices.notices_cache.get()
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("5s",)


# Requests that change jobs


@pytest.mark.parametrize("table", ["skipqueue_job", "django_admin_log"])
def test_a_verb_that_exceeds_the_time_limit_changes_nothing(
    operator: Client, lock: Callable[[str], Session], table: str
) -> None:
    job = make_job("failed")
    locking_session = lock(f"{table} IN SHARE MODE")  # the table can still be read
    response = call_within_limit(lambda: operator.post(page("retry", job.pk)))
    assert response.status_code == 503
    assert "Nothing was changed." in response.text
    assert Job.objects.get(pk=job.pk).status == "failed"
    locking_session.rollback()
    locking_session.begin()
    assert operator.post(page("retry", job.pk)).status_code == 302
    assert Job.objects.get(pk=job.pk).status == "queued"
    assert LogEntry.objects.count() == 1


def test_an_action_has_no_time_limit_for_a_statement(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch of an action is committed separately, and the time limit of pages must not cancel a batch."""
    timeouts_and_transactions = []

    def apply(*args: Any) -> ChangeTally:
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            timeouts_and_transactions.append((cursor.fetchone(), connection.in_atomic_block))
        return original_apply(*args)

    original_apply = many_jobs.apply
    monkeypatch.setattr(many_jobs, "apply", apply)
    job = make_job("failed")
    operator.post(LIST, {"action": "retry_selected", "_selected_action": [job.pk], "confirmed": "yes"})
    assert timeouts_and_transactions == [(("0",), False)]
    assert Job.objects.get(pk=job.pk).status == "queued"

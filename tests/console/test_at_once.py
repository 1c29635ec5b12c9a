"""`read_at_once`: reads several databases in parallel threads, with timeouts, and leaves no connection open."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import translation
from django.utils.translation import gettext

from django_skipqueue.conf import settings
from django_skipqueue.console.at_once import read_at_once
from django_skipqueue.models import Job
from django_skipqueue.queue.session import backend_pid
from django_skipqueue.queue.store import Store

from ..app.rows import make_job
from ..app.waiting import DEADLINE, wait_until
from ..harness.proxy import Proxy
from ..harness.reached import NOBODY, is_read, reached_at

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ("default", "other")
LONG_TIMEOUTS: dict[str, float] = {"connect_seconds": DEADLINE, "seconds": DEADLINE}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Put a proxy in front of the database `other`, and yield the proxy."""
    proxy_of_other = Proxy()
    with reached_at("other", proxy_of_other.settings):
        yield proxy_of_other
        proxy_of_other.close()  # ends connections that are still being made


def count_queued(store: Store) -> int:
    """Count the jobs of the database that this thread uses."""
    assert settings.database == store.alias
    return Job.objects.queued().count()


def test_each_database_is_read_in_a_thread_of_its_own() -> None:
    make_job()
    make_job(using="other")
    make_job(using="other")
    barrier = threading.Barrier(2)

    def read(store: Store) -> int:
        barrier.wait(DEADLINE)  # if the databases were read one after the other, the barrier would break
        return count_queued(store)

    assert read_at_once(BOTH, read, **LONG_TIMEOUTS) == {"default": 1, "other": 2}


def test_the_threads_close_their_connections() -> None:
    def read(store: Store) -> tuple[int, str]:
        return backend_pid(store), threading.current_thread().name

    results = read_at_once(BOTH, read, **LONG_TIMEOUTS)
    pids = [result[0] for result in results.values() if result]
    names = [result[1] for result in results.values() if result]
    assert names == ["read default", "read other"]
    wait_until(lambda: not count_sessions(pids), "the sessions of the threads are gone")


def count_sessions(pids: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)", [list(pids)])
        return int(cursor.fetchone()[0])


def test_a_database_with_an_open_transaction_is_read_within_it() -> None:
    with transaction.atomic(using="other"):
        make_job(using="other")
        pid = backend_pid(Store("other"))
        read = read_at_once(BOTH, lambda store: (count_queued(store), backend_pid(store)), **LONG_TIMEOUTS)
    assert read["default"]
    assert read["default"][0] == 0
    assert read["other"] == (1, pid)


def test_an_unreachable_database_has_no_result() -> None:
    make_job()
    with reached_at("gone", NOBODY):
        assert read_at_once((*BOTH, "gone"), count_queued, **LONG_TIMEOUTS) == {"default": 1, "other": 0, "gone": None}


def test_a_database_whose_statements_fail_has_no_result() -> None:
    def read(store: Store) -> int:
        return len(store.rows("SELECT 1" if store.alias == "default" else "SELECT nothing"))

    assert read_at_once(BOTH, read, **LONG_TIMEOUTS) == {"default": 1, "other": None}


def test_a_server_that_never_answers_is_given_up_after_the_connect_timeout(proxy: Proxy) -> None:
    proxy.stall()
    started_at = time.monotonic()
    results = read_at_once(BOTH, count_queued, connect_seconds=0.05, seconds=DEADLINE)
    assert time.monotonic() - started_at < DEADLINE / 4
    assert results["other"] is None
    proxy.flow()


def test_a_server_that_stalls_within_a_statement_is_given_up_after_the_timeout(proxy: Proxy) -> None:
    def read(store: Store) -> int:
        backend_pid(store)
        if store.alias == "other":
            proxy.stall()
        return count_queued(store)

    started_at = time.monotonic()
    results = read_at_once(BOTH, read, connect_seconds=DEADLINE, seconds=3.0)
    assert time.monotonic() - started_at < DEADLINE / 4
    assert results["other"] is None
    wait_until(lambda: not is_read("other"), "the thread has ended")


def test_a_thread_that_connects_too_late_reads_nothing(proxy: Proxy) -> None:
    read_aliases: list[str] = []
    proxy.stall()
    read_at_once(("other",), lambda store: read_aliases.append(store.alias), connect_seconds=0.05, seconds=DEADLINE)
    proxy.flow()
    wait_until(lambda: not is_read("other"), "the thread has ended")
    assert read_aliases == []


def test_an_unexpected_error_is_raised_in_the_callers_thread() -> None:
    def read(store: Store) -> int:
        raise ZeroDivisionError(store.alias)

    with pytest.raises(ZeroDivisionError, match="default"):
        read_at_once(BOTH, read, **LONG_TIMEOUTS)


def test_the_threads_have_the_language_of_the_caller() -> None:
    with translation.override("de"):
        results = read_at_once(BOTH, lambda store: gettext("Monday"), **LONG_TIMEOUTS)
        assert results == dict.fromkeys(BOTH, "Montag")


def test_the_callers_connections_stay_open() -> None:
    connections["default"].ensure_connection()
    connection_before = connections["default"].connection
    read_at_once(BOTH, count_queued, **LONG_TIMEOUTS)
    assert connections["default"].connection is connection_before

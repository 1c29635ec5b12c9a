"""Behind PgBouncer in transaction mode everything works except LISTEN, because no statement relies on its session."""

import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store

from ..app import jobs
from ..app.models import Ledger
from ..harness.pgbouncer import PGBOUNCER, POOL_SIZE, PORT, pgbouncer, statistics
from ..harness.processes import ManagePy, wait_for_statuses, workers
from .test_another_database import call_every_verb

RunWorker = Callable[..., ManagePy]
ONE_HOUR = "3600"

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.skipif(
        not PGBOUNCER and not os.environ.get("SKIPQUEUE_REQUIRE_PGBOUNCER"), reason="PgBouncer is not installed"
    ),
]


def libpq_parameters(alias: str) -> dict[str, Any]:
    """Return the connection parameters of the database under test, as libpq names them."""
    connections[alias].ensure_connection()
    info = connections[alias].connection.info
    return {"host": info.host, "port": info.port, "dbname": info.dbname, "user": info.user, "password": info.password}


@pytest.fixture
def pooled_alias(transactional_db: None) -> Iterator[str]:
    """Connect Django's second database through PgBouncer."""
    wrapper = connections["other"]
    original_settings = wrapper.settings_dict
    with pgbouncer(libpq_parameters("other")) as folder:
        wrapper.close()
        wrapper.settings_dict = {**original_settings, **settings_through_pooler(folder, original_settings)}
        try:
            yield "other"
        finally:
            wrapper.close()
            wrapper.settings_dict = original_settings


@pytest.fixture
def pgbouncer_folder(transactional_db: None) -> Iterator[Path]:
    """Start a PgBouncer in front of the default database. Yields the folder of its socket."""
    with pgbouncer(libpq_parameters("default")) as folder:
        yield folder


def settings_through_pooler(folder: Path, database: dict[str, Any]) -> dict[str, Any]:
    """Return the database settings with which Django connects through the pooler in this folder."""
    options = {name: value for name, value in database.get("OPTIONS", {}).items() if name != "host"}
    return {"HOST": str(folder), "PORT": PORT, "OPTIONS": options, "DISABLE_SERVER_SIDE_CURSORS": True}


@pytest.mark.parametrize("ignored", ["", "extra_float_digits, options"], ids=["refuses", "ignores"])
def test_a_pooler_that_does_not_set_our_timeouts_is_logged_once(
    runworker: RunWorker, transactional_db: None, ignored: str
) -> None:
    jobs.noop.defer()
    with pgbouncer(libpq_parameters("default"), ignored=ignored) as folder:
        process = runworker("--poll-interval", "0.2", "--worker-timeout", "2", settings=settings_source(folder))
        wait_for_statuses(completed=1)
        process.wait_for('server timeouts refused who="supervisor')
        process.send(signal.SIGTERM)
        assert process.wait() == 0
    assert process.log.count('server timeouts refused who="supervisor') == 1


def settings_source(folder: Path) -> str:
    """The settings of a process that uses the pooler."""
    changed_settings = settings_through_pooler(folder, connections["default"].settings_dict)
    return f"DATABASES['default'] |= {changed_settings!r}"


def test_every_verb_works_behind_pgbouncer(pooled_alias: str) -> None:
    call_every_verb(Store(pooled_alias), Job.objects.db_manager(pooled_alias), Worker.objects.using(pooled_alias))


@pytest.mark.parametrize("options", [(), ("--no-listen",), ("--processes", "3", "-c", "2")])
def test_a_drain_runs_all_jobs_behind_pgbouncer(
    runworker: RunWorker, pgbouncer_folder: Path, options: tuple[str, ...]
) -> None:
    jobs.record.defer_many([{"entry": "a"}] * 300)
    jobs.arecord.defer_many([{"entry": "b"}] * 100)
    jobs.fail_times.defer(2)
    jobs.fail.defer()
    process = runworker("--drain", *options, settings=settings_source(pgbouncer_folder))
    assert process.wait() == 0, process.log
    wait_for_statuses(completed=401, failed=1)
    assert Ledger.objects.count() == 400
    assert not Worker.objects.exists()
    assert "database lost" not in process.log
    assert "Traceback" not in process.log


def test_a_worker_that_stays_finds_recovers_and_admits_jobs_by_polling(
    runworker: RunWorker, pgbouncer_folder: Path
) -> None:
    process = runworker("--processes", "2", "--poll-interval", "0.2", settings=settings_source(pgbouncer_folder))
    workers(2)
    jobs.record.defer_many([{"entry": "a"}] * 500)
    wait_for_statuses(completed=500)
    jobs.record.using(run_after=timedelta(seconds=0.3)).defer("due")
    jobs.record_and_die.defer("a worker dies")
    wait_for_statuses(completed=502)
    clients = statistics(pgbouncer_folder)
    assert clients["cl_active"] + clients["cl_waiting"] > POOL_SIZE, "more clients than connections: they share"
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not Worker.objects.exists()
    assert "database lost" not in process.log
    assert "Traceback" not in process.log

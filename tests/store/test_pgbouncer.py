"""Behind PgBouncer in transaction mode everything works but LISTEN: no statement needs an earlier statement."""

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
from ..harness.pgbouncer import POOL_SIZE, PORT, PROGRAM, pgbouncer, statistics
from ..harness.processes import ManagePy, wait_for_statuses, workers
from .test_another_database import live_and_die

Run = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.skipif(
        not PROGRAM and not os.environ.get("SKIPQUEUE_REQUIRE_PGBOUNCER"), reason="PgBouncer is not installed"
    ),
]


def database_behind(alias: str) -> dict[str, Any]:
    """Where the database under test is, in the words of libpq."""
    connections[alias].ensure_connection()
    info = connections[alias].connection.info
    return {"host": info.host, "port": info.port, "dbname": info.dbname, "user": info.user, "password": info.password}


@pytest.fixture
def pooled(transactional_db: None) -> Iterator[str]:
    """Connect Django's second database through PgBouncer."""
    wrapper = connections["other"]
    before = wrapper.settings_dict
    with pgbouncer(database_behind("other")) as folder:
        wrapper.close()
        wrapper.settings_dict = {**before, **behind(folder, before)}
        try:
            yield "other"
        finally:
            wrapper.close()
            wrapper.settings_dict = before


@pytest.fixture
def pooler(transactional_db: None) -> Iterator[Path]:
    """A PgBouncer before the default database, for processes that are told of it."""
    with pgbouncer(database_behind("default")) as folder:
        yield folder


def behind(folder: Path, database: dict[str, Any]) -> dict[str, Any]:
    """What changes in the settings of a database."""
    options = {name: value for name, value in database.get("OPTIONS", {}).items() if name != "host"}
    return {"HOST": str(folder), "PORT": PORT, "OPTIONS": options, "DISABLE_SERVER_SIDE_CURSORS": True}


@pytest.mark.parametrize("ignored", ["", "extra_float_digits, options"], ids=["refuses", "ignores"])
def test_a_pooler_without_our_timeouts_is_named_once(runworker: Run, transactional_db: None, ignored: str) -> None:
    jobs.noop.defer()
    with pgbouncer(database_behind("default"), ignored=ignored) as folder:
        process = runworker("--poll-interval", "0.2", "--worker-timeout", "2", settings=settings(folder))
        wait_for_statuses(completed=1)
        process.wait_for('server timeouts refused who="supervisor')
        process.send(signal.SIGTERM)
        assert process.wait() == 0
    assert process.log.count('server timeouts refused who="supervisor') == 1


def settings(folder: Path) -> str:
    """The settings of a process that uses the pooler."""
    changed = behind(folder, connections["default"].settings_dict)
    return f"DATABASES['default'] |= {changed!r}"


def test_every_verb_works(pooled: str) -> None:
    live_and_die(Store(pooled), Job.objects.db_manager(pooled), Worker.objects.using(pooled))


@pytest.mark.parametrize("options", [(), ("--no-listen",), ("--processes", "3", "-c", "2")])
def test_a_drain_runs_everything(runworker: Run, pooler: Path, options: tuple[str, ...]) -> None:
    jobs.record.defer_many([{"entry": "a"}] * 300)
    jobs.arecord.defer_many([{"entry": "b"}] * 100)
    jobs.fail_times.defer(2)
    jobs.fail.defer()
    process = runworker("--drain", *options, settings=settings(pooler))
    assert process.wait() == 0, process.log
    wait_for_statuses(completed=401, failed=1)
    assert Ledger.objects.count() == 400
    assert not Worker.objects.exists()
    assert "database lost" not in process.log
    assert "Traceback" not in process.log


def test_a_worker_that_stays_finds_recovers_and_admits_jobs_by_polling(runworker: Run, pooler: Path) -> None:
    process = runworker("--processes", "2", "--poll-interval", "0.2", settings=settings(pooler))
    workers(2)
    jobs.record.defer_many([{"entry": "a"}] * 500)
    wait_for_statuses(completed=500)
    jobs.record.using(run_after=timedelta(seconds=0.3)).defer("due")
    jobs.record_and_die.defer("a worker dies")
    wait_for_statuses(completed=502)
    statistic = statistics(pooler)
    assert statistic["cl_active"] + statistic["cl_waiting"] > POOL_SIZE, "more clients than connections: they share"
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not Worker.objects.exists()
    assert "database lost" not in process.log
    assert "Traceback" not in process.log

"""`skipqueue reindex` rebuilds one index at a time, and removes the indexes that an interrupted run has left."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_skipqueue.console.cli.indexes import DROP_INDEX, REINDEX, TableIndex, change_index, indexes
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Job

from ...app.rows import DEFAULT, make_job
from ...app.waiting import wait_until
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

CLAIM_INDEX = "skipqueue_job_claim"


def left_over_indexes() -> set[str]:
    return {index.name for index in indexes(DEFAULT) if index.is_left_over}


@pytest.fixture(autouse=True)
def drop_left_over_indexes_after_the_test(transactional_db: None) -> Iterator[None]:
    yield
    for index in indexes(DEFAULT):
        if index.is_left_over:
            change_index(DEFAULT, DROP_INDEX, schema=index.schema, name=index.name)
    connection.close()  # so that later tests do not inherit the timeouts of this connection


def test_reindex_rebuilds_every_index() -> None:
    before = [index.name for index in indexes(DEFAULT)]
    assert {CLAIM_INDEX, "skipqueue_job_pkey", "skipqueue_worker_pkey"} <= set(before)
    result = skipqueue("reindex")
    assert (result.code, result.err) == (0, "")
    assert [line.split(":")[0] for line in result.out.splitlines()] == before
    assert left_over_indexes() == set()


def test_reindex_shrinks_an_index_that_is_mostly_empty(connect: Any) -> None:
    Job.objects.bulk_create(Job(task="t", queue_name="q", status="queued") for _ in range(2_000))
    Job.objects.all()._raw_delete("default")
    result = skipqueue("reindex", "--index", CLAIM_INDEX)
    (line,) = result.out.splitlines()
    # The sizes are the last word before "→", and the last word of the line, each with its unit.
    size_before, size_after = (float(part.split("\xa0")[0].split()[-1]) for part in line.split("→"))
    assert size_after == 8.0, "an empty index has one page of 8 kB"
    assert size_before > 50


def test_a_dry_run_of_reindex_changes_no_index(connect: Any) -> None:
    make_left_over_index(connect)
    result = skipqueue("reindex", "--dry-run")
    assert result.code == 0
    assert f"{CLAIM_INDEX}_ccnew: left over from an interrupted rebuild, would be dropped" in result.out
    assert f"{CLAIM_INDEX}: " in result.out
    assert left_over_indexes() == {f"{CLAIM_INDEX}_ccnew"}


def make_left_over_index(connect: Any) -> None:
    """Make an invalid index, named as PostgreSQL names the index that an interrupted rebuild leaves."""
    for _ in range(2):
        make_job(queue_name="same")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connect().execute(f"CREATE UNIQUE INDEX CONCURRENTLY {CLAIM_INDEX}_ccnew ON skipqueue_job (queue_name)")


def test_reindex_first_drops_left_over_indexes(connect: Any) -> None:
    make_left_over_index(connect)
    result = skipqueue("reindex", "--index", CLAIM_INDEX)
    first, second = result.out.splitlines()
    assert first == f"{CLAIM_INDEX}_ccnew: left over from an interrupted rebuild, dropped"
    assert second.startswith(f"{CLAIM_INDEX}: ")
    assert left_over_indexes() == set()


def test_an_interrupted_reindex_can_be_run_again(manage: Callable[..., Any], connect: Any) -> None:
    job = make_job()
    session_with_open_transaction = connect(autocommit=False)
    session_with_open_transaction.execute("UPDATE skipqueue_job SET priority = 1 WHERE id = %s", [job.pk])
    process = manage("skipqueue", "reindex", "--index", CLAIM_INDEX)
    wait_until(left_over_indexes, "the rebuild waits for the other transaction")
    process.send(signal.SIGINT)
    assert process.wait() != 0
    session_with_open_transaction.rollback()
    assert left_over_indexes()
    assert skipqueue("reindex", "--index", CLAIM_INDEX).code == 0
    assert left_over_indexes() == set()


def test_reindex_waits_no_longer_than_the_lock_timeout(connect: Any) -> None:
    job = make_job()
    session_with_open_transaction = connect(autocommit=False)
    session_with_open_transaction.execute("UPDATE skipqueue_job SET priority = 1 WHERE id = %s", [job.pk])
    result = skipqueue("reindex", "--index", CLAIM_INDEX, "--lock-timeout", "0.2s")
    assert result.code == Exit.ERROR
    assert "for a lock or an old transaction" in result.err
    session_with_open_transaction.rollback()
    assert skipqueue("reindex", "--index", CLAIM_INDEX).code == 0


def test_reindex_is_refused_within_a_transaction() -> None:
    with transaction.atomic():
        result = skipqueue("reindex", "--dry-run")
    assert result.code == Exit.ERROR
    assert "the caller has one open" in result.err


def test_reindex_is_refused_behind_a_pooler_in_transaction_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.console.cli.indexes.pools_transactions", lambda alias: True)
    result = skipqueue("reindex")
    assert result.code == Exit.ERROR
    assert "a pooler in transaction mode" in result.err


def test_an_unknown_index_is_an_error_that_names_the_known_ones() -> None:
    result = skipqueue("reindex", "--index", "nosuch")
    assert result.code == Exit.ERROR
    assert "has an index 'nosuch'" in result.err
    assert CLAIM_INDEX in result.err


@pytest.mark.usefixtures("new_tables")
def test_the_name_of_an_index_is_quoted_in_sql(connect: Any) -> None:
    name = 'x"; DROP TABLE skipqueue_job; --'
    other_session = connect()
    other_session.execute(
        psycopg.sql.SQL("CREATE INDEX {} ON skipqueue_job (task)").format(psycopg.sql.Identifier(name))
    )
    [index] = [existing for existing in indexes(DEFAULT) if existing.name == name]
    change_index(DEFAULT, REINDEX, schema=index.schema, name=index.name)
    assert TableIndex("public", name, index.size, is_left_over=False) in indexes(DEFAULT)
    change_index(DEFAULT, DROP_INDEX, schema=index.schema, name=index.name)
    assert name not in {existing.name for existing in indexes(DEFAULT)}
    assert not Job.objects.exists()

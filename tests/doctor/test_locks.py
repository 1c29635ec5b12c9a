"""`lock-waits`: sessions that wait for a lock on the queue's tables, and who holds the lock."""

from typing import Any

import pytest
from django.db import connection, transaction
from django.utils.timezone import now

from django_skipqueue.console.rules import server

from ..app.rows import make_job
from ..app.waiting import wait_until
from .conftest import Found, Rows, paste


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LONG_LOCK_WAIT", 0.0)


def test_a_session_that_waits_and_the_one_that_it_waits_for(found: Found, connect: Any, session: Any) -> None:
    job = make_job()
    holder = connect(autocommit=False, application_name="migration")
    holder.execute("UPDATE skipqueue_job SET priority = 1 WHERE id = %s", [job.pk])
    assert found("lock-waits") == []
    waiter = session()
    waiting = waiter.start(lambda: job.__class__.objects.filter(pk=job.pk).update(priority=2))
    waiter.wait_until_blocked()
    (finding,) = wait_until(lambda: found("lock-waits"))
    assert finding.severity == "warning"
    assert f"Session {waiter.pid} (tests)" in finding.found
    holding = f"Session {holder.info.backend_pid} (migration, idle in transaction)"
    assert finding.title.startswith(f"{holding} locks the queue's tables: 1 session has waited since ")
    assert finding.subject == str(holder.info.backend_pid)
    assert finding.since is not None
    paste(finding.command)
    assert waiting.result(20) == 1
    wait_until(lambda: not found("lock-waits"))
    holder.close()


def test_a_session_that_blocks_and_waits_itself_is_not_to_be_ended(found: Found, connect: Any, session: Any) -> None:
    job = make_job()
    holder = connect(autocommit=False, application_name="migration")
    holder.execute("LOCK TABLE skipqueue_job IN SHARE MODE")
    first, second = session(), session()
    updating = first.start(lambda: job.__class__.objects.filter(pk=job.pk).update(priority=2))
    first.wait_until_blocked()
    updating_too = second.start(lambda: job.__class__.objects.filter(pk=job.pk).update(priority=3))
    second.wait_until_blocked()
    third = session()
    locking = third.start(lock_all)
    third.wait_until_blocked()
    assert {each.subject for each in found("lock-waits")} == {str(holder.info.backend_pid)}
    holder.close()
    assert (updating.result(20), updating_too.result(20), locking.result(20)) == (1, 1, None)


def lock_all() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE skipqueue_job IN ACCESS EXCLUSIVE MODE")


def test_a_long_wait_is_critical_and_a_prepared_transaction_has_no_session() -> None:
    (finding,) = server.lock_waits(Rows((7, 31.0, "web", "UPDATE …", 0, "", "", "", now())))
    assert finding.severity == "critical"
    assert finding.title.startswith("A prepared transaction locks the queue's tables: 1 session has waited since ")
    assert finding.command == "SELECT * FROM pg_prepared_xacts;"


def test_a_wait_on_other_tables_is_not_ours(found: Found, connect: Any) -> None:
    one, other = connect(autocommit=False), connect(autocommit=False)
    one.execute("SELECT pg_advisory_xact_lock(1)")
    other.pgconn.send_query(b"SELECT pg_advisory_xact_lock(1)")
    try:
        assert found("lock-waits") == []
    finally:
        one.rollback()
        other.close()

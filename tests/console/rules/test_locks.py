"""`lock-waits`: sessions that wait for a lock on the queue's tables, and who holds the lock."""

from typing import Any

import pytest
from django.db import connection, transaction
from django.utils.timezone import now

from django_skipqueue.console.rules import server

from ...app.rows import make_job
from ...app.waiting import wait_until
from .conftest import FindingsOf, StoreOfRows, run_sql


@pytest.fixture(autouse=True)
def _report_waits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LONG_LOCK_WAIT", 0.0)


def test_the_finding_names_the_waiting_session_and_the_session_that_blocks_it(
    findings_of: FindingsOf, connect: Any, session: Any
) -> None:
    job = make_job()
    holder = connect(autocommit=False, application_name="migration")
    holder.execute("UPDATE skipqueue_job SET priority = 1 WHERE id = %s", [job.pk])
    assert findings_of("lock-waits") == []
    waiter = session()
    update = waiter.start(lambda: job.__class__.objects.filter(pk=job.pk).update(priority=2))
    waiter.wait_until_blocked()
    (finding,) = wait_until(lambda: findings_of("lock-waits"))
    assert finding.severity == "warning"
    assert f"Session {waiter.pid} (tests)" in finding.found
    holder_text = f"Session {holder.info.backend_pid} (migration, idle in transaction)"
    assert finding.title.startswith(f"{holder_text} locks the queue's tables: 1 session has waited since ")
    assert finding.subject == str(holder.info.backend_pid)
    assert finding.since is not None
    run_sql(finding.command)
    assert update.result(20) == 1
    wait_until(lambda: not findings_of("lock-waits"))
    holder.close()


def test_of_a_chain_of_waiting_sessions_only_the_first_blocker_is_reported(
    findings_of: FindingsOf, connect: Any, session: Any
) -> None:
    job = make_job()
    holder = connect(autocommit=False, application_name="migration")
    holder.execute("LOCK TABLE skipqueue_job IN SHARE MODE")
    first, second = session(), session()
    first_update = first.start(lambda: job.__class__.objects.filter(pk=job.pk).update(priority=2))
    first.wait_until_blocked()
    second_update = second.start(lambda: job.__class__.objects.filter(pk=job.pk).update(priority=3))
    second.wait_until_blocked()
    third = session()
    table_lock = third.start(lock_job_table)
    third.wait_until_blocked()
    assert {finding.subject for finding in findings_of("lock-waits")} == {str(holder.info.backend_pid)}
    holder.close()
    assert (first_update.result(20), second_update.result(20), table_lock.result(20)) == (1, 1, None)


def lock_job_table() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE skipqueue_job IN ACCESS EXCLUSIVE MODE")


def test_a_half_minutes_wait_for_a_prepared_transaction_is_critical() -> None:
    seconds, pid_of_blocker = 31.0, 0  # a prepared transaction has no session, so its process id is 0
    waiting_session = (7, seconds, "web", "UPDATE …", pid_of_blocker, "", "", "", now())
    (finding,) = server.lock_waits(StoreOfRows(waiting_session))
    assert finding.severity == "critical"
    assert finding.title.startswith("A prepared transaction locks the queue's tables: 1 session has waited since ")
    assert finding.command == "SELECT * FROM pg_prepared_xacts;"


def test_a_wait_for_a_lock_outside_the_queue_is_no_finding(findings_of: FindingsOf, connect: Any) -> None:
    holder, waiter = connect(autocommit=False), connect(autocommit=False)
    holder.execute("SELECT pg_advisory_xact_lock(1)")
    waiter.pgconn.send_query(b"SELECT pg_advisory_xact_lock(1)")
    try:
        assert findings_of("lock-waits") == []
    finally:
        holder.rollback()
        waiter.close()

"""Rules about old snapshots: each test makes a finding appear, and runs its command, which solves the problem."""

from typing import Any

import pytest

from django_skipqueue.console.rules import server

from ...app.rows import make_job
from ...app.waiting import wait_until
from .conftest import FindingsOf, StoreOfRows, run_sql

# Ends what earlier tests have left. If a test has cut off a client, the client's session still runs its statement, and
# holds a snapshot until the statement ends.
END_TRANSACTIONS = """
SELECT pg_terminate_backend(pid, 5000)
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
"""


@pytest.fixture(autouse=True)
def _report_every_transaction(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sql(END_TRANSACTIONS)
    monkeypatch.setattr(server, "OLD_TRANSACTION_SECONDS", 0.0)


def test_a_session_that_holds_an_old_snapshot_is_named_and_the_command_ends_it(
    findings_of: FindingsOf, connect: Any
) -> None:
    other_session = connect(autocommit=False, application_name="reports")
    other_session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other_session.execute("SELECT pg_sleep(0), 'hunter22'")
    (finding,) = findings_of("old-session")
    assert finding.severity == "warning"
    for expected in (
        f"Session {other_session.info.backend_pid} (reports, role ",
        "idle in transaction",
        "SELECT pg_sleep(…",
    ):
        assert expected in finding.found
    assert "hunter22" not in finding.found, "a value in the statement of another session"
    run_sql(finding.command)
    wait_until(lambda: not findings_of("old-session"), "the session has ended")
    other_session.close()


def test_an_open_transaction_that_has_written_counts_as_an_old_session(findings_of: FindingsOf, connect: Any) -> None:
    job = make_job()
    other_session = connect(autocommit=False)
    other_session.execute("UPDATE skipqueue_job SET priority = 1 WHERE id = %s", [job.pk])
    assert len(findings_of("old-session")) == 1
    other_session.rollback()
    assert findings_of("old-session") == []


def test_a_very_old_session_is_critical(findings_of: FindingsOf, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "VERY_OLD_TRANSACTION_SECONDS", 0.0)
    other_session = connect(autocommit=False)
    other_session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other_session.execute("SELECT 1")
    assert [finding.severity for finding in findings_of("old-session")] == ["critical"]


def test_a_young_transaction_is_no_finding(
    findings_of: FindingsOf, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "OLD_TRANSACTION_SECONDS", 600.0)
    other_session = connect(autocommit=False)
    other_session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other_session.execute("SELECT 1")
    assert findings_of("old-session") == []


def test_an_old_prepared_transaction_is_named_and_the_command_ends_it(findings_of: FindingsOf, connect: Any) -> None:
    other_session = connect()
    ((allowed,),) = other_session.execute("SHOW max_prepared_transactions").fetchall()
    if allowed == "0":  # the server allows no prepared transaction, so the rule reads a made-up row
        name, owner, seconds = "it's lost", "ann", 90_000.0
        (finding,) = server.prepared_transactions(StoreOfRows((name, owner, seconds)))
        assert finding.command == "ROLLBACK PREPARED 'it''s lost';"
    else:
        other_session.execute("BEGIN; UPDATE skipqueue_worker SET pid = 1; PREPARE TRANSACTION 'it''s lost'")
        (finding,) = findings_of("prepared-transaction")
        run_sql(finding.command)
        assert findings_of("prepared-transaction") == []
    assert finding.severity == "critical"
    assert "it's lost" in finding.found


def test_a_replication_slot_without_a_snapshot_is_no_finding(findings_of: FindingsOf, connect: Any) -> None:
    other_session = connect()
    other_session.execute("SELECT pg_create_physical_replication_slot('doctor_scene', true)")
    try:
        assert findings_of("old-slot") == []
    finally:
        other_session.execute("SELECT pg_drop_replication_slot('doctor_scene')")


def test_the_command_drops_a_replication_slot_that_is_not_in_use() -> None:
    is_in_use, transactions_behind = False, 1_234_567
    (finding,) = server.old_slots(StoreOfRows(("standby_2", "physical", is_in_use, transactions_behind)))
    assert finding.severity == "critical"
    assert "1,234,567 transactions behind" in finding.found
    assert finding.command == "SELECT pg_drop_replication_slot('standby_2');"


def test_the_command_does_not_drop_a_replication_slot_in_use() -> None:
    is_in_use, transactions_behind = True, 5_000_000
    (finding,) = server.old_slots(StoreOfRows(("standby_2", "physical", is_in_use, transactions_behind)))
    assert finding.severity == "warning"
    assert "drop" not in finding.command


def test_a_standby_with_an_old_snapshot_is_named() -> None:
    transactions_behind = 2_000_000
    (finding,) = server.old_standbys(StoreOfRows(("replica", "10.0.0.7", transactions_behind)))
    assert finding.severity == "warning"
    assert "replica (10.0.0.7)" in finding.found


def test_control_characters_in_the_name_of_a_session_are_removed(findings_of: FindingsOf, connect: Any) -> None:
    other_session = connect(autocommit=False, application_name="x\x1b[2J")
    other_session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other_session.execute("SELECT 'two\nlines'")
    (finding,) = findings_of("old-session")
    assert finding.found.isprintable()

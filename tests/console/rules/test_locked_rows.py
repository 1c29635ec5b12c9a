"""`locked-rows`: which session keeps rows of jobs locked, by any kind of lock, and which command ends the session."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils.timezone import now

from django_skipqueue.console.queues_and_workers import Workforce
from django_skipqueue.console.rules import locks
from django_skipqueue.console.rules.locks import locker_of
from django_skipqueue.console.waiting import why_it_waits

from ...app.rows import make_job, make_worker
from ...app.waiting import wait_until
from .conftest import STORE, FindingsOf, run_sql

LOCK_ROWS = "SELECT FROM skipqueue_job WHERE id = ANY (%s) {}"
UPDATE = "UPDATE skipqueue_job SET priority = 1 WHERE id = ANY (%s)"
HOUR_AGO = timedelta(hours=-1)

LOCK_BY: dict[str, Callable[[Any, list[int]], object]] = {
    "FOR UPDATE": lambda session, ids: session.execute(LOCK_ROWS.format("FOR UPDATE"), [ids]),
    "FOR SHARE, by two sessions": lambda session, ids: session.execute(LOCK_ROWS.format("FOR SHARE"), [ids]),
    "an UPDATE": lambda session, ids: session.execute(UPDATE, [ids]),
    "a savepoint": lambda session, ids: _lock_in_savepoint(session, ids, "SELECT"),
    "a released savepoint": lambda session, ids: _lock_in_savepoint(session, ids, "RELEASE held"),
}


def _lock_in_savepoint(session: Any, ids: list[int], next_statement: str) -> None:
    session.execute("SELECT pg_current_xact_id()")  # the savepoint then has a transaction id of its own
    session.execute("SAVEPOINT held")
    session.execute(LOCK_ROWS.format("FOR UPDATE"), [ids])
    session.execute(next_statement)


@pytest.fixture(autouse=True)
def _report_after_a_millisecond(settings: Any, transactional_db: None) -> None:
    settings.SKIPQUEUE = {"RULES": {"locked-rows": 0.001}}


@pytest.mark.core
@pytest.mark.parametrize("kind_of_lock", LOCK_BY)
def test_the_session_that_locks_job_rows_is_named_and_the_command_ends_it(
    kind_of_lock: str, findings_of: FindingsOf, connect: Any
) -> None:
    queued = make_job(run_after=HOUR_AGO, queue_name="mail")
    due = make_job("scheduled", run_after=HOUR_AGO)
    running = make_job("running", locked_at=HOUR_AGO)
    ids = [queued.pk, due.pk, running.pk]
    other_session = connect(autocommit=False, application_name="sharer")
    if kind_of_lock == "FOR SHARE, by two sessions":
        other_session.execute(LOCK_ROWS.format("FOR KEY SHARE"), [ids])
        assert findings_of("locked-rows") == [], "a foreign key to a job keeps nobody from claiming it"
    session = connect(autocommit=False, application_name="psql")
    LOCK_BY[kind_of_lock](session, ids)
    (finding,) = [finding for finding in findings_of("locked-rows") if finding.subject == str(session.info.backend_pid)]
    assert finding.severity == "critical"
    assert finding.title.startswith("3 jobs have been locked since ")
    assert finding.title.endswith(f" by session {session.info.backend_pid} (psql, idle in transaction)")
    assert "Queues: default, mail" in finding.found
    assert "2 of these jobs are not run, and the outcomes of 1 are not written" in finding.found
    assert finding.since is not None
    assert finding.link is not None
    assert finding.link.arguments == (min(ids),)
    other_session.close()
    run_sql(finding.command)
    wait_until(lambda: not findings_of("locked-rows"))
    session.close()


@pytest.mark.core
def test_a_short_lock_and_a_lock_by_a_worker_are_no_findings(
    findings_of: FindingsOf, connect: Any, settings: Any
) -> None:
    job = make_job(run_after=HOUR_AGO)
    worker = connect(autocommit=False, application_name="skipqueue:0123456789ab")
    worker.execute(LOCK_ROWS.format("FOR UPDATE"), [[job.pk]])
    assert findings_of("locked-rows") == []
    worker.close()
    session = connect(autocommit=False)
    session.execute(LOCK_ROWS.format("FOR UPDATE"), [[job.pk]])
    assert len(findings_of("locked-rows")) == 1
    settings.SKIPQUEUE = {}
    assert findings_of("locked-rows") == [], "by default, only a lock of ten seconds counts"
    assert locker_of(STORE, job.pk) is not None
    session.close()


def test_a_prepared_transaction_that_locks_jobs_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        # As the columns of LOCKED_JOBS: no session holds the lock, and the prepared transaction is called "x'y".
        locked_job = (7, "t", "mail", False, None, "", "", now() - timedelta(minutes=5), "", "x'y", now())
        return [locked_job] if statement == locks.LOCKED_JOBS else []

    monkeypatch.setattr(STORE, "rows", rows)
    monkeypatch.setattr(STORE, "queues_with_jobs", lambda **_: ["mail"])
    (finding,) = locks.locked_rows(STORE)
    assert finding.title.endswith("by the prepared transaction x'y")
    assert (finding.command, finding.subject) == ("ROLLBACK PREPARED 'x''y';", "x'y")


@pytest.mark.core
def test_values_in_the_statement_of_the_locking_session_are_hidden(findings_of: FindingsOf, connect: Any) -> None:
    job = make_job(run_after=HOUR_AGO)
    session = connect(autocommit=False)
    session.execute(LOCK_ROWS.format("AND args <> '\"hunter22\"' FOR UPDATE"), [[job.pk]])
    (finding,) = findings_of("locked-rows")
    assert "SELECT FROM skipqueue_job WHERE id = ANY ($1) AND args <> …" in finding.found
    assert "hunter22" not in finding.found
    session.close()


@pytest.mark.core
@pytest.mark.parametrize("status", ["queued", "running", "scheduled", "blocked"])
def test_why_it_waits_names_the_session_that_locks_the_row(status: str, connect: Any) -> None:
    make_worker()
    job = make_job(status, run_after=HOUR_AGO)
    session = connect(autocommit=False, application_name="psql")
    session.execute(LOCK_ROWS.format("FOR UPDATE"), [[job.pk]])
    sentence = why_it_waits(job, now(), Workforce.now())
    assert sentence.startswith("Its row has been locked since ")
    assert f" by session {session.info.backend_pid} (psql, idle in transaction). While it is locked, " in sentence
    session.close()
    wait_until(lambda: "locked" not in why_it_waits(job, now(), Workforce.now()))

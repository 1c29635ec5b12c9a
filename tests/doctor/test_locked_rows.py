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

from ..app.rows import make_job, make_worker
from ..app.waiting import wait_until
from .conftest import STORE, Found, paste

LOCK = "SELECT FROM skipqueue_job WHERE id = ANY (%s) {}"
UPDATE = "UPDATE skipqueue_job SET priority = 1 WHERE id = ANY (%s)"
HOUR_AGO = timedelta(hours=-1)

HOLDS: dict[str, Callable[[Any, list[int]], object]] = {
    "FOR UPDATE": lambda session, ids: session.execute(LOCK.format("FOR UPDATE"), [ids]),
    "FOR SHARE, by two": lambda session, ids: session.execute(LOCK.format("FOR SHARE"), [ids]),
    "an UPDATE": lambda session, ids: session.execute(UPDATE, [ids]),
    "a savepoint": lambda session, ids: _in_savepoint(session, ids, "SELECT"),
    "a released savepoint": lambda session, ids: _in_savepoint(session, ids, "RELEASE held"),
}


def _in_savepoint(session: Any, ids: list[int], after: str) -> None:
    session.execute("SELECT pg_current_xact_id()")
    session.execute("SAVEPOINT held")
    session.execute(LOCK.format("FOR UPDATE"), [ids])
    session.execute(after)


@pytest.fixture(autouse=True)
def _impatient(settings: Any, transactional_db: None) -> None:
    settings.SKIPQUEUE = {"RULES": {"locked-rows": 0.001}}


@pytest.mark.core
@pytest.mark.parametrize("hold", HOLDS)
def test_the_session_that_has_locked_them_is_named_and_its_command_frees_them(
    hold: str, found: Found, connect: Any
) -> None:
    queued = make_job(run_after=HOUR_AGO, queue_name="mail")
    due = make_job("scheduled", run_after=HOUR_AGO)
    running = make_job("running", locked_at=HOUR_AGO)
    ids = [queued.pk, due.pk, running.pk]
    other = connect(autocommit=False, application_name="sharer")
    if hold == "FOR SHARE, by two":
        other.execute(LOCK.format("FOR KEY SHARE"), [ids])
        assert found("locked-rows") == [], "a foreign key to a job keeps nobody from claiming it"
    session = connect(autocommit=False, application_name="psql")
    HOLDS[hold](session, ids)
    (finding,) = [each for each in found("locked-rows") if each.subject == str(session.info.backend_pid)]
    assert finding.severity == "critical"
    assert finding.title.startswith("3 jobs have been locked since ")
    assert finding.title.endswith(f" by session {session.info.backend_pid} (psql, idle in transaction)")
    assert "Queues: default, mail" in finding.found
    assert "2 are not run, and the outcomes of 1 are not written" in finding.found
    assert finding.since is not None
    assert finding.link is not None
    assert finding.link.arguments == (min(ids),)
    other.close()
    paste(finding.command)
    wait_until(lambda: not found("locked-rows"))
    session.close()


@pytest.mark.core
def test_a_short_lock_and_a_lock_of_a_worker_are_no_problem(found: Found, connect: Any, settings: Any) -> None:
    job = make_job(run_after=HOUR_AGO)
    worker = connect(autocommit=False, application_name="skipqueue:0123456789ab")
    worker.execute(LOCK.format("FOR UPDATE"), [[job.pk]])
    assert found("locked-rows") == []
    worker.close()
    session = connect(autocommit=False)
    session.execute(LOCK.format("FOR UPDATE"), [[job.pk]])
    assert len(found("locked-rows")) == 1
    settings.SKIPQUEUE = {}
    assert found("locked-rows") == [], "its transaction is ten seconds old soon enough"
    assert locker_of(STORE, job.pk) is not None
    session.close()


def test_a_prepared_transaction_has_a_name_and_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        row = (7, "t", "mail", False, None, "", "", now() - timedelta(minutes=5), "", "x'y", now())
        return [row] if statement == locks.LOCKED_JOBS else []

    monkeypatch.setattr(STORE, "rows", rows)
    monkeypatch.setattr(STORE, "queues_with_jobs", lambda **_: ["mail"])
    (finding,) = locks.locked_rows(STORE)
    assert finding.title.endswith("by the prepared transaction x'y")
    assert (finding.command, finding.subject) == ("ROLLBACK PREPARED 'x''y';", "x'y")


@pytest.mark.core
def test_the_secrets_of_its_statement_are_not_shown(found: Found, connect: Any) -> None:
    job = make_job(run_after=HOUR_AGO)
    session = connect(autocommit=False)
    session.execute(LOCK.format("AND args <> '\"hunter22\"' FOR UPDATE"), [[job.pk]])
    (finding,) = found("locked-rows")
    assert "SELECT FROM skipqueue_job WHERE id = ANY ($1) AND args <> …" in finding.found
    assert "hunter22" not in finding.found
    session.close()


@pytest.mark.core
@pytest.mark.parametrize("status", ["queued", "running", "scheduled", "blocked"])
def test_the_page_of_the_job_says_who_has_locked_it(status: str, connect: Any) -> None:
    make_worker()
    job = make_job(status, run_after=HOUR_AGO)
    session = connect(autocommit=False, application_name="psql")
    session.execute(LOCK.format("FOR UPDATE"), [[job.pk]])
    sentence = why_it_waits(job, now(), Workforce.now())
    assert sentence.startswith("Its row has been locked since ")
    assert f" by session {session.info.backend_pid} (psql, idle in transaction). Until that ends, " in sentence
    session.close()
    wait_until(lambda: "locked" not in why_it_waits(job, now(), Workforce.now()))

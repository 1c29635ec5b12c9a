"""The admission of a sequence's next job while an old snapshot keeps the index entries of all its finished jobs."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_skipqueue.parts.limits import admit as limit_admission
from django_skipqueue.parts.limits.sql import LOCK_KEYS

from ...app.limit_rows import make_keyed
from ...app.sessions import connect
from ...queue.test_sql import nodes

NUMBER_OF_FINISHED_JOBS = 3_000

INSERT_BLOCKED_JOBS = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, gate, lease, run_after, enqueued_at, limit_key, limit_kind, capacity
)
SELECT 'default', 'a.task', '[]', '{}', 'blocked', 'limit', 0, now(), now(), 'k', %(kind)s, 1
FROM generate_series(1, %(count)s)
"""

# The updates of a blocked job until it is completed.
CHANGES_UNTIL_COMPLETED = (
    "status = 'queued', gate = NULL",
    "status = 'running', locked_at = now(), started_at = now()",
    "status = 'completed', locked_at = NULL, finished_at = now()",
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["sequence", "halting"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of the sequence: a sequence that goes on after a failed job, or a sequence that halts."""
    return str(request.param)


@pytest.fixture
def connection_with_finished_jobs(kind: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a table with many finished jobs of the key `k`, while another session has an old snapshot."""
    with connect() as connection, connect() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM skipqueue_job")
        connection.execute(INSERT_BLOCKED_JOBS, {"kind": kind, "count": NUMBER_OF_FINISHED_JOBS})
        for change in CHANGES_UNTIL_COMPLETED:
            connection.execute(f"UPDATE skipqueue_job SET {change} WHERE limit_key = 'k'")
        connection.execute("ANALYZE skipqueue_job")
        yield connection


def pages_read_by_each_scan(connection_with_finished_jobs: psycopg.Connection[Any], index: str) -> list[int]:
    """How many pages an admission reads in each of its scans of this index, in the order of the scans."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {limit_admission.ADMIT_BY_KEY}"
    [[[explained]]] = connection_with_finished_jobs.execute(explain).fetchall()
    scans = [node for node in nodes(explained["Plan"]) if node.get("Index Name") == f"skipqueue_job_{index}"]
    return [scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] for scan in scans if scan["Actual Loops"]]


def complete_job(connection_with_finished_jobs: psycopg.Connection[Any], id: int) -> None:
    connection_with_finished_jobs.execute(f"UPDATE skipqueue_job SET {CHANGES_UNTIL_COMPLETED[-1]} WHERE id = %s", [id])


def test_the_next_job_of_a_sequence_is_found_by_one_index_scan(
    connection_with_finished_jobs: psycopg.Connection[Any], kind: str
) -> None:
    """PostgreSQL reads the entries of the finished jobs only once, and not the index of permit holders."""
    job = make_keyed("k", "running", kind=kind)
    waiting = [make_keyed("k", kind=kind) for _ in range(2)]
    with connection_with_finished_jobs.transaction():
        complete_job(connection_with_finished_jobs, job.pk)
        connection_with_finished_jobs.execute(LOCK_KEYS, {"ids": [job.pk], "keys": []})
        assert pages_read_by_each_scan(connection_with_finished_jobs, "limit_held") == []
    for waiting_job, status in zip(waiting, ("queued", "blocked"), strict=True):
        waiting_job.refresh_from_db()
        assert waiting_job.status == status
    with connection_with_finished_jobs.transaction():
        complete_job(connection_with_finished_jobs, waiting[0].pk)
        connection_with_finished_jobs.execute(LOCK_KEYS, {"ids": [waiting[0].pk], "keys": []})
        pages_of_first_scan, pages_of_second_scan = pages_read_by_each_scan(
            connection_with_finished_jobs, "limit_waiting"
        )
    assert pages_of_second_scan < 10 < NUMBER_OF_FINISHED_JOBS / 100 < pages_of_first_scan


def test_a_session_that_has_not_ended_the_job_counts_its_permit_as_held(
    connection_with_finished_jobs: psycopg.Connection[Any], kind: str
) -> None:
    job = make_keyed("k", "running", kind=kind)
    make_keyed("k", kind=kind)
    complete_job(connection_with_finished_jobs, job.pk)
    with connection_with_finished_jobs.transaction():
        connection_with_finished_jobs.execute(LOCK_KEYS, {"ids": [job.pk], "keys": []})
        assert len(pages_read_by_each_scan(connection_with_finished_jobs, "limit_held")) == 1

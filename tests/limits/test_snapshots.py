"""A sequence under an old snapshot, which keeps the index entries of all its finished jobs."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_skipqueue.parts.limits import admit as sql
from django_skipqueue.parts.limits.sql import LOCK_KEYS

from ..app.limit_rows import make_keyed
from ..app.sessions import connect
from ..store.test_sql import nodes

FINISHED = 3_000

INSERT = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, gate, lease, run_after, enqueued_at, limit_key, limit_kind, capacity
)
SELECT 'default', 'a.task', '[]', '{}', 'blocked', 'limit', 0, now(), now(), 'k', %(kind)s, 1
FROM generate_series(1, %(count)s)
"""

STEPS = (
    "status = 'queued', gate = NULL",
    "status = 'running', locked_at = now(), started_at = now()",
    "status = 'completed', locked_at = NULL, finished_at = now()",
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["sequence", "halting"])
def kind(request: pytest.FixtureRequest) -> str:
    """The number of finished jobs of the sequence."""
    return str(request.param)


@pytest.fixture
def other(kind: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a table with many finished jobs of the key `k`, while another session has an old snapshot."""
    with connect() as connection, connect() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM skipqueue_job")
        connection.execute(INSERT, {"kind": kind, "count": FINISHED})
        for step in STEPS:
            connection.execute(f"UPDATE skipqueue_job SET {step} WHERE limit_key = 'k'")
        connection.execute("ANALYZE skipqueue_job")
        yield connection


def walks_of(other: psycopg.Connection[Any], index: str) -> list[int]:
    """How many pages an admission reads in each of its walks of this index, in the order of the walks."""
    ((plan,),) = other.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.ADMIT_BY_KEY}").fetchall()
    walks = [node for node in nodes(plan[0]["Plan"]) if node.get("Index Name") == f"skipqueue_job_{index}"]
    return [walk["Shared Hit Blocks"] + walk["Shared Read Blocks"] for walk in walks if walk["Actual Loops"]]


def end(other: psycopg.Connection[Any], id: int) -> None:
    other.execute(f"UPDATE skipqueue_job SET {STEPS[-1]} WHERE id = %s", [id])


def test_the_successor_of_a_job_is_found_by_one_walk(other: psycopg.Connection[Any], kind: str) -> None:
    """PostgreSQL reads the entries of the finished jobs only once, and no entries of jobs that held the permit."""
    job = make_keyed("k", "running", kind=kind)
    waiting = [make_keyed("k", kind=kind) for _ in range(2)]
    with other.transaction():
        end(other, job.pk)
        other.execute(LOCK_KEYS, {"ids": [job.pk], "keys": []})
        assert walks_of(other, "limit_held") == []
    for each, status in zip(waiting, ("queued", "blocked"), strict=True):
        each.refresh_from_db()
        assert each.status == status
    with other.transaction():
        end(other, waiting[0].pk)
        other.execute(LOCK_KEYS, {"ids": [waiting[0].pk], "keys": []})
        head, rest = walks_of(other, "limit_waiting")
    assert rest < 10 < FINISHED / 100 < head


def test_whoever_has_not_ended_the_job_itself_counts(other: psycopg.Connection[Any], kind: str) -> None:
    job = make_keyed("k", "running", kind=kind)
    make_keyed("k", kind=kind)
    end(other, job.pk)
    with other.transaction():
        other.execute(LOCK_KEYS, {"ids": [job.pk], "keys": []})
        assert len(walks_of(other, "limit_held")) == 1

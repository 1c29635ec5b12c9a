"""Each statement reads only the jobs of its keys, even if the statistics date from a time without blocked jobs."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_skipqueue.models.status import Status
from django_skipqueue.parts.limits import admit as limit_admission
from django_skipqueue.parts.limits import states as limit_states
from django_skipqueue.parts.limits.sql import LOCK_KEYS
from django_skipqueue.parts.rates import admit as rate_admission
from django_skipqueue.parts.rates import states as rate_states
from django_skipqueue.parts.rates.admit import LOCK_RATES

from ...app.rows import make_job
from ...app.sessions import connect
from ...queue.test_sql import nodes

# Inserts 2,000 jobs with 400 keys of a limit or, if `is_rate` is true, of a rate.
INSERT_JOBS = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, gate, lease, run_after, enqueued_at, finished_at,
    limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst
)
SELECT
    'default', 'a.task', '[]', '{}', %(status)s,
    CASE WHEN %(status)s <> 'blocked' THEN NULL WHEN %(is_rate)s THEN 'rate' ELSE 'limit' END,
    3, now(), now(), CASE WHEN %(status)s = 'completed' THEN now() END,
    CASE WHEN NOT %(is_rate)s THEN 'key ' || number %% 400 END, 'concurrency', 1,
    CASE WHEN %(is_rate)s THEN 'key ' || number %% 400 END, 1, 1
FROM generate_series(1, 2000) AS number
"""

MOST_ROWS_READ = 60
"""There are 2,000 blocked jobs with 400 keys. For two keys, a statement may read at most this number of jobs."""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def table_with_old_statistics() -> Iterator[psycopg.Connection[Any]]:
    """A connection to a table that had only finished jobs when its statistics were gathered."""
    with connect() as connection:
        connection.execute("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
        connection.execute(INSERT_JOBS, {"status": "completed", "is_rate": False})
        connection.execute("ANALYZE skipqueue_job")
        for status, is_rate in (("blocked", False), ("blocked", True), ("queued", True)):
            connection.execute(INSERT_JOBS, {"status": status, "is_rate": is_rate})
        try:
            yield connection
        finally:
            connection.execute("ALTER TABLE skipqueue_job RESET (autovacuum_enabled)")
            connection.execute("DELETE FROM skipqueue_job")
            connection.execute("ANALYZE skipqueue_job")


def jobs_read(connection: psycopg.Connection[Any], statement: str, **values: Any) -> float:
    """How many rows of jobs the statement reads, added up over the nodes of its plan."""
    cursor = psycopg.ClientCursor(connection)
    [[[explained]]] = cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values or None).fetchall()
    rows_read = 0.0
    for node in nodes(explained["Plan"]):
        if node.get("Relation Name") == "skipqueue_job":
            rows_filtered_out = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
            rows_read += (node["Actual Rows"] + rows_filtered_out) * node["Actual Loops"]
    return rows_read


def test_an_admission_by_key_reads_few_jobs(table_with_old_statistics: psycopg.Connection[Any]) -> None:
    with table_with_old_statistics.transaction(force_rollback=True):
        table_with_old_statistics.execute(LOCK_KEYS, {"ids": "{}", "keys": ["key 11", "key 12"]})
        assert jobs_read(table_with_old_statistics, limit_admission.ADMIT_BY_KEY) < MOST_ROWS_READ


def test_permit_holders_are_read_by_an_index_scan(
    table_with_old_statistics: psycopg.Connection[Any],
) -> None:
    """With a bitmap, each admission would read the rows of all jobs of a key that have ended since the last vacuum."""
    for _ in range(5):
        table_with_old_statistics.execute(INSERT_JOBS, {"status": "blocked", "is_rate": False})
    table_with_old_statistics.execute(INSERT_JOBS, {"status": "queued", "is_rate": False})
    table_with_old_statistics.execute("ANALYZE skipqueue_job")
    with table_with_old_statistics.transaction(force_rollback=True):
        table_with_old_statistics.execute(LOCK_KEYS, {"ids": "{}", "keys": [f"key {number}" for number in range(100)]})
        explain = f"EXPLAIN (FORMAT JSON) {limit_admission.ADMIT_BY_KEY}"
        [[[explained]]] = table_with_old_statistics.execute(explain).fetchall()
    node_types = {node.get("Index Name"): node["Node Type"] for node in nodes(explained["Plan"])}
    assert node_types["skipqueue_job_limit_held"] == "Index Scan"


def test_an_admission_of_a_lone_job_reads_few_jobs(table_with_old_statistics: psycopg.Connection[Any]) -> None:
    lone = make_job(status="blocked", limit_key="alone", limit_kind="concurrency", capacity=1)
    with table_with_old_statistics.transaction(force_rollback=True):
        table_with_old_statistics.execute(limit_admission.LOCK_KEY, {"key": "alone"})
        assert (
            jobs_read(table_with_old_statistics, limit_admission.ADMIT_LONE, id=lone.pk, key="alone") < MOST_ROWS_READ
        )


def test_an_admission_by_rate_reads_few_jobs(table_with_old_statistics: psycopg.Connection[Any]) -> None:
    with table_with_old_statistics.transaction(force_rollback=True):
        table_with_old_statistics.execute(LOCK_RATES, {"keys": ["key 11", "key 12"]})
        assert jobs_read(table_with_old_statistics, rate_admission.ADMIT_BY_RATE) < MOST_ROWS_READ


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (limit_admission.BLOCKED_KEYS, {"after": "", "limit": 2}),
        (rate_admission.BLOCKED_RATES, {"after": "", "limit": 2}),
        (limit_states.WAITING_KEYS, {"after": "", "limit": 2}),
        (limit_states.KEYS_NOW, {"keys": ["key 11", "key 12"], "limit": 100}),
        (rate_states.RATE_KEYS_NOW, {"keys": ["key 11", "key 12"], "limit": 100}),
    ],
    ids=["blocked keys", "blocked rates", "waiting keys", "keys now", "rates now"],
)
def test_a_statement_that_reads_keys_reads_few_jobs(
    table_with_old_statistics: psycopg.Connection[Any], statement: str, values: dict[str, Any]
) -> None:
    assert jobs_read(table_with_old_statistics, statement, **values) < MOST_ROWS_READ


def test_blocked_is_the_first_status_in_alphabetical_order() -> None:
    """The conditions of two indexes, and of the statements that read them, rely on this order of the statuses."""
    assert min(Status.values) == "blocked"

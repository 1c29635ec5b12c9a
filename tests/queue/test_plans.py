"""Each statement uses its index and keeps its limit, at several sizes of the table and with old statistics.

The cases with a million rows run only if SKIPQUEUE_MILLION is set, because filling the table takes half a minute.
"""

import json
import os
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import psycopg
import pytest

from ..app.sessions import LAST_MIGRATION, connect, schema
from .statements import STATEMENTS
from .test_sql import CASES, DEAD_WORKER, INSERT_JOBS, MODES, WITHOUT_A_PLAN, WORKER, Case, nodes

EMPTY, SOME, MANY = 0, 10_000, 1_000_000

with_a_million_rows = pytest.mark.skipif(not os.environ.get("SKIPQUEUE_MILLION"), reason="SKIPQUEUE_MILLION is not set")
SIZES_OF_TABLE_AND_STATISTICS = [
    pytest.param((EMPTY, EMPTY), id="empty"),
    pytest.param((SOME, EMPTY), id="10,000 rows, statistics of an empty table"),
    pytest.param((SOME, SOME), id="10,000"),
    pytest.param((EMPTY, SOME), id="empty, statistics of 10,000 rows"),
    pytest.param((MANY, SOME), id="1,000,000 rows, statistics of 10,000", marks=with_a_million_rows),
    pytest.param((MANY, MANY), id="1,000,000", marks=with_a_million_rows),
    pytest.param((SOME, MANY), id="10,000 rows, statistics of 1,000,000", marks=with_a_million_rows),
]

# INSERT_JOBS makes 100,000 rows; A_TENTH keeps a tenth of them, and INSERT_NINE_COPIES makes them a million.
A_TENTH = "WHERE mod(number, 10) = mod(number / 100, 10)"
INSERT_NINE_COPIES = """
INSERT INTO skipqueue_job (
    id, queue_name, task, args, kwargs, status, priority, attempts, run_after, enqueued_at, lease, locked_at, locked_by,
    finished_at, errors
)
SELECT
    id + 100000 * copy, queue_name, task, args, kwargs, status, priority, attempts, run_after, enqueued_at, lease,
    locked_at, locked_by, finished_at, errors
FROM skipqueue_job, generate_series(1, 9) AS copy
"""

INSERT_WORKERS = """
INSERT INTO skipqueue_worker (id, name, hostname, pid, queues, concurrency, heartbeat_at)
VALUES
    (%(worker)s, 'live', 'h', 1, '[]', 4, now()),
    (%(dead)s, 'dead', 'h', 2, '[]', 4, now() - interval '1 hour')
"""


class TableOfSize:
    """The tables as the migrations make them, in a separate schema, with a chosen number of jobs."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.size = EMPTY
        connection.execute("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
        connection.execute("ALTER TABLE skipqueue_job ALTER COLUMN id RESTART WITH 10000000")
        connection.execute(
            "CREATE TABLE months PARTITION OF skipqueue_archivedjob FOR VALUES FROM ('2000-1-1') TO (MAXVALUE)"
        )

    def set_sizes(self, size: int, statistics_size: int) -> None:
        """Give the table `size` rows, and the planner the statistics of a table with `statistics_size` rows."""
        self._fill(statistics_size)
        self.connection.execute("ANALYZE")
        self._fill(size)

    def _fill(self, size: int) -> None:
        if size == self.size:
            return
        self.connection.execute("TRUNCATE skipqueue_job, skipqueue_worker")
        cursor = psycopg.ClientCursor(self.connection)
        cursor.execute(INSERT_WORKERS, {"worker": WORKER, "dead": DEAD_WORKER})
        if size:
            fill = INSERT_JOBS + A_TENTH if size == SOME else INSERT_JOBS
            cursor.execute(fill, {"worker": WORKER, "dead": DEAD_WORKER})
        if size == MANY:
            self.connection.execute(INSERT_NINE_COPIES)
            self.connection.execute("VACUUM skipqueue_job")
        self.size = size


@pytest.fixture(scope="module")
def table_of_size(django_db_setup: None, django_db_blocker: Any) -> Iterator[TableOfSize]:
    with django_db_blocker.unblock(), schema("plans") as migrate, connect(options="-c search_path=plans") as connection:
        migrate(LAST_MIGRATION)
        connection.execute("SET synchronous_commit = off")
        yield TableOfSize(connection)


@pytest.fixture(scope="module", params=SIZES_OF_TABLE_AND_STATISTICS)
def table_and_size(request: pytest.FixtureRequest, table_of_size: TableOfSize) -> tuple[TableOfSize, int]:
    """The table, and its number of rows. The planner's statistics may say that it has another number of rows."""
    size, statistics_size = request.param
    table_of_size.set_sizes(size, statistics_size)
    return table_of_size, size


def most_rows_to_take(case: Case) -> int:
    """The number of rows that the statement may take: its limit, or the number of ids that it names."""
    if "limit" in case.values:
        return int(case.values["limit"])
    texts = [value for value in case.values.values() if isinstance(value, str)]
    lists = [value for value in case.values.values() if isinstance(value, list)]
    json_arrays = [text for text in texts if text[:1] == "["]
    lists += [text.splitlines() if "\n" in text else json.loads(text) for text in json_arrays]
    postgresql_arrays = [text for text in texts if text[:1] == "{"]
    lists += [text.split(",") for text in postgresql_arrays]
    return max([1, *map(len, lists)])


def explained(table_of_size: TableOfSize, case: Case, explain: Callable[..., Any]) -> list[dict[str, Any]]:
    """Run the statement, roll it back, and return the nodes of its plan."""
    with table_of_size.connection.transaction(force_rollback=True):
        ((document,),) = explain(table_of_size.connection, case, "ANALYZE, FORMAT JSON")
    return list(nodes(document["Plan"]))


def rows_read(node: dict[str, Any]) -> float:
    """How many rows of the table a plan node has read."""
    counts = [node["Actual Rows"], node.get("Rows Removed by Filter", 0), node.get("Rows Removed by Index Recheck", 0)]
    return float(sum(counts) * node["Actual Loops"])


PLANNED = [case for case in CASES if case.statement not in WITHOUT_A_PLAN]


@pytest.mark.django_db
def test_each_statement_reads_few_rows_and_changes_no_more_than_its_limit(
    table_and_size: tuple[TableOfSize, int], subtests: pytest.Subtests
) -> None:
    table_of_size, size = table_and_size
    for case, (mode, explain) in product(PLANNED, MODES.items()):
        with subtests.test(statement=case.statement, label=case.label, mode=mode):
            plan_nodes = explained(table_of_size, case, explain)
            plan_text = json.dumps(plan_nodes[0], indent=1)
            scan_nodes = [
                node
                for node in plan_nodes
                if node.get("Relation Name") == "skipqueue_job" and "Scan" in node["Node Type"]
            ]
            if size > 10 * most_rows_to_take(case):
                assert "Seq Scan" not in {node["Node Type"] for node in scan_nodes}, plan_text
            # At most ten rows are read for each taken row, and each taken row is read once more to be changed.
            most_rows_to_read = 11 * most_rows_to_take(case) + further_rows_allowed(table_of_size, case)
            assert sum(map(rows_read, scan_nodes)) <= most_rows_to_read, plan_text
            if "limit" in case.values:
                changed_counts = [node["Actual Rows"] for node in plan_nodes if node["Node Type"] == "ModifyTable"]
                assert sum(changed_counts) <= case.values["limit"], plan_text


def further_rows_allowed(table_of_size: TableOfSize, case: Case) -> int:
    """The number of further rows that may be read: some statements read the running jobs, some of them twice."""
    statements_reading_running_jobs = (
        "RECOVER",
        "RECOVER_RETURNED",
        "RELEASE_ORPHANS",
        "STILL_HOLDING",
        "PRUNE_WORKERS",
    )
    reads_running_jobs = case.statement in statements_reading_running_jobs or case.statement.startswith("CARRIED_")
    return 2 * table_of_size.size // 100 if reads_running_jobs else 0


@pytest.mark.django_db
def test_a_claim_never_returns_more_than_its_limit(
    table_and_size: tuple[TableOfSize, int], subtests: pytest.Subtests
) -> None:
    table_of_size, size = table_and_size
    case = next(case for case in CASES if case.statement == "CLAIM")
    for mode in ("auto", "force_generic_plan", "force_custom_plan"):
        with subtests.test(mode=mode), table_of_size.connection.transaction(force_rollback=True):
            table_of_size.connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
            for _ in range(7):  # it is prepared after a few executions, and its plan is kept after a few more
                rows = table_of_size.connection.execute(STATEMENTS["CLAIM"], {**case.values, "limit": 3}).fetchall()
                assert len(rows) == (3 if size else 0)

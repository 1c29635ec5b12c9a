"""Every statement, at each size of the table and with statistics of another size: by its index, and within its limit.

Among a million rows only where SKIPQUEUE_MILLION is set: to fill the table takes half a minute.
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
from .test_sql import CASES, DEAD_WORKER, FILL, MODES, PLANLESS, WORKER, Case, nodes

EMPTY, SOME, MANY = 0, 10_000, 1_000_000

many = pytest.mark.skipif(not os.environ.get("SKIPQUEUE_MILLION"), reason="SKIPQUEUE_MILLION is not set")
STATES = [
    pytest.param((EMPTY, EMPTY), id="empty"),
    pytest.param((SOME, EMPTY), id="10,000, believed none"),
    pytest.param((SOME, SOME), id="10,000"),
    pytest.param((EMPTY, SOME), id="none, believed 10,000"),
    pytest.param((MANY, SOME), id="1,000,000, believed 10,000", marks=many),
    pytest.param((MANY, MANY), id="1,000,000", marks=many),
    pytest.param((SOME, MANY), id="10,000, believed 1,000,000", marks=many),
]

# A tenth of the hundred thousand rows of FILL, and ten times as many.
A_TENTH = "WHERE mod(number, 10) = mod(number / 100, 10)"
MULTIPLY = """
INSERT INTO skipqueue_job (
    id, queue_name, task, args, kwargs, status, priority, attempts, run_after, enqueued_at, lease, locked_at, locked_by,
    finished_at, errors
)
SELECT
    id + 100000 * copy, queue_name, task, args, kwargs, status, priority, attempts, run_after, enqueued_at, lease,
    locked_at, locked_by, finished_at, errors
FROM skipqueue_job, generate_series(1, 9) AS copy
"""

WORKERS = """
INSERT INTO skipqueue_worker (id, name, hostname, pid, queues, concurrency, heartbeat_at)
VALUES
    (%(worker)s, 'live', 'h', 1, '[]', 4, now()),
    (%(dead)s, 'dead', 'h', 2, '[]', 4, now() - interval '1 hour')
"""


class Table:
    """The tables as the migrations make them, in a schema of their own, with as many jobs as asked for."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.size = EMPTY
        connection.execute("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
        connection.execute("ALTER TABLE skipqueue_job ALTER COLUMN id RESTART WITH 10000000")
        connection.execute(
            "CREATE TABLE months PARTITION OF skipqueue_archivedjob FOR VALUES FROM ('2000-1-1') TO (MAXVALUE)"
        )

    def become(self, size: int, believed: int) -> None:
        """Have `size` rows, and the statistics of a table of `believed`."""
        self._fill(believed)
        self.connection.execute("ANALYZE")
        self._fill(size)

    def _fill(self, size: int) -> None:
        if size == self.size:
            return
        self.connection.execute("TRUNCATE skipqueue_job, skipqueue_worker")
        cursor = psycopg.ClientCursor(self.connection)
        cursor.execute(WORKERS, {"worker": WORKER, "dead": DEAD_WORKER})
        if size:
            fill = FILL + A_TENTH if size == SOME else FILL
            cursor.execute(fill, {"worker": WORKER, "dead": DEAD_WORKER})
        if size == MANY:
            self.connection.execute(MULTIPLY)
            self.connection.execute("VACUUM skipqueue_job")
        self.size = size


@pytest.fixture(scope="module")
def table(django_db_setup: None, django_db_blocker: Any) -> Iterator[Table]:
    with django_db_blocker.unblock(), schema("plans") as migrate, connect(options="-c search_path=plans") as connection:
        migrate(LAST_MIGRATION)
        connection.execute("SET synchronous_commit = off")
        yield Table(connection)


@pytest.fixture(scope="module", params=STATES)
def state(request: pytest.FixtureRequest, table: Table) -> tuple[Table, int]:
    """The table, and how many rows it has; its statistics may be of another number."""
    size, believed = request.param
    table.become(size, believed)
    return table, size


def asked_for(case: Case) -> int:
    """The number of rows that the statement may take: its limit, or the number of ids that it names."""
    if "limit" in case.values:
        return int(case.values["limit"])
    texts = [value for value in case.values.values() if isinstance(value, str) and value[:1] == "["]
    lists = [value for value in case.values.values() if isinstance(value, list)]
    lists += [text.splitlines() if "\n" in text else json.loads(text) for text in texts]
    lists += [value.split(",") for value in case.values.values() if isinstance(value, str) and value[:1] == "{"]
    return max([1, *map(len, lists)])


def explained(table: Table, case: Case, explain: Callable[..., Any]) -> list[dict[str, Any]]:
    """The nodes of the plan of the statement, which is run, and taken back."""
    with table.connection.transaction(force_rollback=True):
        ((document,),) = explain(table.connection, case, "ANALYZE, FORMAT JSON")
    return list(nodes(document["Plan"]))


def rows_read(node: dict[str, Any]) -> float:
    """How many rows of the table a node has looked at."""
    read = [node["Actual Rows"], node.get("Rows Removed by Filter", 0), node.get("Rows Removed by Index Recheck", 0)]
    return float(sum(read) * node["Actual Loops"])


PLANNED = [case for case in CASES if case.statement not in PLANLESS]


@pytest.mark.django_db
def test_a_statement_reads_what_it_needs_and_takes_no_more_than_its_limit(
    state: tuple[Table, int], subtests: pytest.Subtests
) -> None:
    table, size = state
    for case, (mode, explain) in product(PLANNED, MODES.items()):
        with subtests.test(statement=case.statement, label=case.label, mode=mode):
            found = explained(table, case, explain)
            described = json.dumps(found[0], indent=1)
            scans = [
                node for node in found if node.get("Relation Name") == "skipqueue_job" and "Scan" in node["Node Type"]
            ]
            if size > 10 * asked_for(case):
                assert "Seq Scan" not in {node["Node Type"] for node in scans}, described
            # Ten looked at for each that is asked for, and each once more to change it.
            assert sum(map(rows_read, scans)) <= 11 * asked_for(case) + running(table, case), described
            if "limit" in case.values:
                changed = [node["Actual Rows"] for node in found if node["Node Type"] == "ModifyTable"]
                assert sum(changed) <= case.values["limit"], described


def running(table: Table, case: Case) -> int:
    """The number of further rows that may be read: some statements read the running jobs, some of them twice."""
    looking = ("RECOVER", "RECOVER_RETURNED", "RELEASE_ORPHANS", "STILL_HOLDING", "PRUNE_WORKERS")
    is_looking = case.statement in looking or case.statement.startswith("CARRIED_")
    return 2 * table.size // 100 if is_looking else 0


@pytest.mark.django_db
def test_a_claim_never_returns_more_than_its_limit(state: tuple[Table, int], subtests: pytest.Subtests) -> None:
    table, size = state
    case = next(case for case in CASES if case.statement == "CLAIM")
    for mode in ("auto", "force_generic_plan", "force_custom_plan"):
        with subtests.test(mode=mode), table.connection.transaction(force_rollback=True):
            table.connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
            for _ in range(7):  # a statement is prepared after a few executions, and its plan kept after a few more
                claimed = table.connection.execute(STATEMENTS["CLAIM"], {**case.values, "limit": 3}).fetchall()
                assert len(claimed) == (3 if size else 0)

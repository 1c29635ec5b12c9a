"""The statements of schedules: statements that run often use an index among 10,000 schedules."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from django_skipqueue.parts.schedules import console, entry, fire, operate

from ...app.sessions import LAST_MIGRATION, connect, schema
from ...queue.test_sql import nodes

MODULES = (entry, fire, operate, console)
SOURCES = [Path(str(module.__file__)).read_text() for module in MODULES]
STATEMENTS = {
    name: text
    for module in MODULES
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s", text)
}
FIRE_VALUES = {"digests": ["this", "that"], "skipped": [7]}
VALUES_AND_INDEXES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "DUE_SCHEDULE": (FIRE_VALUES, {"skipqueue_schedule_fire"}),
    "NEXT_FIRE": (FIRE_VALUES, {"skipqueue_schedule_fire"}),
    "IS_UNFINISHED": ({"id": 5}, {"skipqueue_job_pkey"}),
    "FIRED": (
        {"id": 5, "next": 2e9, "job_ids": [7], "is_skipped": False},
        {"skipqueue_schedule_pkey", "skipqueue_job_pkey"},
    ),
    "LOCK_SCHEDULE": ({"id": 5}, {"skipqueue_schedule_pkey"}),
    "PAUSE_SCHEDULE": ({"id": 5, "by": "anna"}, {"skipqueue_schedule_pkey"}),
    "RESUME_SCHEDULE": ({"id": 5, "next": 2e9}, {"skipqueue_schedule_pkey"}),
    "NOTE_RUN": ({"id": 5, "job_id": 7}, {"skipqueue_schedule_pkey", "skipqueue_job_pkey"}),
    "TRY_SCHEDULE_AGAIN": ({"id": 5}, {"skipqueue_schedule_pkey"}),
    "PLAN_SCHEDULE": ({"id": 5, "next": 2e9}, {"skipqueue_schedule_pkey"}),
    "NOTE_ERROR": ({"id": 5, "error": "no", "delay": 60.0}, {"skipqueue_schedule_pkey"}),
}
STATEMENTS_THAT_READ_THE_TABLE = {
    "LATE_SCHEDULES", "CLOCK_IN_SECONDS", "ADMIN_SCHEDULES", "LIMIT_KEY_LOCK", "CONFIRM", "RETIRE", "REMOVE",
    "WAITING_SCHEDULES", "BRING_BACK",
}  # fmt: skip
"""The statements that read no table, or the whole of the small table of schedules, a few times a minute."""

INSERT_SCHEDULES = """
INSERT INTO skipqueue_schedule (name, task, "interval", source, digest, fire_at, paused_at)
SELECT
    'schedule ' || number, 't', '5 minutes', CASE mod(number, 3) WHEN 0 THEN 'admin' ELSE 'code' END,
    COALESCE((ARRAY['this', 'that'])[mod(number, 3)], ''), now() + (number - 5) * interval '1 second',
    CASE WHEN mod(number, 5) = 0 THEN now() END
FROM generate_series(1, 10000) AS number
"""


@pytest.fixture(scope="module")
def table_with_10_000_schedules(django_db_setup: None, django_db_blocker: Any) -> Iterator[psycopg.Connection[Any]]:
    with (
        django_db_blocker.unblock(),
        schema("schedules") as migrate,
        connect(options="-c search_path=schedules") as connection,
    ):
        migrate(LAST_MIGRATION)
        connection.execute(INSERT_SCHEDULES)
        connection.execute(
            "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status) "
            "SELECT 'q', 't', '[]', '{}', 'queued' FROM generate_series(1, 10000)"
        )
        connection.execute("ANALYZE")
        yield connection


def test_every_statement_of_schedules_has_a_case() -> None:
    assert set(STATEMENTS) == set(VALUES_AND_INDEXES) | STATEMENTS_THAT_READ_THE_TABLE


@pytest.mark.django_db
@pytest.mark.parametrize("name", VALUES_AND_INDEXES)
def test_a_statement_about_schedules_uses_its_index(
    table_with_10_000_schedules: psycopg.Connection[Any], name: str
) -> None:
    values, indexes = VALUES_AND_INDEXES[name]
    cursor = psycopg.ClientCursor(table_with_10_000_schedules)
    row = cursor.execute(f"EXPLAIN (FORMAT JSON) {STATEMENTS[name]}", values).fetchone()
    assert row
    plan_nodes = list(nodes(row[0][0]["Plan"]))
    plan_as_json = json.dumps(row[0], indent=1)
    assert not {"Seq Scan", "Sort"} & {node["Node Type"] for node in plan_nodes}, plan_as_json
    assert {node["Index Name"] for node in plan_nodes if "Index Name" in node} == indexes, plan_as_json


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_comment_of_a_statement_names_its_caller(name: str) -> None:
    source = next(text for text in SOURCES if re.search(rf'\n{name} = (joined\(\s*)?"', text))
    before_statement, _, _ = source.partition(f"\n{name} = ")
    _, _, comment = before_statement.rpartition("\n\n")
    caller = re.match(r"# Sent by (?:the rule )?`?([\w-]+)", comment)
    assert caller, comment
    assert any(f"def {caller[1]}(" in text or f'"{caller[1]}"' in text for text in SOURCES)

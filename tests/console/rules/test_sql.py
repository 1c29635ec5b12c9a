"""The rules' statements on the job table use their indexes among 100,000 rows; other statements read only catalogs."""

import inspect
import json
import re
from typing import Any

import psycopg
import pytest

from django_skipqueue.console.metrics import catalogue
from django_skipqueue.console.rules import jobs_and_workers, locks, rule, server, tables
from django_skipqueue.parts.limits import console as limits
from django_skipqueue.parts.unique import console as unique_keys

from ...queue.statements import FIRST_WORD
from ...queue.test_sql import busy_table, nodes  # noqa: F401 (a fixture)

MODULES_WITH_RULES = (rule, jobs_and_workers, locks, server, tables, catalogue, limits, unique_keys)
STATEMENTS = {
    name: text
    for module in MODULES_WITH_RULES
    for name, text in vars(module).items()
    if name.isupper() and name[0] != "_" and isinstance(text, str) and re.match(FIRST_WORD, text)
}
# The values of each statement's parameters, and the indexes of the job table that the statement must use.
VALUES_AND_INDEXES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "IS_OVERDUE": ({}, {"admit"}),
    "WAITING_TASKS": ({"queue_names": ["mail", "default", "reports", "backlog"]}, {"claim", "admit"}),
    "LONG_JOBS": ({"seconds": 60.0}, {"recover"}),
    "ORPHANED_JOBS": ({"seconds": 60.0}, {"recover"}),
    "SLOT_HOLDERS": ({"seconds": 60.0}, {"recover"}),
    "OLDEST_WAITING": ({"seconds": 300.0, "timeout": 60.0}, {"claim"}),
    "LOCKED_JOBS": ({"queue_names": ["mail", "default"], "seconds": 10.0}, {"admit", "claim", "recover"}),
    "LOCKED_JOB": ({"id": 50_000, "seconds": 0.0}, {"pkey"}),
    "FREE_JOBS": ({"ids": [50_000, 92_000]}, {"pkey"}),
    "LONG_HOLDERS": ({"seconds": 60.0}, {"recover"}),
    "STUCK_KEYS": ({"seconds": 60.0}, {"admit", "blocked", "recover", "claim"}),
}


def test_every_statement_on_the_job_table_has_its_expected_indexes() -> None:
    assert {name for name, text in STATEMENTS.items() if "skipqueue_job" in text} == set(VALUES_AND_INDEXES)
    assert set(VALUES_AND_INDEXES) <= {*vars(jobs_and_workers), *vars(locks), *vars(limits), *vars(unique_keys)}


@pytest.mark.django_db
def test_each_statement_on_the_job_table_uses_the_expected_indexes(
    busy_table: psycopg.Connection[Any],  # noqa: F811
    subtests: pytest.Subtests,
) -> None:
    for name, (values, indexes) in VALUES_AND_INDEXES.items():
        with subtests.test(name):
            require_indexes(busy_table, STATEMENTS[name], values, indexes)


def require_indexes(
    busy_table: psycopg.Connection[Any],  # noqa: F811
    statement: str,
    values: dict[str, Any],
    indexes: set[str],
) -> None:
    """Check that the statement reads the job table only by these indexes, all of them, and sorts few rows."""
    plan_row = psycopg.ClientCursor(busy_table).execute(f"EXPLAIN (FORMAT JSON) {statement}", values).fetchone()
    assert plan_row
    plan_nodes = list(nodes(plan_row[0][0]["Plan"]))
    plan_text = json.dumps(plan_row[0], indent=1)
    tables_read_whole = {node["Relation Name"] for node in plan_nodes if node["Node Type"] == "Seq Scan"}
    assert "skipqueue_job" not in tables_read_whole, plan_text
    used_indexes = {node["Index Name"] for node in plan_nodes if node.get("Index Name", "").startswith("skipqueue_job")}
    assert used_indexes == {f"skipqueue_job_{index}" for index in indexes}, plan_text
    assert not [node for node in plan_nodes if node["Node Type"] == "Sort" and node["Plan Rows"] > 5_000], plan_text


def test_each_statement_has_a_limit_and_only_reads(subtests: pytest.Subtests) -> None:
    """Only `FREE_JOBS` locks rows, as a claim does. Its transaction is rolled back."""
    for name, text in STATEMENTS.items():
        text = text.replace("FOR NO KEY UPDATE SKIP LOCKED", "") if name == "FREE_JOBS" else text
        with subtests.test(name):
            assert re.search(r"\bLIMIT \d+\s*$", text) or "FROM" not in text
            assert not re.search(r"\b(INSERT|UPDATE|DELETE|ALTER|FOR SHARE)\b", text)


def test_the_comment_above_a_statement_names_the_rule_that_uses_it(subtests: pytest.Subtests) -> None:
    for name in STATEMENTS:
        with subtests.test(name):
            (text,) = [text for module in MODULES_WITH_RULES if f"\n{name} = " in (text := inspect.getsource(module))]
            comment = text.split(f"\n{name} = ")[0].rsplit("\n\n", 1)[1]
            assert re.match(r"# Sent by (the rule )?`?[\w-]+`?(, [\w-]+)*\. ", comment), comment

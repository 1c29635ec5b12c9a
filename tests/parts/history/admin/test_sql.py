"""The statements of the dashboard use their indexes among many roll-ups."""

import re
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.parts.history import dashboard, task_page

from ....queue.statements import FIRST_WORD

PKEY, PRUNE = "skipqueue_rollup_pkey", "skipqueue_rollup_prune"
SINCE = {"span": 60, "since": 1_780_000_000 - 3_600, "queue_name": "", "limit": 5}
# By the name of a statement: its parameters, and the indexes that its plan uses.
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "TIMELINE": (SINCE | {"queue_names": ["q1", "q2"], "task": "t1"}, {PKEY}),
    "DEEPEST_QUEUES": (SINCE, {PKEY}),
    "DEPTHS": (SINCE | {"width": 60, "queue_names": ["q1", "q2", ""]}, {PKEY}),
    "RECOVERED_IN_A_DAY": (SINCE, {PKEY}),
    "QUEUES_OF_TASK": ({"task": "t1", "limit": 20}, {PKEY}),
    "BY_DEPLOYMENT": ({"queue_names": ["q1"], "task": "t1", "limit": 10}, {PKEY}),
    "SLOWEST_TASKS": (SINCE, {PKEY, PRUNE}),
}
STATEMENTS = {
    name: text
    for module in (dashboard, task_page)
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and re.match(FIRST_WORD, text)
}
INSERT_ROLL_UPS = """
INSERT INTO skipqueue_rollup (span, queue_name, task, starts_at, completed, ran, ran_seconds, depth)
SELECT span, queue_name, task, to_timestamp(1780000000 - number * GREATEST(span, 1)), 1, ARRAY[1, 2], 3, 4
FROM
    (VALUES (0, 1), (60, 300), (3600, 300)) AS spans (span, rows),
    generate_series(0, rows - 1) AS number,
    (
        SELECT 'q' || mod(pair, 10) AS queue_name, CASE WHEN pair < 10 THEN '' ELSE 't' || pair END AS task
        FROM generate_series(0, 59) AS pair
        UNION ALL SELECT '', ''
    ) AS pairs
"""

pytestmark = pytest.mark.django_db


@pytest.fixture
def _many_roll_ups() -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT_ROLL_UPS)
        cursor.execute("ANALYZE skipqueue_rollup")


@pytest.mark.usefixtures("_many_roll_ups")
@pytest.mark.parametrize("name", CASES)
def test_a_statement_reads_by_its_indexes_alone(name: str) -> None:
    values, indexes = CASES[name]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {STATEMENTS[name]}", values)
        plan = "\n".join(row for (row,) in cursor.fetchall())
    assert "Seq Scan on skipqueue_rollup" not in plan, plan
    assert set(re.findall(r"skipqueue_rollup_(?:pkey|prune)", plan)) == indexes, plan


def test_every_statement_of_the_dashboard_is_among_the_cases() -> None:
    assert set(CASES) == set(STATEMENTS)

"""`pipelined`: PostgreSQL runs the statements and commits, while the caller already does other work."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from django_skipqueue.queue.parameters import Statement, as_text_array, fetched, pipelined

from ..app.waiting import wait_until

OpenSession = Callable[..., psycopg.Connection[Any]]

TAKE_LOCK: Statement = ("SELECT pg_advisory_xact_lock(4)", {})
TRY_LOCK = "SELECT pg_try_advisory_xact_lock(4)"


@pytest.fixture
def pipeline_connection(connect: OpenSession) -> psycopg.Connection[Any]:
    """The connection of the pipeline. A statement that waits for too long fails."""
    connection = connect()
    connection.execute("SET lock_timeout = '5s'")
    return connection


def test_the_caller_goes_on_while_the_statements_run(
    connect: OpenSession, pipeline_connection: psycopg.Connection[Any]
) -> None:
    with connect(autocommit=False) as other_connection:
        other_connection.execute(
            "SELECT pg_advisory_xact_lock(4)"
        )  # the pipeline's statement waits for this transaction
        _, rows = pipelined(pipeline_connection, [TAKE_LOCK, ("SELECT 1", {})], other_connection.commit)
    assert fetched(rows) == [(1,)]


def test_the_statements_are_committed_while_the_caller_goes_on(
    connect: OpenSession, pipeline_connection: psycopg.Connection[Any]
) -> None:
    other_connection = connect()
    lock_attempts: list[bool] = []

    def is_committed() -> bool:
        lock_attempts.append(other_connection.execute(TRY_LOCK).fetchone() == (True,))
        return lock_attempts[-1]

    pipelined(pipeline_connection, [TAKE_LOCK, TAKE_LOCK], lambda: wait_until(is_committed))
    assert lock_attempts[-1]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_is_raised_and_the_connection_can_be_used_again(
    pipeline_connection: psycopg.Connection[Any], failing: int
) -> None:
    pipeline_connection.execute("CREATE TEMPORARY TABLE test_table (number integer)")
    statements: list[Statement | None] = [
        ("INSERT INTO test_table VALUES (%(number)s)", {"number": number}) for number in range(3)
    ]
    statements[failing] = ("SELECT 1 / %(number)s", {"number": 0})
    with pytest.raises(psycopg.errors.DivisionByZero):
        pipelined(pipeline_connection, statements, lambda: None)
    assert pipeline_connection.execute("SELECT count(*) FROM test_table").fetchone() == (0,)
    assert pipeline_connection.info.pipeline_status == psycopg.pq.PipelineStatus.OFF
    assert [fetched(rows) for rows in pipelined(pipeline_connection, [TAKE_LOCK, ("SELECT 2", {})], None)][1] == [(2,)]


def test_a_text_array_is_read_with_any_characters_in_its_texts(pipeline_connection: psycopg.Connection[Any]) -> None:
    texts = ["a", "", None, "NULL", "{x,y}", 'say "a"', "back\\slash\\", "it's", "%s %%", "a\nb\tc", " ", "é🐘", "\\N"]
    assert pipeline_connection.execute("SELECT %s::text[]", [as_text_array(texts)]).fetchone() == (texts,)
    assert as_text_array(()) == "{}"

"""`pipelined`: PostgreSQL runs the statements and commits while the caller goes on."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from django_skipqueue.queue.parameters import Statement, as_text_array, fetched, pipelined

from ..app.waiting import wait_until

Connect = Callable[..., psycopg.Connection[Any]]

LOCK: Statement = ("SELECT pg_advisory_xact_lock(4)", {})
IS_FREE = "SELECT pg_try_advisory_xact_lock(4)"


@pytest.fixture
def ours(connect: Connect) -> psycopg.Connection[Any]:
    """The connection of the pipeline. A statement that waits for too long fails."""
    connection = connect()
    connection.execute("SET lock_timeout = '5s'")
    return connection


def test_the_caller_goes_on_while_the_statements_run(connect: Connect, ours: psycopg.Connection[Any]) -> None:
    with connect(autocommit=False) as other:
        other.execute("SELECT pg_advisory_xact_lock(4)")  # the statement of the pipeline ends after this transaction
        _, rows = pipelined(ours, [LOCK, ("SELECT 1", {})], other.commit)
    assert fetched(rows) == [(1,)]


def test_the_statements_are_committed_while_the_caller_goes_on(connect: Connect, ours: psycopg.Connection[Any]) -> None:
    other = connect()
    free: list[bool] = []

    def is_committed() -> bool:
        free.append(other.execute(IS_FREE).fetchone() == (True,))
        return free[-1]

    pipelined(ours, [LOCK, LOCK], lambda: wait_until(is_committed))
    assert free[-1]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_is_raised_and_the_connection_can_be_used_again(ours: psycopg.Connection[Any], failing: int) -> None:
    ours.execute("CREATE TEMPORARY TABLE noted (number integer)")
    statements: list[Statement | None] = [("INSERT INTO noted VALUES (%(number)s)", {"number": n}) for n in range(3)]
    statements[failing] = ("SELECT 1 / %(number)s", {"number": 0})
    with pytest.raises(psycopg.errors.DivisionByZero):
        pipelined(ours, statements, lambda: None)
    assert ours.execute("SELECT count(*) FROM noted").fetchone() == (0,)
    assert ours.info.pipeline_status == psycopg.pq.PipelineStatus.OFF
    assert [fetched(rows) for rows in pipelined(ours, [LOCK, ("SELECT 2", {})], None)][1] == [(2,)]


def test_a_text_array_has_its_texts_whatever_is_in_them(ours: psycopg.Connection[Any]) -> None:
    texts = ["a", "", None, "NULL", "{x,y}", 'say "a"', "back\\slash\\", "it's", "%s %%", "a\nb\tc", " ", "é🐘", "\\N"]
    assert ours.execute("SELECT %s::text[]", [as_text_array(texts)]).fetchone() == (texts,)
    assert as_text_array(()) == "{}"

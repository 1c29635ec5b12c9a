"""How many rows travel in one statement: as one JSON document there, and what to do when PostgreSQL refuses it."""

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import psycopg
from django.db import DatabaseError

from ..outcomes import Outcome, Settlement, error_entry, summary
from ..records import Call

Rows = list[tuple[Any, ...]]
Statement = tuple[str, dict[str, Any]]


def calls_as_json(calls: Sequence[Call]) -> str:
    """The document that ENQUEUE_MANY reads; arguments are JSON already and go in as they are."""
    documents = (
        f'{{"args":{call.args},"kwargs":{call.kwargs},"unique_key":{json.dumps(call.unique_key)}}}' for call in calls
    )
    return f"[{','.join(documents)}]"


def outcomes_as_json(settlements: Sequence[Settlement]) -> str:
    """The document that SETTLE reads."""
    return f"[{','.join(outcome.as_json(job_id, lease) for job_id, lease, outcome in settlements)}]"


def leases_as_json(leases: Iterable[tuple[int, int]]) -> str:
    """The document that RELEASE reads."""
    return json.dumps([{"id": job_id, "lease": lease} for job_id, lease in sorted(leases)])


def in_lock_order(settlements: Iterable[Settlement]) -> list[Settlement]:
    """By id, so that two batches over the same jobs wait for each other and never deadlock."""
    return sorted(settlements, key=itemgetter(0))


def pipelined(
    connection: psycopg.Connection[Any], settle: Statement | None, claim: Statement | None
) -> tuple[Rows, Rows]:
    """Run both in one round trip and in one implicit transaction; the rows of each."""
    cursors = [psycopg.Cursor(connection) if statement else None for statement in (settle, claim)]
    with connection.pipeline():
        for cursor, statement in zip(cursors, (settle, claim), strict=True):
            if cursor and statement:
                cursor.execute(*statement)
    settled, claimed = (cursor.fetchall() if cursor else [] for cursor in cursors)
    return settled, claimed


def is_refused(error: DatabaseError) -> bool:
    """Whether PostgreSQL refused the values (SQLSTATE classes 22, data, and 54, limits), not the statement."""
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return state[:2] in ("22", "54")


def unstorable(settlement: Settlement, error: DatabaseError) -> Settlement:
    """The same lease with an outcome that can surely be written."""
    attempt = (settlement.outcome.error or {}).get("attempt", 0)
    entry = error_entry(error, attempt=attempt, worker="", duration_ms=0.0)
    return settlement._replace(outcome=Outcome("failed", last_error=summary(error), error=entry))

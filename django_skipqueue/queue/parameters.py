"""The parameters and results of statements, several statements in one round trip, and what PostgreSQL refuses."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from itertools import repeat
from operator import add, attrgetter, itemgetter
from typing import Any, NamedTuple

import psycopg
from django.db import DatabaseError

from ..exceptions import InvalidOption
from ..values.codec import shorten
from ..values.outcomes import COMPLETED, Outcome, Settlement, error_entry, summary
from ..values.records import QUEUE_HEAD, ClaimedJob, EncodedCall, JobSpec, LeaseRef, Noted, QueuePosition
from ..values.tracebacks import stand_in
from .fragments import CALL_COLUMNS, CALL_KEYS, SPEC_COLUMNS

Rows = list[tuple[Any, ...]]
Cursor = psycopg.Cursor[tuple[Any, ...]]
Statement = tuple[str, dict[str, Any]]

BATCH_ROWS = 1_000
"""The default batch size of `admit`, `recover` and `prune`, and the batch size of the verbs of query sets."""

QUEUE_COLUMN = ClaimedJob._fields.index("queue_name")
"""The position of the queue in a claimed row."""

OPERATOR_NAME_LIMIT = 200
"""Characters of the name of an operator that are kept."""


_NO_VALUES = dict.fromkeys((*SPEC_COLUMNS, *CALL_COLUMNS))


def insert_values(spec: JobSpec) -> dict[str, Any]:
    """The parameters of the INSERTs. A timedelta in `run_after` becomes `delay`, in seconds from now."""
    values = {**_NO_VALUES, **spec._asdict(), **spec.columns, "held": True if spec.after else None, "delay": 0.0}
    if isinstance(spec.run_after, timedelta):
        values |= {"run_after": None, "delay": spec.run_after.total_seconds()}
    return values


def call_values(call: EncodedCall) -> dict[str, Any]:
    """The parameters of INSERT_JOB that depend on the call."""
    return {**call.columns, "args": call.args, "kwargs": call.kwargs}


def calls_as_values(calls: Sequence[EncodedCall]) -> dict[str, Any]:
    """The parameters of INSERT_CALLS that depend on calls: a line of JSON for each, and keys if any call has one."""
    values: dict[str, Any] = {
        "args": "\n".join([call.args for call in calls]),
        "kwargs": "\n".join([call.kwargs for call in calls]),
    }
    with_columns = [call.columns for call in calls if call.columns]
    for key, of_key in CALL_KEYS.items():
        first = next((columns for columns in with_columns if key in columns), None)
        values[f"{key}s"] = as_text_array([call.columns.get(key) for call in calls] if first else ())
        values |= {name: first and first.get(name) for name in of_key}
    return values


def as_array(numbers: Iterable[object]) -> str:
    """The numbers as the text of a PostgreSQL array. psycopg takes ten times as long to adapt a list."""
    return f"{{{','.join(map(str, numbers))}}}"


def as_text_array(texts: Iterable[str | None]) -> str:
    """The texts as the text of a PostgreSQL array: the counterpart of `as_array`."""
    quoted = ["NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts]
    return f"{{{','.join(quoted)}}}"


def _as_array(numbers: Iterable[int | None]) -> str:
    """As `as_array`, in half the time, but only for `int` and `None`."""
    return "{" + repr([*numbers])[1:-1].replace("None", "NULL") + "}"


def _ages(moments: Sequence[float | None], now: float) -> str:
    """The microseconds from each moment until `now`, as an array."""
    return _as_array([None if moment is None else int((now - moment) * 1e6) for moment in moments])


def settlements_as_values(settlements: Sequence[Settlement]) -> dict[str, Any]:
    """The parameters of SETTLE: an array for each column; only ids, leases and times if all are `COMPLETED`."""
    ids, leases, outcomes, started, ended = zip(*settlements, strict=True) if settlements else ((), (), (), (), ())
    now = time.monotonic()
    described = () if all(outcome is COMPLETED for outcome in outcomes) else outcomes
    return {
        "ids": _as_array(ids),
        "leases": _as_array(leases),
        "started": _ages(started, now),
        "ended": _ages(ended, now),
        "statuses": [outcome.status for outcome in described],
        "delays": [float(outcome.delay) for outcome in described],
        "refunds": [outcome.refund for outcome in described],
        "results": [outcome.result for outcome in described],
        "last_errors": [outcome.last_error for outcome in described],
        "errors": [outcome.error and json.dumps(outcome.error) for outcome in described],
        "unknown": [outcome.is_unknown for outcome in described],
        "notes": [outcome.notes for outcome in described],
    }


def notes_as_values(notes: Iterable[Noted]) -> dict[str, Any]:
    """The parameters of NOTE_ATTEMPTS, in lock order."""
    ordered, now = sorted(notes), time.monotonic()
    return {
        **leases_as_values((noted.job_id, noted.lease) for noted in ordered),
        "started": _ages([noted.started for noted in ordered], now),
        "notes": [noted.notes for noted in ordered],
    }


def claim_values(
    queue_names: Sequence[str], *, after: Mapping[str, QueuePosition], limit: int, worker_id: str
) -> dict[str, Any]:
    if isinstance(queue_names, str):
        raise TypeError(f"queue_names must be a list of names, not the str {queue_names!r}: say [{queue_names!r}].")
    return {**positions_as_values(queue_names, after), "limit": limit, "worker_id": worker_id}


def positions_as_values(queue_names: Sequence[str], after: Mapping[str, QueuePosition]) -> dict[str, Any]:
    """Each queue with the position to search from; a queue that is not in `after` is searched from its front."""
    starts = [after.get(name, QUEUE_HEAD) for name in queue_names]
    return {
        "queue_names": list(queue_names),
        "ranks": [start.rank for start in starts],
        "run_afters": [start.run_after for start in starts],
        "ids": [start.id for start in starts],
    }


def noted(by: str, reason: str) -> dict[str, str]:
    """Who did something, and why, as a statement of an operator records it. Raises `InvalidOption` for another type."""
    for name, text in (("by", by), ("reason", reason)):
        if not isinstance(text, str):
            raise InvalidOption(f"{name} must be a str, not {text!r}.")
    return {"by": shorten(by, OPERATOR_NAME_LIMIT), "reason": shorten(reason)}


def leases_as_values(refs: Iterable[LeaseRef]) -> dict[str, Any]:
    """The parameters of RELEASE, LOCKED_ROWS, LOST_LEASES and APPEND_CANCELLED_ERRORS, in lock order."""
    ordered = sorted(refs)
    return {"ids": as_array([job_id for job_id, _ in ordered]), "leases": as_array([lease for _, lease in ordered])}


def in_lock_order(settlements: Iterable[Settlement]) -> list[Settlement]:
    """Sort by id, so that two batches with the same jobs wait for each other and never deadlock."""
    return sorted(settlements, key=itemgetter(0))


def in_claim_order(jobs: Iterable[ClaimedJob], queue_names: Sequence[str]) -> list[ClaimedJob]:
    """Sort by queue, in the listed order, then by priority and time. Sorts are stable: the last one wins."""
    ordered = sorted(jobs, key=attrgetter("run_after", "id"))
    ordered.sort(key=attrgetter("priority"), reverse=True)
    if len(queue_names) > 1:
        index = {name: number for number, name in enumerate(queue_names)}
        ordered.sort(key=lambda job: index[job.queue_name])
    return ordered


class Admitted(NamedTuple):
    """What the statements LOCK_KEYS and ADMIT_BY_KEY, or CHOOSE_BY_KEY, have returned."""

    counts: Mapping[str, int]
    """The number of admitted jobs, by queue."""
    missed: list[str]
    """The keys that another transaction had locked. That transaction may not have seen the caller's rows."""
    later: frozenset[str] = frozenset()
    """The keys of the next gate, at which jobs that have passed this gate wait now."""

    @classmethod
    def decode(cls, locked: Rows | Cursor, admitted: Rows | Cursor) -> "Admitted":
        rows = fetched(admitted)
        return cls(
            {queue_name: number for queue_name, number, *_ in rows if number},
            [key for missed, _ in fetched(locked) for key in missed or ()],
            frozenset(key for _, _, later, *_ in rows for key in later or ()),
        )


@dataclass(frozen=True)
class ExchangeResult:
    """The rows that a settle and a claim returned. Decode them once; the next exchange can be sent before that."""

    settled_rows: Rows | Cursor
    claimed_rows: Rows | Cursor
    queue_names: Sequence[str]
    sent: float
    """When the claim was sent, in monotonic seconds."""
    refused: Mapping[LeaseRef, Outcome] = field(default_factory=dict)
    """The outcomes that were written in place of outcomes that PostgreSQL refused."""
    between: Sequence[Rows | Cursor] = ()
    """The rows of each statement between the settle and the claim."""

    def settled(self) -> dict[LeaseRef, int | None]:
        """The valid leases, whose outcomes are now written; each with the batch that a part asks for, if any."""
        return {(id, lease): asked for id, lease, asked in fetched(self.settled_rows)}

    def claimed(self) -> list[ClaimedJob]:
        return in_claim_order(self.jobs(self.claimed_rows), self.queue_names)

    def jobs(self, rows: Rows | Cursor) -> Iterator[ClaimedJob]:
        """The jobs of these rows of the exchange, which have the columns of CLAIM."""
        made: Callable[[tuple[Any, ...]], ClaimedJob] = partial(tuple.__new__, ClaimedJob)  # half the time of `_make`
        return map(made, map(add, fetched(rows), repeat((self.sent,))))

    def count_claimed(self) -> int:
        return len(self.claimed_rows) if isinstance(self.claimed_rows, list) else self.claimed_rows.rowcount

    def claimed_by_queue(self) -> Counter[str]:
        rows = self.claimed_rows
        if isinstance(rows, list):
            return Counter(row[QUEUE_COLUMN] for row in rows)
        raw = rows.pgresult
        names = [raw.get_value(row, QUEUE_COLUMN) for row in range(raw.ntuples)] if raw else []
        return Counter(name.decode() for name in names if name)


def pipelined(
    connection: psycopg.Connection[Any],
    statements: Sequence[Statement | None],
    meanwhile: Callable[[], object] | None,
) -> list[Rows | Cursor]:
    """Run the statements in one round trip and one implicit transaction. Returns the rows of each.

    PostgreSQL commits as soon as it has run the statements. `meanwhile` is called while PostgreSQL runs them, and not
    at all if a statement fails while it is being sent.
    """
    is_lone = meanwhile is None and sum(statement is not None for statement in statements) <= 1
    results: list[Rows | Cursor]
    with nullcontext() if is_lone else connection.pipeline() as pipeline:  # costs more than a small statement
        lean = [statement and (unindented(statement[0]), statement[1]) for statement in statements]
        results = [psycopg.Cursor(connection).execute(*statement) if statement else [] for statement in lean]
        if pipeline:
            _end_transaction(connection, pipeline)
        if meanwhile:
            meanwhile()
    return results


@cache
def unindented(statement: str) -> str:
    """The statement without the indentation of its lines.

    psycopg parses a statement of more than 4,096 characters each time that it sends it.
    """
    return "\n".join(line.strip() for line in statement.splitlines())


def _end_transaction(connection: psycopg.Connection[Any], pipeline: psycopg.Pipeline) -> None:
    """Have PostgreSQL commit as soon as it has run the statements: without a Sync no timeout of the server ends them.

    `pipeline.sync()` sends the Sync as well, but waits until the statements are run. This function does not wait: it
    sends the message, and leaves a place for its result, which the end of the pipeline reads.
    """
    connection.pgconn.pipeline_sync()
    pipeline.result_queue.append(None)
    connection.pgconn.flush()


def fetched(rows: Rows | Cursor) -> Rows:
    return rows if isinstance(rows, list) else rows.fetchall()


def is_refused(error: DatabaseError) -> bool:
    """Whether PostgreSQL or psycopg refused the values of a statement.

    The first two characters of the SQLSTATE say so: 22 is data, 23 a CHECK constraint, 54 a limit.
    """
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    return state[:2] in ("22", "23", "54") if state else isinstance(cause, psycopg.DataError)


def without_detail(error: DatabaseError) -> Exception:
    """The error of a refusal without PostgreSQL's DETAIL, which quotes the row with the secrets in its arguments."""
    primary = getattr(getattr(error.__cause__, "diag", None), "message_primary", None)
    return stand_in(error, primary or str(error))


def storable_failure(settlement: Settlement, error: Exception) -> Settlement:
    """The settlement with its outcome replaced by a failure that PostgreSQL can store."""
    attempt = (settlement.outcome.error or {}).get("attempt", 0)
    entry = error_entry(error, attempt=attempt, worker="", duration_ms=settlement.duration_ms)
    return settlement._replace(outcome=Outcome("failed", last_error=summary(error), error=entry))

"""Make the parameters of statements, decode their results, and send several statements in one round trip."""

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
"""The position of the queue's name in a claimed row."""

OPERATOR_NAME_LIMIT = 200
"""How many characters of an operator's name are stored."""


_NO_VALUES = dict.fromkeys((*SPEC_COLUMNS, *CALL_COLUMNS))


def insert_values(spec: JobSpec) -> dict[str, Any]:
    """The parameters of the INSERT statements. A timedelta in `run_after` becomes `delay`, in seconds from now."""
    values = {**_NO_VALUES, **spec._asdict(), **spec.columns, "held": True if spec.after else None, "delay": 0.0}
    if isinstance(spec.run_after, timedelta):
        values |= {"run_after": None, "delay": spec.run_after.total_seconds()}
    return values


def call_values(call: EncodedCall) -> dict[str, Any]:
    """The parameters of INSERT_JOB that depend on the call."""
    return {**call.columns, "args": call.args, "kwargs": call.kwargs}


def calls_as_values(calls: Sequence[EncodedCall]) -> dict[str, Any]:
    """The parameters of INSERT_CALLS that depend on the calls: one line of JSON for each call, and the calls' keys."""
    values: dict[str, Any] = {
        "args": "\n".join([call.args for call in calls]),
        "kwargs": "\n".join([call.kwargs for call in calls]),
    }
    columns_of_calls = [call.columns for call in calls if call.columns]
    for key, further_columns in CALL_KEYS.items():
        first_with_key = next((columns for columns in columns_of_calls if key in columns), None)
        values[f"{key}s"] = as_text_array([call.columns.get(key) for call in calls] if first_with_key else ())
        values |= {name: first_with_key and first_with_key.get(name) for name in further_columns}
    return values


def as_array(numbers: Iterable[object]) -> str:
    """Format numbers as a PostgreSQL array. This takes a tenth of the time that psycopg needs to adapt a list."""
    return f"{{{','.join(map(str, numbers))}}}"


def as_text_array(texts: Iterable[str | None]) -> str:
    """Format strings as a PostgreSQL array; `None` becomes NULL."""
    quoted = ["NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts]
    return f"{{{','.join(quoted)}}}"


def _as_array(numbers: Iterable[int | None]) -> str:
    """Format numbers as a PostgreSQL array, in half the time of `as_array`, but only `int` and `None`."""
    return "{" + repr([*numbers])[1:-1].replace("None", "NULL") + "}"


def _ages(moments: Sequence[float | None], now: float) -> str:
    """The microseconds from each of these times until `now`, formatted as a PostgreSQL array."""
    return _as_array([None if moment is None else int((now - moment) * 1e6) for moment in moments])


def settlements_as_values(settlements: Sequence[Settlement]) -> dict[str, Any]:
    """The parameters of SETTLE: an array for each column. If all outcomes are `COMPLETED`, most arrays are empty."""
    ids, leases, outcomes, started, ended = zip(*settlements, strict=True) if settlements else ((), (), (), (), ())
    now = time.monotonic()
    # PostgreSQL fills up the empty arrays with NULL, which stands for a plain completion.
    sent_outcomes = () if all(outcome is COMPLETED for outcome in outcomes) else outcomes
    return {
        "ids": _as_array(ids),
        "leases": _as_array(leases),
        "started": _ages(started, now),
        "ended": _ages(ended, now),
        "statuses": [outcome.status for outcome in sent_outcomes],
        "delays": [float(outcome.delay) for outcome in sent_outcomes],
        "refunds": [outcome.refund for outcome in sent_outcomes],
        "results": [outcome.result for outcome in sent_outcomes],
        "last_errors": [outcome.last_error for outcome in sent_outcomes],
        "errors": [outcome.error and json.dumps(outcome.error) for outcome in sent_outcomes],
        "unknown": [outcome.is_unknown for outcome in sent_outcomes],
        "notes": [outcome.notes for outcome in sent_outcomes],
    }


def notes_as_values(notes: Iterable[Noted]) -> dict[str, Any]:
    """The parameters of NOTE_ATTEMPTS, sorted by job id, so that all statements lock rows in the same order."""
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
    """Parameters with the position in each queue after which to search, by default the front of the queue."""
    starts = [after.get(name, QUEUE_HEAD) for name in queue_names]
    return {
        "queue_names": list(queue_names),
        "ranks": [start.rank for start in starts],
        "run_afters": [start.run_after for start in starts],
        "ids": [start.id for start in starts],
    }


def noted(by: str, reason: str) -> dict[str, str]:
    """The parameters that say who did an operation, and why. Raises `InvalidOption` if a value is not a string."""
    for name, text in (("by", by), ("reason", reason)):
        if not isinstance(text, str):
            raise InvalidOption(f"{name} must be a str, not {text!r}.")
    return {"by": shorten(by, OPERATOR_NAME_LIMIT), "reason": shorten(reason)}


def leases_as_values(refs: Iterable[LeaseRef]) -> dict[str, Any]:
    """Parameters with job ids and leases, sorted by job id, so that all statements lock rows in the same order."""
    ordered = sorted(refs)
    return {"ids": as_array([job_id for job_id, _ in ordered]), "leases": as_array([lease for _, lease in ordered])}


def in_lock_order(settlements: Iterable[Settlement]) -> list[Settlement]:
    """Sort by job id, so that two statements which write the same jobs never deadlock."""
    return sorted(settlements, key=itemgetter(0))


def in_claim_order(jobs: Iterable[ClaimedJob], queue_names: Sequence[str]) -> list[ClaimedJob]:
    """Sort jobs by queue in the listed order, then by priority, then by due time.

    Python's sort is stable, so the least important criterion is sorted first.
    """
    ordered = sorted(jobs, key=attrgetter("run_after", "id"))
    ordered.sort(key=attrgetter("priority"), reverse=True)
    if len(queue_names) > 1:
        position = {name: index for index, name in enumerate(queue_names)}
        ordered.sort(key=lambda job: position[job.queue_name])
    return ordered


class Admitted(NamedTuple):
    """The result of admitting jobs by key: of the statements LOCK_KEYS and ADMIT_BY_KEY, or of CHOOSE_BY_KEY."""

    counts: Mapping[str, int]
    """The number of admitted jobs, by queue."""
    missed: list[str]
    """The keys that another transaction had locked, so that their jobs were not admitted."""
    later: frozenset[str] = frozenset()
    """The keys of jobs that have passed this gate, and now wait at the next gate."""

    @classmethod
    def decode(cls, locked: Rows | Cursor, admitted: Rows | Cursor) -> "Admitted":
        rows = fetched(admitted)
        return cls(
            counts={queue_name: count for queue_name, count, *_ in rows if count},
            missed=[key for missed_keys, _ in fetched(locked) for key in missed_keys or ()],
            later=frozenset(key for _, _, later_keys, *_ in rows for key in later_keys or ()),
        )


@dataclass(frozen=True)
class ExchangeResult:
    """The rows that a worker's round trip returned: of its settle and its claim.

    The rows can be decoded only once, but also after the next round trip was sent.
    """

    settled_rows: Rows | Cursor
    claimed_rows: Rows | Cursor
    queue_names: Sequence[str]
    sent: float
    """When the claim was sent, by this process's monotonic clock."""
    refused: Mapping[LeaseRef, Outcome] = field(default_factory=dict)
    """For outcomes that PostgreSQL refused: the outcomes that were written instead."""
    between: Sequence[Rows | Cursor] = ()
    """The rows of each statement that parts sent between the settle and the claim."""

    def settled(self) -> dict[LeaseRef, int | None]:
        """The leases whose outcomes were written; each with its batch id, if the part for batches asks for it."""
        return {(id, lease): batch_id for id, lease, batch_id in fetched(self.settled_rows)}

    def claimed(self) -> list[ClaimedJob]:
        return in_claim_order(self.jobs(self.claimed_rows), self.queue_names)

    def jobs(self, rows: Rows | Cursor) -> Iterator[ClaimedJob]:
        """Make a job of each row. The rows have the columns of CLAIM; the time of the claim is added to each."""
        as_job: Callable[[tuple[Any, ...]], ClaimedJob] = partial(tuple.__new__, ClaimedJob)  # half the time of `_make`
        rows_with_time = map(add, fetched(rows), repeat((self.sent,)))
        return map(as_job, rows_with_time)

    def count_claimed(self) -> int:
        return len(self.claimed_rows) if isinstance(self.claimed_rows, list) else self.claimed_rows.rowcount

    def claimed_by_queue(self) -> Counter[str]:
        rows = self.claimed_rows
        if isinstance(rows, list):
            return Counter(row[QUEUE_COLUMN] for row in rows)
        result = rows.pgresult
        encoded_names = [result.get_value(row, QUEUE_COLUMN) for row in range(result.ntuples)] if result else []
        return Counter(name.decode() for name in encoded_names if name)


def pipelined(
    connection: psycopg.Connection[Any],
    statements: Sequence[Statement | None],
    meanwhile: Callable[[], object] | None,
) -> list[Rows | Cursor]:
    """Run several statements in one round trip and one implicit transaction. Returns the rows of each statement.

    PostgreSQL commits as soon as it has run the statements. `meanwhile` is called while PostgreSQL runs the statements.
    It is not called if a statement already fails while it is being sent.
    """
    is_single = meanwhile is None and sum(statement is not None for statement in statements) <= 1
    results: list[Rows | Cursor]
    # A single statement needs no pipeline, which would cost more than a small statement.
    with nullcontext() if is_single else connection.pipeline() as pipeline:
        shortened = [statement and (unindented(statement[0]), statement[1]) for statement in statements]
        results = [psycopg.Cursor(connection).execute(*statement) if statement else [] for statement in shortened]
        if pipeline:
            _end_transaction(connection, pipeline)
        if meanwhile:
            meanwhile()
    return results


@cache
def unindented(statement: str) -> str:
    """Remove the indentation from a statement's lines, to make it shorter.

    psycopg caches only statements of at most 4,096 characters, and parses a longer statement each time.
    """
    return "\n".join(line.strip() for line in statement.splitlines())


def _end_transaction(connection: psycopg.Connection[Any], pipeline: psycopg.Pipeline) -> None:
    """Send a Sync message, so that PostgreSQL commits as soon as it has run the statements.

    Without the Sync, no server timeout would end the statements. `pipeline.sync()` also sends a Sync, but then waits
    until the statements have run. This function does not wait. It adds an entry for the Sync to the pipeline's queue of
    results, and the end of the pipeline reads the result.
    """
    connection.pgconn.pipeline_sync()
    pipeline.result_queue.append(None)
    connection.pgconn.flush()


def fetched(rows: Rows | Cursor) -> Rows:
    return rows if isinstance(rows, list) else rows.fetchall()


def is_refused(error: DatabaseError) -> bool:
    """Whether PostgreSQL or psycopg refused the values of a statement.

    The first two characters of the SQLSTATE tell this: 22 means bad data, 23 a CHECK constraint, 54 a limit.
    """
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    return state[:2] in ("22", "23", "54") if state else isinstance(cause, psycopg.DataError)


def without_detail(error: DatabaseError) -> Exception:
    """Copy an error without PostgreSQL's DETAIL, which quotes the row, and so the secrets in the job's arguments."""
    message = getattr(getattr(error.__cause__, "diag", None), "message_primary", None)
    return stand_in(error, message or str(error))


def storable_failure(settlement: Settlement, error: Exception) -> Settlement:
    """Return a copy of the settlement, with a failure that PostgreSQL can store as its outcome."""
    attempt = (settlement.outcome.error or {}).get("attempt", 0)
    entry = error_entry(error, attempt=attempt, worker="", duration_ms=settlement.duration_ms)
    return settlement._replace(outcome=Outcome("failed", last_error=summary(error), error=entry))

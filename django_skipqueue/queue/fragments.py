"""SQL fragments that several statements share, and `joined`, which builds the statements from pieces at import.

A gate keeps a job waiting while the gate's condition is true. A new job gets the status of the first gate at which it
must wait, or else `queued`. If the job is blocked, its column `gate` has the name of that gate. A gate admits only jobs
whose column `gate` has its name.

The gates are checked when a job is enqueued or retried, and when the previous gate has admitted the job. Release and
recovery do not check the gates, because their jobs have already passed the gates. But a job whose worker died may have
to wait again at the last gate that it has passed, as `Condition.returns` says. A job waits at the time gate if it was
postponed, if its worker crashed, or if two of its workers in a row died.

Each part describes its columns of the job table in its `columns.py`. The statements include these columns.

An operation by a person, such as a retry, is recorded in the column `operations` of the job, which keeps the newest 50.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from ..parts.installed import from_each_part
from ..values.part import Condition, PartColumns
from ..values.records import INSERTED_FIELDS
from ..values.statuses import FINISHED_STATUSES, UNFINISHED_STATUSES

FINISHED_LIST, UNFINISHED_LIST = (
    ", ".join(f"'{status}'" for status in group) for group in (FINISHED_STATUSES, UNFINISHED_STATUSES)
)
"""Lists for SQL's `IN (…)`. They are literals, because with parameters a generic plan could not use a partial index."""

FINISHED_ROWS, UNFINISHED_ROWS = (
    ", ".join(f"('{status}')" for status in group) for group in (FINISHED_STATUSES, reversed(UNFINISHED_STATUSES))
)
"""The rows of a `VALUES` list. `running` is first, because a search for any unfinished job most likely ends there."""

COLUMNS_OF_PARTS: tuple[PartColumns, ...] = from_each_part("columns", "COLUMNS")
"""The columns of all parts. A job passes the gates of the parts in this order."""

_GATES_OF_PARTS = tuple(part.gate for part in COLUMNS_OF_PARTS if part.gate)

CONDITIONS = (
    Condition(gate="time", status="scheduled", holds="{run_after} > statement_timestamp()"),
    Condition(gate="held", holds="{held}::boolean"),
    *_GATES_OF_PARTS,
)
"""The conditions of all gates, in the order in which a job passes the gates."""

KEY_COLUMNS = {condition.gate: condition.key for condition in CONDITIONS if condition.key}
"""For each gate that admits jobs by key, the name of the job column with the key."""

# SQL for the key of a job at the gate where the job waits. NULL if the job waits at no gate, or at a gate without keys.
_KEYS_BY_GATE = " ".join(f"WHEN '{gate}' THEN job.{key}" for gate, key in KEY_COLUMNS.items())
GATE_KEY = f"CASE job.gate {_KEYS_BY_GATE} END" if KEY_COLUMNS else "NULL::text"

PIECES = {
    "settled": "NULL::bigint",
    "retry_named": "",
    "retry_ids": "(SELECT %(ids)s::bigint[])::bigint[]",
    "retry_order": "id",
    "retry_started_at": "job.started_at",
    "retry_spread": "random()",
    "discard_also": "",
    "unless_held": "",
    "unless_needed": "",
    "pruned": "",
    "after_prune": "",
    "kept_records": "NULL::jsonb",
    "waits_for_parent": "false",
}
"""The placeholders in the core's statements that a part may fill with SQL, each with its default.

settled: a bigint that SETTLE returns in its third column.
retry_named: a CTE for RETRY.
retry_ids, retry_order: the array with the ids of the jobs to retry, and the order in which the jobs are written.
retry_started_at: the new value of the jobs' `started_at`.
retry_spread: at which point of the time given by `over` a job is due, as a number from 0 to 1.
discard_also: `OR` and a condition, which selects further jobs that DISCARD changes.
unless_held: the end of an INSERT, which makes it insert no job if another job holds the unique key.
unless_needed: `AND` and a condition for the jobs that are pruned; a column of the job is `job.id`.
pruned, after_prune: further columns that PRUNE returns, and further CTEs, which read these columns from `pruned`.
kept_records: the rows that a part has of a pruned job, as jsonb, if the pruned job is kept elsewhere. The job's id is
`pruned.id`.
waits_for_parent: the condition of a job `child` that cannot begin before the unfinished job `parent` is finished.
"""

SHARED_PLACES = {"after_prune"}
"""The placeholders that several parts may fill. Their pieces are joined, in the order of the parts."""


def fill(pieces: dict[str, str], parts: Iterable[PartColumns]) -> None:
    """Fill placeholders with SQL of parts. Raises `ValueError` for a placeholder that is unknown or filled twice."""
    filled: set[str] = set()
    for part in parts:
        if rejected := part.pieces.keys() - (pieces.keys() - filled):
            raise ValueError(f"No statement has these placeholders, or another part fills them: {sorted(rejected)}.")
        shared = {name: pieces[name] + piece for name, piece in part.pieces.items() if name in SHARED_PLACES}
        pieces |= {**part.pieces, **shared}
        filled |= part.pieces.keys() - SHARED_PLACES


fill(PIECES, COLUMNS_OF_PARTS)

PLACEHOLDER = re.compile(r"{([a-z]\w*)}")
"""Matches a placeholder in a statement, such as `{status}`, but not the braces in `'{}'::text[]` or `[0-9a-f]{12}`."""


def placeholders(statement: str) -> set[str]:
    """The names of the placeholders in a statement."""
    return set(PLACEHOLDER.findall(statement))


def joined(statement: str, **pieces: str) -> str:
    """Replace the placeholders of a statement by pieces of SQL. Called once for each statement, at import.

    Placeholders within a piece are not replaced. Raises `ValueError` for a placeholder without a piece, and for a piece
    without a placeholder.
    """
    if odd := placeholders(statement) ^ pieces.keys():
        raise ValueError(f"Either the statement lacks a placeholder, or the call a piece: {sorted(odd)}.\n{statement}")
    return PLACEHOLDER.sub(lambda placeholder: pieces[placeholder[1]], statement)


def entering(*, column: str, past: str | None = None, **columns: str) -> dict[str, str]:
    """Return SQL expressions for the status and the gate of a job that is enqueued, retried or admitted by a gate.

    The result is for the placeholders `status` and `gate`.
    column: how the statement refers to a column of the job, such as `job.{}`.
    past: the gate that the job has just passed. Only the gates after this gate are checked.
    columns: expressions for single columns, to which `column` does not apply.
    """
    names = [condition.gate for condition in CONDITIONS]
    status_clauses, gate_clauses = [], []
    for condition in CONDITIONS[names.index(past) + 1 :] if past else CONDITIONS:
        expressions = {name: columns.get(name, column.format(name)) for name in placeholders(condition.holds)}
        holds = joined(condition.holds, **expressions)
        status_clauses.append(f"WHEN {holds} THEN '{condition.status}'")
        gate_clauses.append(
            f"WHEN {holds} THEN " + (f"'{condition.gate}'" if condition.status == "blocked" else "NULL")
        )
    if not gate_clauses:
        return {"status": "'queued'", "gate": "NULL"}
    return {
        "status": " ".join(["CASE", *status_clauses, "ELSE 'queued' END"]),
        "gate": " ".join(["CASE", *gate_clauses, "END"]),
    }


def key_after(gate: str) -> str:
    """Return the key column of the next gate that has keys, or NULL if there is no such gate after this one."""
    gates = list(KEY_COLUMNS)
    later_gates = gates[gates.index(gate) + 1 :]
    return KEY_COLUMNS[later_gates[0]] if later_gates else "NULL::text"


def returning(*, charged: bool) -> str:
    """Return the SQL expression for the gate at which a job waits again after its worker died or released it.

    The expression is NULL if the job goes back to its queue at once.
    charged: whether the interrupted attempt counts.
    """
    return _by_last_gate(
        lambda condition: "NULL" if condition.keeps_released and not charged else f"'{condition.gate}'"
    )


def _by_last_gate(value: Callable[[Condition], str]) -> str:
    """SQL for the last gate at which a job waits again after its worker died. Its result is the gate's `value`."""
    clauses = [
        f"WHEN {joined(condition.returns, **{name: f'job.{name}' for name in placeholders(condition.returns)})} "
        f"THEN {value(condition)}"
        for condition in reversed(CONDITIONS)
        if condition.returns
    ]
    return " ".join(["CASE", *clauses, "END"]) if clauses else "NULL::text"


SPEC_COLUMNS = {name: type for part in COLUMNS_OF_PARTS for name, type in part.of_spec.items()}
"""The columns of parts whose values all jobs of one enqueue share, each with its SQL type."""

WAITING_BY = SPEC_COLUMNS.keys() & {name for condition in CONDITIONS for name in placeholders(condition.holds)}
"""The columns of `SPEC_COLUMNS` that appear in the condition of a gate."""

CALL_KEYS = {part.key: part.of_key for part in COLUMNS_OF_PARTS if part.key}
"""The key columns of calls, each with the further columns, and their SQL types, that a call with this key has."""

CALL_COLUMNS = {name: type for key, further in CALL_KEYS.items() for name, type in {key: "text", **further}.items()}
"""The columns of parts whose values may differ between the calls of one enqueue, each with its SQL type."""

COPIED_COLUMNS = {name for part in COLUMNS_OF_PARTS if part.are_copied for name in part.of_spec}
"""The columns of `SPEC_COLUMNS` that a copy of a job has."""

_FURTHER_NAMES = "".join(f", {name}" for name in (*INSERTED_FIELDS, *SPEC_COLUMNS, *CALL_COLUMNS))

# The beginning of an INSERT, with all columns that are written when a job is inserted.
_INSERT_INTO = f"""INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, gate, run_after, held{_FURTHER_NAMES})"""

DUE_AT = "COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))"
"""The SQL expression for the due time of a job: a given time, or a delay in seconds from now."""

_VALUES_OF_SPEC = [f"%({name})s::{type}" for name, type in (INSERTED_FIELDS | SPEC_COLUMNS).items()]
_FURTHER_VALUES = "".join(f", {value}" for value in (*_VALUES_OF_SPEC, *(f"%({name})s" for name in CALL_COLUMNS)))

# Inserts one job. A job that is not due yet gets the status scheduled.
# This form takes half the time of a SELECT that computes the due time only once, with RETURNING *.
INSERT_JOB = joined(
    """
{into}
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb,
    {status},
    {gate},
    {due},
    %(held)s{values}
)
""",
    into=_INSERT_INTO,
    due=DUE_AT,
    values=_FURTHER_VALUES,
    **entering(column="%({})s", run_after=DUE_AT),
)

CALL_EXPRESSIONS = {
    name: f"call.{name}" if name == key else f"CASE WHEN call.{key} IS NOT NULL THEN %({name})s::{type} END"
    for key, further in CALL_KEYS.items()
    for name, type in {key: "text", **further}.items()
}
"""The SQL expression for each column of `CALL_COLUMNS`. If a call has no key, its further columns are NULL."""

_KEY_VALUES = "".join(f", unnest(%({key}s)s::text[])" for key in CALL_KEYS)
_KEY_NAMES = "".join(f", {key}" for key in CALL_KEYS)

# The calls as rows, in their order. The parameters `args` and `kwargs` have one line for each call, because encoded
# JSON contains no line break. A parameter such as `limit_keys` has an element for each call, or no elements: then the
# column is NULL.
CALLS = joined(
    """ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)){values}
    ) AS call (args, kwargs{keys})""",
    values=_KEY_VALUES,
    keys=_KEY_NAMES,
)

_VALUES_OF_CALLS = "".join(f", {value}" for value in (*_VALUES_OF_SPEC, *CALL_EXPRESSIONS.values()))

KEY_EXPRESSIONS = {key: f"call.{key}" for key in KEY_COLUMNS.values()}

# Inserts a job for each call, in the order of the calls.
INSERT_CALLS = joined(
    """{into}
SELECT
    %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
    {status},
    {gate},
    due.run_after, %(held)s::boolean{values}
FROM
    {calls},
    (SELECT {due} AS run_after) AS due""",
    into=_INSERT_INTO,
    due=DUE_AT,
    calls=CALLS,
    values=_VALUES_OF_CALLS,
    **entering(column="%({})s", run_after="due.run_after", **KEY_EXPRESSIONS),
)


# The end of a claim statement. It starts the jobs in the CTE `chosen`; `place` is the ctid of a job's row.
_TO_RUN = """UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp(){further_columns}
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
{claimed}"""

# SQL for whether a job holds a permit of any gate, and for the key of the last gate at which it would wait again.
_HOLDS_PERMIT = " OR ".join(f"job.{gate.key} IS NOT NULL" for gate in CONDITIONS if gate.grants_permits) or "false"
_PERMIT_KEY = _by_last_gate(lambda gate: "NULL" if gate.keeps_released else f"job.{gate.key}")

# Returns the columns of `ClaimedJob`. `claim_seconds` is the time from the statement's start to this row's update.
CLAIMED = joined(
    """RETURNING
    job.id,
    job.lease,
    job.task,
    job.queue_name,
    job.args::text,
    job.kwargs::text,
    job.attempts AS attempt,
    job.max_attempts,
    job.priority,
    date_part('epoch', job.run_after) AS run_after,
    date_part('epoch', job.locked_at) AS locked_at,
    job.metadata::text,
    job.timeout,
    date_part('epoch', job.unknown_since) AS unknown_since,
    {holds_permit} AS holds_permit,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds,
    jsonb_array_length(job.deaths) >= 2 AS is_suspect,
    {permit_key} AS permit_key""",
    holds_permit=_HOLDS_PERMIT,
    permit_key=_PERMIT_KEY,
)


def to_run(*, further_columns: str = "") -> str:
    """Return the end of a claim statement: it updates the jobs in `chosen`.

    further_columns: SQL that sets further columns. It begins with a comma.
    """
    return joined(_TO_RUN, further_columns=further_columns, claimed=CLAIMED)


# The column `operations` with a new record at its end. If it has 50 records, the oldest record (at 0) is dropped first.
_OPERATIONS_AND_RECORD = """COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', '{verb}', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts{further_keys}
    )"""


def recording(verb: str, *, further_keys: Mapping[str, str] | None = None) -> str:
    """Return the SQL expression that appends a record of this verb to the job's column `operations`.

    further_keys: keys that only the records of this verb have, each with an SQL expression for its value.
    """
    further_pairs = "".join(f", '{key}', {value}" for key, value in (further_keys or {}).items())
    return joined(_OPERATIONS_AND_RECORD, verb=verb, further_keys=further_pairs)

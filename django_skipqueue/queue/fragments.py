"""The shared fragments of the statements, and the function that joins statements from pieces, once, at import.

A job enters with the status of the first gate whose condition holds, else as `queued`. The column `gate` of a blocked
job has the name of the gate at which it waits; the gate admits the jobs with its name.

Invariant: the gates are checked for every job that enters from outside: an enqueue, a retry, a manual retry, and a job
that the previous gate admits. Release and recovery do not check the gates, because their jobs have passed them. But a
job that has lost its worker may wait again at the last gate that it has passed, as `Condition.returns` says. A job
whose worker crashed, or whose workers died twice in a row, waits at the time gate, and so does a postponed job.

The columns of a part are in its `columns.py`. The statements are joined from the core's text and from these columns.

An operator's verb is recorded in the row of the job that it changes: `operations` holds the newest 50.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from ..parts.installed import given
from ..values.part import Condition, PartColumns
from ..values.records import INSERTED_FIELDS
from ..values.statuses import FINISHED_STATUSES, UNFINISHED_STATUSES

FINISHED_LIST, UNFINISHED_LIST = (
    ", ".join(f"'{status}'" for status in group) for group in (FINISHED_STATUSES, UNFINISHED_STATUSES)
)
"""The literals within `IN (…)`: with a parameter, a generic plan could not use a partial index."""

FINISHED_ROWS, UNFINISHED_ROWS = (
    ", ".join(f"('{status}')" for status in group) for group in (FINISHED_STATUSES, reversed(UNFINISHED_STATUSES))
)
"""The rows of `VALUES`; `running` first, since a search for any unfinished job of many most likely ends there."""

COLUMNS_OF_PARTS: tuple[PartColumns, ...] = given("columns", "COLUMNS")
"""The columns of parts. A job meets the gates of parts in this order."""

_GATES_OF_PARTS = tuple(part.gate for part in COLUMNS_OF_PARTS if part.gate)

CONDITIONS = (
    Condition(gate="time", status="scheduled", holds="{run_after} > statement_timestamp()"),
    Condition(gate="held", holds="{held}::boolean"),
    *_GATES_OF_PARTS,
)
"""In the order in which a job meets the gates."""

KEY_COLUMNS = {condition.gate: condition.key for condition in CONDITIONS if condition.key}
"""The column with the key of a job, by the name of the gate that admits by it."""

# If a job waits at a gate, the key by which this gate admits jobs. NULL without such a gate, or if it has no keys.
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
    "pruned": "",
    "after_prune": "",
}
"""The places in statements of the core that a part may fill, each with its default.

settled: the number in the third column of SETTLE, a bigint.
retry_named, retry_ids, retry_order: a CTE of RETRY, the array of the jobs to retry, and the order in which the jobs are
written. retry_started_at: the jobs' `started_at`. retry_spread: a job's place within the time of the retry, from 0 to
1.
discard_also: `OR` and a condition for further jobs that DISCARD changes.
unless_held: the end of an INSERT that inserts no job whose unique key is held.
pruned, after_prune: further columns that PRUNE returns, and further CTEs, which read them from `pruned`.
"""


def fill(pieces: dict[str, str], parts: Iterable[PartColumns]) -> None:
    """Put the pieces of parts into the places. Raises `ValueError` for a place that is unknown or filled twice."""
    filled: set[str] = set()
    for part in parts:
        if wrong := part.pieces.keys() - (pieces.keys() - filled):
            raise ValueError(f"No statement has these places, or another part fills them: {sorted(wrong)}.")
        pieces |= part.pieces
        filled |= part.pieces.keys()


fill(PIECES, COLUMNS_OF_PARTS)

PLACE = re.compile(r"{([a-z]\w*)}")
"""A place in a statement, such as `{status}`. The braces of `'{}'::text[]` and of `[0-9a-f]{12}` are no places."""


def places(statement: str) -> set[str]:
    """The names of the places of a statement."""
    return set(PLACE.findall(statement))


def joined(statement: str, **pieces: str) -> str:
    """Put pieces into the places of a statement. Called once for each statement, at import.

    A piece is put in as it is: a place of a piece stays. Raises `ValueError` for a place that has no piece, and for a
    piece that has no place.
    """
    if unequal := places(statement) ^ pieces.keys():
        raise ValueError(f"Either the statement has no place, or the call no piece: {sorted(unequal)}.\n{statement}")
    return PLACE.sub(lambda place: pieces[place[1]], statement)


def entering(*, column: str, past: str | None = None, **columns: str) -> dict[str, str]:
    """Return the expressions for the status and the gate of a job that enters, as pieces `status` and `gate`.

    column: the spelling of a job's column in the statement, such as `job.{}`; `columns`: exceptions to it.
    past: the gate that the job has just passed; only the gates after it are checked.
    """
    names = [condition.gate for condition in CONDITIONS]
    statuses, gates = [], []
    for condition in CONDITIONS[names.index(past) + 1 :] if past else CONDITIONS:
        spelt = {name: columns.get(name, column.format(name)) for name in places(condition.holds)}
        holds = joined(condition.holds, **spelt)
        statuses.append(f"WHEN {holds} THEN '{condition.status}'")
        gates.append(f"WHEN {holds} THEN " + (f"'{condition.gate}'" if condition.status == "blocked" else "NULL"))
    if not gates:
        return {"status": "'queued'", "gate": "NULL"}
    return {"status": " ".join(["CASE", *statuses, "ELSE 'queued' END"]), "gate": " ".join(["CASE", *gates, "END"])}


def key_after(gate: str) -> str:
    """Return the key column of the next gate with keys after this gate, or NULL if no such gate follows."""
    gates = list(KEY_COLUMNS)
    later = gates[gates.index(gate) + 1 :]
    return KEY_COLUMNS[later[0]] if later else "NULL::text"


def returning(*, charged: bool) -> str:
    """Return the expression for the gate at which a job that has lost its worker waits again. NULL: it is queued.

    charged: whether the attempt is charged. After a job has passed a gate, it does not wait at an earlier gate.
    """
    return _of_lost(lambda condition: "NULL" if condition.keeps_released and not charged else f"'{condition.gate}'")


def _of_lost(value: Callable[[Condition], str]) -> str:
    """The expression for a job that has lost its worker: the value of the last gate at which the job waits again."""
    clauses = [
        f"WHEN {joined(condition.returns, **{name: f'job.{name}' for name in places(condition.returns)})} "
        f"THEN {value(condition)}"
        for condition in reversed(CONDITIONS)
        if condition.returns
    ]
    return " ".join(["CASE", *clauses, "END"]) if clauses else "NULL::text"


SPEC_COLUMNS = {name: type for part in COLUMNS_OF_PARTS for name, type in part.of_spec.items()}
"""The columns of parts that all jobs of an enqueue share, each with its type."""

WAITING_BY = SPEC_COLUMNS.keys() & {name for condition in CONDITIONS for name in places(condition.holds)}
"""The columns of `SPEC_COLUMNS` by which a gate keeps jobs waiting."""

CALL_KEYS = {part.key: part.of_key for part in COLUMNS_OF_PARTS if part.key}
"""The key columns of calls, each with the further columns, and their types, of a call with this key."""

CALL_COLUMNS = {name: type for key, of_key in CALL_KEYS.items() for name, type in {key: "text", **of_key}.items()}
"""The columns of parts that calls have: see `EncodedCall.columns`."""

COPIED_COLUMNS = {name for part in COLUMNS_OF_PARTS if part.are_copied for name in part.of_spec}
"""The columns of `SPEC_COLUMNS` that a copy of a job has."""

_NAMES = "".join(f", {name}" for name in (*INSERTED_FIELDS, *SPEC_COLUMNS, *CALL_COLUMNS))

# The columns of a job that are written when it is inserted.
_INSERT_INTO = f"""INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, gate, run_after, held{_NAMES})"""

DUE_AT = "COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))"
"""The due time of a job. A delay counts from now."""

_VALUES_OF_SPEC = [f"%({name})s::{type}" for name, type in (INSERTED_FIELDS | SPEC_COLUMNS).items()]
_VALUES = "".join(f", {value}" for value in (*_VALUES_OF_SPEC, *(f"%({name})s" for name in CALL_COLUMNS)))

# One job. A job that is not due yet enters as scheduled.
# VALUES and few returned columns take half the time of a SELECT that computes the due time once, with RETURNING *.
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
    values=_VALUES,
    **entering(column="%({})s", run_after=DUE_AT),
)

CALL_EXPRESSIONS = {
    name: f"call.{name}" if name == key else f"CASE WHEN call.{key} IS NOT NULL THEN %({name})s::{type} END"
    for key, of_key in CALL_KEYS.items()
    for name, type in {key: "text", **of_key}.items()
}
"""The expression for each column of `CALL_COLUMNS`. The columns beside a key are NULL in a call without this key."""

_KEY_VALUES = "".join(f", unnest(%({key}s)s::text[])" for key in CALL_KEYS)
_KEY_NAMES = "".join(f", {key}" for key in CALL_KEYS)

# Each call, in the order of the calls. `args` and `kwargs` have a line for each call: encoded JSON contains no line
# break. A parameter such as `limit_keys` has an element for each call, or none at all: NULL.
CALLS = joined(
    """ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)){values}
    ) AS call (args, kwargs{keys})""",
    values=_KEY_VALUES,
    keys=_KEY_NAMES,
)

_VALUES_OF_CALLS = "".join(f", {value}" for value in (*_VALUES_OF_SPEC, *CALL_EXPRESSIONS.values()))

KEY_EXPRESSIONS = {key: f"call.{key}" for key in KEY_COLUMNS.values()}

# A job for each call, in the order of the calls.
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


_TO_RUN = """UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp(){more}
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
{claimed}"""

_HOLDS_PERMIT = " OR ".join(f"job.{gate.key} IS NOT NULL" for gate in CONDITIONS if gate.grants_permits) or "false"
_PERMIT_KEY = _of_lost(lambda gate: "NULL" if gate.keeps_released else f"job.{gate.key}")

# The columns of `ClaimedJob`. `claim_seconds` is the time from the start of the statement until this row was updated.
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


def to_run(*, more: str = "") -> str:
    """Return the end of a statement that has chosen jobs. `more`: other columns that it sets."""
    return joined(_TO_RUN, more=more, claimed=CLAIMED)


_APPENDED = """COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', '{verb}', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts{more}
    )"""


def recording(verb: str, *, more: Mapping[str, str] | None = None) -> str:
    """Return the expression for the job's operations with this verb at the end.

    more: further keys of the entry, each with its value in SQL.
    """
    pairs = "".join(f", '{key}', {value}" for key, value in (more or {}).items())
    return joined(_APPENDED, verb=verb, more=pairs)

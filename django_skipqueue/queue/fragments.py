"""The shared fragments of the statements, and the function that joins statements from pieces, once, at import.

A job enters with the status of the first gate whose condition holds, else as `queued`. The column `gate` of a blocked
job has the name of the gate at which it waits; the gate admits the jobs with its name.

Invariant: the gates are checked for every job that enters from outside: an enqueue, a retry, a manual retry, and a job
that the previous gate admits. Release and recovery do not check the gates, because their jobs have passed them. But a
recovered job that has a rate waits for it again. One whose worker crashed, or whose workers died twice in a row, waits
at the time gate, and so does a postponed job.

An operator's verb is recorded in the row of the job that it changes: `operations` holds the newest 50.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple


class Condition(NamedTuple):
    """The half of a gate that is SQL. The other half, which admits jobs, is a `queue.gates.Gate`."""

    gate: str
    """The gate's name."""
    status: Literal["scheduled", "blocked"]
    """The job's status while it waits at this gate."""
    holds: str
    """The SQL condition under which the gate keeps a job waiting. Columns are written in braces: `{run_after}`."""
    key: str = ""
    """The column with the key by which the gate admits; empty: it has no keys."""


CONDITIONS = (
    Condition("time", "scheduled", "{run_after} > statement_timestamp()"),
    Condition("held", "blocked", "{held}::boolean"),
    Condition("limit", "blocked", "{limit_key}::text IS NOT NULL", key="limit_key"),
    Condition("rate", "blocked", "{rate_key}::text IS NOT NULL", key="rate_key"),
)
"""In the order in which a job meets the gates."""

KEY_COLUMNS = {condition.gate: condition.key for condition in CONDITIONS if condition.key}
"""The column with the key of a job, by the name of the gate that admits by it."""

# The key by which the gate admits at which a job waits. NULL: it waits at no gate, or at one without keys.
KEY = " ".join(["CASE job.gate", *(f"WHEN '{gate}' THEN job.{key}" for gate, key in KEY_COLUMNS.items()), "END"])

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


# The columns of a job that are written when it is inserted.
_INSERT_INTO = """INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, gate, priority, max_attempts, run_after, unique_key, unique_seconds,
    timeout, retention, metadata, batch_id, held, limit_key, limit_kind, capacity, rate_key, rate_interval,
    rate_burst)"""

_DUE = "COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))"

# One job. A delay counts from now. A job that is not due yet enters as scheduled.
# VALUES and few returned columns take half the time of a SELECT that computes the due time once, with RETURNING *.
INSERT_JOB = joined(
    """
{into}
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb,
    {status},
    {gate},
    %(priority)s, %(max_attempts)s,
    {due},
    %(unique_key)s, %(unique_seconds)s, %(timeout)s, %(retention)s::jsonb, %(metadata)s::jsonb,
    %(batch_id)s, %(held)s, %(limit_key)s, %(limit_kind)s, %(capacity)s,
    %(rate_key)s, %(rate_interval)s, %(rate_burst)s
)
""",
    into=_INSERT_INTO,
    due=_DUE,
    **entering(column="%({})s", run_after=_DUE),
)

# A job for each call, in the order of the calls. `args` and `kwargs` have a line for each call: encoded JSON contains
# no line break. `unique_keys`, `limit_keys` and `rate_keys` have an element for each call, or none at all: NULL.
INSERT_CALLS = joined(
    """{into}
SELECT
    %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
    {status},
    {gate},
    %(priority)s, %(max_attempts)s, due.run_after, call.unique_key, %(unique_seconds)s::float8, %(timeout)s,
    %(retention)s::jsonb, %(metadata)s::jsonb, %(batch_id)s::bigint, %(held)s::boolean,
    call.limit_key, CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END,
    CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END,
    call.rate_key, CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END,
    CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[]),
        unnest(%(limit_keys)s::text[]), unnest(%(rate_keys)s::text[])
    ) AS call (args, kwargs, unique_key, limit_key, rate_key),
    (SELECT {due} AS run_after) AS due""",
    into=_INSERT_INTO,
    due=_DUE,
    **entering(column="%({})s", run_after="due.run_after", limit_key="call.limit_key", rate_key="call.rate_key"),
)

# Whether a job holds its unique key: the predicate of the unique index.
HOLDS_KEY = """unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))"""

# The end of an INSERT that inserts no job whose unique key is held.
UNLESS_HELD = f"ON CONFLICT (unique_key) WHERE {HOLDS_KEY} DO NOTHING"


_TO_RUN = """UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp(){more}
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
{claimed}"""

# The columns of `ClaimedJob`. `claim_seconds` is the time from the start of the statement until this row was updated.
CLAIMED = """RETURNING
    job.id,
    job.lease,
    job.task,
    job.queue_name,
    job.args::text AS args,
    job.kwargs::text AS kwargs,
    job.attempts AS attempt,
    job.max_attempts,
    job.priority,
    date_part('epoch', job.run_after) AS run_after,
    date_part('epoch', job.locked_at) AS locked_at,
    job.metadata::text AS metadata,
    job.timeout,
    date_part('epoch', job.unknown_since) AS unknown_since,
    job.limit_key IS NOT NULL AS holds_permit,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds,
    jsonb_array_length(job.deaths) >= 2 AS is_suspect,
    CASE WHEN job.limit_kind = 'concurrency' AND job.rate_key IS NULL THEN job.limit_key END AS permit_key"""


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

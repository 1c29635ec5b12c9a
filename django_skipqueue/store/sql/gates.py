"""Decides the status that a job enters: that of the first gate whose condition holds, else `queued`.

Invariant: the gates are checked for every job that enters from outside: an enqueue, a retry, a manual retry, and a job
that the previous gate admits. Release and recovery do not check the gates, because their jobs have passed them. But a
recovered job that has a rate waits for it again. One whose worker crashed, or whose workers died twice in a row, waits
at the time gate, and so does a postponed job.
"""

import re
from typing import Literal, NamedTuple


class Condition(NamedTuple):
    """The half of a gate that is SQL. The other half, which admits jobs, is a class in `store.gates`."""

    gate: str
    """The gate's name."""
    status: Literal["scheduled", "blocked"]
    """The job's status while it waits at this gate."""
    holds: str
    """The SQL condition under which the gate keeps a job waiting. Columns are written in braces: `{run_after}`."""


CONDITIONS = (
    Condition("time", "scheduled", "{run_after} > statement_timestamp()"),
    # A later gate with the status `blocked` admits only jobs whose `awaits_jobs` is NULL: the others still wait here.
    Condition("dependency", "blocked", "{awaits_jobs}::boolean"),
    # Likewise: a job that has passed the gate of limits, and waits at the next one, has `has_permit`.
    Condition("limit", "blocked", "{limit_key}::text IS NOT NULL"),
    Condition("rate", "blocked", "{rate_key}::text IS NOT NULL"),
)
"""In the order in which a job meets the gates."""

COLUMN = r"{(\w+)}"


def entering(statement: str, *, column: str, past: str | None = None, **columns: str) -> str:
    """Replace `{status}` in a statement by the expression for the status that a job enters. Called once, at import.

    column: the spelling of a job's column in this statement, such as `job.{}`; `columns`: exceptions to it.
    past: the gate that the job has just passed; only the gates after it are checked.
    """
    names = [condition.gate for condition in CONDITIONS]
    asked = CONDITIONS[names.index(past) + 1 :] if past else CONDITIONS
    cases = [
        f"WHEN {re.sub(COLUMN, lambda name: columns.get(name[1], column.format(name[1])), condition.holds)} "
        f"THEN '{condition.status}'"
        for condition in asked
    ]
    status = " ".join(["CASE", *cases, "ELSE 'queued' END"]) if cases else "'queued'"
    return statement.replace("{status}", status)

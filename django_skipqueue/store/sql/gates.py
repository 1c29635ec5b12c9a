"""Which status a job enters: that of the first gate whose condition holds it, else `queued`.

Invariant: whatever comes from outside is asked about here: an enqueue, a retry, a retry by hand, and a job that has
passed a gate. Release and recovery ask nothing, as the jobs that they give back were past their gates, and stay past
them; only after a second death does recovery have a job wait at the time gate.
"""

import re
from typing import Literal, NamedTuple


class Condition(NamedTuple):
    """The half of a gate that stands in SQL. `store.gates` has the other half, which admits."""

    gate: str
    """The gate's name."""
    status: Literal["scheduled", "blocked"]
    """In which a job waits at it."""
    holds: str
    """An SQL condition on the job that enters. A column stands in braces: `{run_after}`."""


CONDITIONS = (Condition("time", "scheduled", "{run_after} > statement_timestamp()"),)
"""In the order in which a job meets the gates."""

COLUMN = r"{(\w+)}"


def entering(statement: str, *, column: str, past: str | None = None, **columns: str) -> str:
    """Put the status that a job enters into a statement, in the place of `{status}`. Called once, at the import.

    column: how the statement writes a column of the job, as `job.{}`; `columns`: those that it writes another way.
    past: the gate that the job has just passed; only the ones after it are asked.
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

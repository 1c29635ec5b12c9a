"""`PartColumns`: what a part's columns of the job row add to the SQL of the core. Pure text.

`queue.fragments` joins the statements once, at import, from the core's own text and from what the parts add.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The half of a gate that is SQL. The other half, which admits jobs, is a `queue.gates.Gate`.

    In each condition the columns of a job are written in braces: `{run_after}`.
    """

    gate: str
    """The gate's name."""
    status: Literal["scheduled", "blocked"] = "blocked"
    """The job's status while it waits at this gate."""
    holds: str
    """The condition under which the gate keeps a job waiting."""
    key: str = ""
    """The column with the key by which the gate admits; empty: it has no keys."""
    returns: str = ""
    """The condition under which a job that has lost its worker waits at this gate again; empty: it never does."""
    keeps_released: bool = False
    """Whether `returns` counts only for a job whose attempt is charged. A released job then goes back to its queue."""
    grants_permits: bool = False
    """Whether a job that has passed this gate holds a permit of its key until it is finished or waits here again."""


@dataclass(frozen=True, kw_only=True)
class PartColumns:
    """The columns that a part writes when a job is inserted, and its places in statements of the core."""

    of_spec: Mapping[str, str] = field(default_factory=dict)
    """The columns that all jobs of an enqueue share, each with its SQL type: see `JobSpec.columns`."""
    key: str = ""
    """The text column whose value may differ from call to call: see `EncodedCall.columns`."""
    of_key: Mapping[str, str] = field(default_factory=dict)
    """The columns that the calls with a key have beside it, each with its SQL type. All calls of an enqueue that have
    a key have the same values."""
    gate: Condition | None = None
    are_kept: bool = True
    """Whether a job in an archive, and a copy of a job, have these columns."""
    pieces: Mapping[str, str] = field(default_factory=dict)
    """SQL for the places of `queue.fragments.PIECES`, by the name of the place. At most one part fills a place."""

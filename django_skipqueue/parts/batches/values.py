"""Values about batches of jobs, and a batch's callback as JSON: the columns of its future job, and its arguments.

Invariant: `loaded` turns the object that `stored` makes back into equal values, whatever the columns of a job are.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...values.records import EncodedCall, JobSpec


class FinishedBatch(NamedTuple):
    """A batch whose last job is finished."""

    id: int
    name: str
    parent_id: int | None
    callbacks: str
    """A JSON object, not yet decoded."""
    completed: int
    failed: int
    discarded: int
    is_failure: bool
    """Whether a job of the batch, or a callback of an inner batch, has not completed."""


class BatchProgress(NamedTuple):
    """How far a batch is. The jobs of inner batches count, callbacks do not."""

    total: int
    done: int
    """How many jobs are finished: completed, failed or discarded."""
    completed: int
    failed: int
    discarded: int
    is_finished: bool
    """Whether the callbacks are enqueued."""

    @property
    def share(self) -> float:
        """The share of finished jobs, from 0.0 to 1.0. The share of an empty batch is 1.0."""
        return self.done / self.total if self.total else 1.0


CALLBACK_JOB = "job_id"
"""The key in a callback of a finished batch with the id of the job that was enqueued for the callback."""

CALLBACK_SKIPPED = "skipped"
"""The key in a callback of a finished batch that is true if another job held the unique key of the callback."""


def stored(spec: JobSpec, call: EncodedCall) -> dict[str, Any]:
    """The callback as a JSON object. Columns with default values are left out."""
    defaults = JobSpec._field_defaults
    given = {name: value for name, value in spec._asdict().items() if name not in defaults or value != defaults[name]}
    if isinstance(spec.run_after, datetime):
        given["run_after"] = {"at": spec.run_after.isoformat()}
    elif isinstance(spec.run_after, timedelta):
        given["run_after"] = {"seconds": spec.run_after.total_seconds()}
    return {"spec": given, "call": call._asdict()}


def loaded(callback: Mapping[str, Any]) -> tuple[JobSpec, EncodedCall]:
    """The columns and arguments of a callback. A delay counts from the end of the batch. Ignores unknown columns."""
    given = {name: value for name, value in callback["spec"].items() if name in JobSpec._fields}
    if due := given.get("run_after"):
        given["run_after"] = datetime.fromisoformat(due["at"]) if "at" in due else timedelta(seconds=due["seconds"])
    known = {name: value for name, value in callback["call"].items() if name in EncodedCall._fields}
    return JobSpec(**given), EncodedCall(**known)

"""Values about batches, and the conversion of a batch's callbacks to and from JSON.

The JSON of a callback has the columns and the arguments of the job to enqueue. `stored` writes it; `loaded` turns it
back into equal values.
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
    """Whether a job of the batch, or a callback of an inner batch, did not complete."""


class BatchProgress(NamedTuple):
    """The numbers of a batch's jobs, including the jobs of inner batches, but without callbacks."""

    total: int
    done: int
    """How many jobs are finished: completed, failed or discarded."""
    completed: int
    failed: int
    discarded: int
    is_finished: bool
    """Whether the batch is finished, and its callbacks have been enqueued."""

    @property
    def share(self) -> float:
        """The finished share of the jobs, from 0.0 to 1.0; 1.0 for an empty batch."""
        return self.done / self.total if self.total else 1.0


CALLBACK_JOB = "job_id"
"""The JSON key in a callback of a finished batch with the id of the callback's job."""

CALLBACK_SKIPPED = "skipped"
"""The JSON key in a callback of a finished batch that is true if another job held the callback's unique key."""


def stored(spec: JobSpec, call: EncodedCall) -> dict[str, Any]:
    """Turn a callback into a JSON object. Columns with default values are left out."""
    defaults = JobSpec._field_defaults
    columns = {name: value for name, value in spec._asdict().items() if name not in defaults or value != defaults[name]}
    if isinstance(spec.run_after, datetime):
        columns["run_after"] = {"at": spec.run_after.isoformat()}
    elif isinstance(spec.run_after, timedelta):
        columns["run_after"] = {"seconds": spec.run_after.total_seconds()}
    return {"spec": columns, "call": call._asdict()}


def loaded(callback: Mapping[str, Any]) -> tuple[JobSpec, EncodedCall]:
    """Turn a JSON object back into a callback. Ignores unknown columns. A delay counts from the end of the batch."""
    columns = {name: value for name, value in callback["spec"].items() if name in JobSpec._fields}
    if due := columns.get("run_after"):
        columns["run_after"] = datetime.fromisoformat(due["at"]) if "at" in due else timedelta(seconds=due["seconds"])
    arguments = {name: value for name, value in callback["call"].items() if name in EncodedCall._fields}
    return JobSpec(**columns), EncodedCall(**arguments)

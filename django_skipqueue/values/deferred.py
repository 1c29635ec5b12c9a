"""What became of the calls of a `defer_many`. Pure."""

from collections.abc import Iterable, Sequence
from typing import Literal

OnConflict = Literal["skip", "replace", "raise", "rerun"]
"""What an enqueue does if a job holds the unique key of a call."""

CallOutcome = Literal["created", "existing", "replaced"]
"""`created`: a new job. `existing`: the job that holds the unique key, as it was. `replaced`: that job, which waits and
now has the arguments of the call."""


class DeferredJobs(list[int]):
    """The ids of the jobs, in the order of the calls: a list, which also says what became of each call."""

    def __init__(self, ids: Iterable[int] = (), outcomes: Sequence[CallOutcome] | None = None) -> None:
        super().__init__(ids)
        self._outcomes = outcomes

    @property
    def outcomes(self) -> list[CallOutcome]:
        """For each call: `created`, `existing` or `replaced`."""
        return ["created"] * len(self) if self._outcomes is None else list(self._outcomes)

    @property
    def created(self) -> list[int]:
        """The ids of the new jobs."""
        return self._of("created")

    @property
    def existing(self) -> list[int]:
        """The ids of the jobs that hold the unique keys of calls for which nothing was written. They may repeat."""
        return self._of("existing")

    @property
    def replaced(self) -> list[int]:
        """The ids of the waiting jobs that now have the arguments of a call."""
        return self._of("replaced")

    def _of(self, outcome: CallOutcome) -> list[int]:
        return [id for id, of_call in zip(self, self.outcomes, strict=True) if of_call == outcome]

"""What became of the calls of a `defer_many`. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

from .handles import handle_of

OnConflict = Literal["skip", "replace", "raise", "rerun"]
"""What an enqueue does if a job holds the unique key of a call."""

CallOutcome = Literal["created", "existing", "replaced"]
"""`created`: a new job. `existing`: the job that holds the unique key, as it was. `replaced`: that job, which waits and
now has the arguments of the call."""


class DeferredJobs(list[int]):
    """The ids of the jobs, in the order of the calls: a list, which also says what became of each call."""

    databases: Sequence[str] = ()
    """For each call: the alias of the database with its job."""

    def __init__(self, ids: Iterable[int] = (), outcomes: Sequence[CallOutcome] | None = None) -> None:
        super().__init__(ids)
        self._outcomes = outcomes

    def all_in(self, alias: str) -> Self:
        """Return the same list, with this database for all of them."""
        self.databases = [alias] * len(self)
        return self

    @classmethod
    def merged(cls, parts: Mapping[str, tuple[Sequence[int], "DeferredJobs"]]) -> Self:
        """One list of several: by database the positions of its calls, and what became of them."""
        rows = sorted(
            (position, id, outcome, alias)
            for alias, (positions, deferred) in parts.items()
            for position, id, outcome in zip(positions, deferred, deferred.outcomes, strict=True)
        )
        made = cls((id for _, id, _, _ in rows), [outcome for _, _, outcome, _ in rows])
        made.databases = [alias for *_, alias in rows]
        return made

    @property
    def handles(self) -> list[str]:
        """For each call: the handle of its job, such as `queue_1:42`, which names the database as well."""
        return [handle_of(alias, id) for alias, id in zip(self.databases, self, strict=True)]

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

"""The setting `DATABASE`, and what follows from it: the core serves one database. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OneDatabase:
    """What is asked about the databases that hold queues. The settings of a part may inherit it, and have several."""

    database: str = "default"
    """The alias of the queue's database; of several, the one that jobs are put into by default: the first."""

    @property
    def queue_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that new jobs may be put into."""
        return (self.database,)

    @property
    def served_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that have workers and pages: those, and the ones that are to go."""
        return self.queue_databases

    @property
    def serves_several(self) -> bool:
        """Whether there is more than one of these: then databases are named, and can be chosen."""
        return len(self.served_databases) > 1

    @property
    def is_spread(self) -> bool:
        """Whether the key of a job chooses its database, and jobs without a key go to each database in turn."""
        return False

    def may_hold_jobs(self, alias: str) -> bool:
        """Whether options may name this database."""
        return True

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The values that the project gives, by the names of fields, with those that follow from them."""
        return given

    @classmethod
    def problems_together(cls, given: Mapping[Any, Any]) -> Iterator[str]:  # noqa: ARG003 (for a subclass)
        """One sentence for each value that does not go together with others. `given`: the setting as it is."""
        return iter(())

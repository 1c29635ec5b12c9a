"""Takes the jobs back that a carrier holds, for the day on which it has lost them: `manage.py runrelay --reclaim`.

Invariant: what a relay claims after the beginning stays with the carrier, which has it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ...models import Worker
from ...queue.store import Store
from . import sql
from .carrier import carrier_id


def carriers_in(store: Store) -> set[str]:
    return set(Worker.objects.using(store.alias).filter(is_external=True).values_list("name", flat=True))


@dataclass(frozen=True)
class Reclaim:
    """Takes back what the carrier of this name holds in one database, and was claimed before `since`."""

    store: Store
    name: str
    since: datetime
    """When it began, by the database's clock."""

    @classmethod
    def begin(cls, store: Store, name: str) -> "Reclaim":
        """Begin now. Changes nothing yet."""
        ((now,),) = store.rows(sql.CLOCK, {})
        return cls(store, name, now)

    def count(self) -> int:
        values = {"carrier_id": carrier_id(self.name), "claimed_until": self.since}
        ((number,),) = self.store.rows(sql.CARRIED_BEFORE, values)
        return int(number)

    def run(self) -> Iterator[int]:
        """Release these jobs, in batches. Yields the number of each batch.

        No attempt is charged. A job whose row another transaction has locked stays with the carrier.
        """
        while released := self.store.release_orphans(carrier_id(self.name), known=[], claimed_until=self.since):
            yield len(released)

"""Takes the jobs back that a carrier holds, for the day on which it has lost them: `manage.py runrelay --reclaim`."""

from collections.abc import Iterator

from ..models import Worker
from ..store import Store
from . import sql
from .carrier import carrier_id


def carriers_in(store: Store) -> set[str]:
    """The names of the carriers that relays have served in this database."""
    return set(Worker.objects.using(store.alias).filter(is_carrier=True).values_list("name", flat=True))


def held_by(store: Store, name: str) -> int:
    """How many jobs this carrier holds."""
    ((number,),) = store.rows(sql.CARRIED_COUNT, {"carrier_id": carrier_id(name)})
    return int(number)


def reclaim(store: Store, name: str) -> Iterator[int]:
    """Release the jobs that this carrier holds, in batches. Yields the number of each batch.

    No attempt is charged. A job whose row another transaction has locked stays with the carrier.
    """
    while released := store.release_orphans(carrier_id(name), known=[]):
        yield len(released)

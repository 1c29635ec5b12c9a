"""Writes the entries of this process into their rows, and removes rows that are in nobody's code any more.

Invariant: two deployments that run at once do not change a row to and fro: the newer one keeps it (`sql.CONFIRM` says
how), and only supervisors with the definition that is in the row fire it.
"""

from collections.abc import Sequence

from ..store import Store
from ..values.codec import encode
from . import sql
from .entry import Entry
from .fire import instant

CONFIRM_SECONDS = 30.0
"""Seconds between two confirmations."""

STALE = 120.0
"""Seconds without a confirmation after which a definition is in nobody's code."""

KEPT = 7 * 86_400.0
"""Seconds for which the row of such a definition is kept, with its pause and its last run: all may have been down."""


def synchronise(store: Store, entries: Sequence[Entry], *, has_started: bool) -> list[str]:
    """Write the entries. Returns the names of those that are not written, because schedules of the admin have them.

    `has_started`: this supervisor has done it before.
    """
    written: set[str] = set()
    if entries:
        ((now,),) = store.rows(sql.CLOCK)
        moments = [entry.timetable.first(instant(now)) for entry in entries]
        documents = [
            {**entry.values(), "digest": entry.digest, "next": moment and moment.timestamp()}
            for entry, moment in zip(entries, moments, strict=True)
        ]
        values = {"entries": encode("entries", documents), "has_started": has_started, "stale": STALE}
        written = {name for (name,) in store.rows(sql.CONFIRM, values)}
    store.execute(sql.RETIRE, {"stale": STALE})
    store.execute(sql.REMOVE, {"kept": KEPT})
    others = [entry.name for entry in entries if entry.name not in written]
    return [name for (name,) in store.rows(sql.TAKEN, {"names": others})] if others else []

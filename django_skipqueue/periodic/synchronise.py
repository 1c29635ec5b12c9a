"""Writes the entries of this process into their rows, and removes rows that are in nobody's code any more.

Invariant: two deployments that run at once do not change a row to and fro: the newer one keeps it (`sql.CONFIRM` says
how), and only supervisors with the definition that is in the row fire it.
"""

import json
from collections.abc import Sequence
from contextlib import suppress

from ..exceptions import InvalidOption
from ..store import Store
from ..values.codec import encode
from . import sql
from .entry import Entry
from .fire import instant
from .timetable import timetable

CONFIRM_SECONDS = 30.0
"""Seconds between two confirmations."""

STALE = 120.0
"""Seconds without a confirmation after which a definition is in nobody's code."""

AHEAD_SECONDS = 10.0
"""Seconds by which a schedule's next time may be later than the one computed now: its clock was read a moment ago."""

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


def bring_back(store: Store) -> list[str]:
    """Give schedules that wait too long their next time by the clock of now. Returns their names.

    A clock that was ahead for a moment, as in a virtual machine that was restored, has left times far in the future.
    """
    ahead = []
    for now, id, cron, interval, zone, next in store.rows(sql.WAITING, {"margin": AHEAD_SECONDS}):
        first = None
        with suppress(InvalidOption):  # a row that somebody has written by hand: to fire it says what is wrong
            first = timetable(cron=cron, interval=interval, zone=zone).first(instant(now))
        if first is not None and first.timestamp() + AHEAD_SECONDS < next:
            ahead.append({"id": id, "next": first.timestamp()})
    if not ahead:
        return []
    rows = store.rows(sql.BRING_BACK, {"entries": json.dumps(ahead), "margin": AHEAD_SECONDS})
    return [name for (name,) in rows]

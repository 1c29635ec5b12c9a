"""The depths of the deepest queues over time, and of the others together."""

from collections.abc import Iterable

from ..charts.time_axis import TimeAxis
from . import sql
from .situation import Situation

MOST_QUEUES = 5
"""The maximum of queues with a line of their own."""

Depths = dict[str, list[float | None]]
"""By queue, a depth for each bucket of the time axis; a gap where none was written. An empty name: the other queues."""


def depths(situation: Situation) -> Depths:
    axis = situation.axis
    names = [situation.queue_name] if situation.queue_name else _deepest(situation)
    asked = names if situation.queue_name else [*names, ""]
    values = {"span": int(situation.range.span), "width": axis.width, "queue_names": asked, "since": axis.start}
    return depths_of(axis, names, situation.store.rows(sql.DEPTHS, values))


def depths_of(axis: TimeAxis, names: list[str], rows: Iterable[tuple[str, float, int]]) -> Depths:
    """The depths of these queues by the rows of `DEPTHS`. The row of all queues together gives that of the others."""
    found: Depths = {name: [None] * axis.buckets for name in [*names, ""]}
    for name, starts_at, depth in rows:
        place = axis.place(starts_at)
        if place is not None:
            found[name][place] = depth
    everything = found.pop("")
    others = [
        None if all_of_them is None else max(0.0, all_of_them - sum(found[name][place] or 0.0 for name in names))
        for place, all_of_them in enumerate(everything)
    ]
    return found | ({"": others} if any(others) else {})


def _deepest(situation: Situation) -> list[str]:
    values = {"since": situation.axis.start, "limit": MOST_QUEUES}
    return [name for (name,) in situation.store.rows(sql.DEEPEST_QUEUES, values)]

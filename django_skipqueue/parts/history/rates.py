"""Read how many jobs have ended in each queue in the last minutes, and how long they had waited: for pages."""

from typing import TYPE_CHECKING

from ...console.queue_states import QueueRate
from ...values import counting

if TYPE_CHECKING:
    from ...queue.store import Store

# pages → the roll-ups of each queue, and of all (an empty name), of the current minute and the `minutes` before it: the
# name, the number of jobs that ended, the minutes since the first of these began, the histogram of the waiting times.
# Index: prune of the roll-ups.
RATES_NOW = """
SELECT queue_name, ended, date_part('epoch', statement_timestamp() - first_minute) / 60, waited
FROM (
    SELECT queue_name, task, completed + failed + discarded AS ended, waited, first_minute
    FROM
        skipqueue_rollup,
        (SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => %(minutes)s)) AS age (first_minute)
    WHERE span = 60 AND starts_at >= first_minute
    ORDER BY starts_at DESC
    LIMIT 20000
) AS recent
WHERE task = ''
"""


RATE_MINUTES = 5
"""Whole minutes before the current one over which a rate is taken."""


def queue_rates(store: "Store") -> dict[str, QueueRate]:
    """See `PartConsole.queue_rates`."""
    rates: dict[str, QueueRate] = {}
    for name, ended, minutes, waited in store.rows(RATES_NOW, {"minutes": RATE_MINUTES}):
        known = rates.get(name, QueueRate(0.0, counting.empty()))
        times = counting.added(known.waited, waited or counting.empty())
        rates[name] = QueueRate(known.per_minute + ended / minutes, times)
    return rates

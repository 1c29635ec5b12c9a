"""The benchmarks: each function in the tuple below measures one row of the table.

The function gets the sizes and returns the figures of the row by name. It runs in its own process with its own
database. Times come from the clock of the database if it knows them.
"""

from collections.abc import Callable

from ..figures import Figures
from ..sizes import Sizes
from .batches import batches
from .carried import carried
from .columns import columns
from .cost import cost
from .drains import drain, drain_async, drain_two_processes, one_at_a_time, ten_ms
from .enqueueing import (
    defer,
    defer_in_threads,
    defer_in_transaction,
    defer_many,
    defer_many_by_policy,
    queries,
)
from .fairness import fair, fair_wait
from .finished import archive, delete
from .floor import floor
from .limits import limits, limits_latency, one_key
from .many_workers import eight_machines, eight_workers, many_workers, one_worker
from .processes import cold_start, idle, import_time, memory
from .rates import rates
from .rollups import rollups
from .several_databases import several_databases, steward_memory
from .steps import between_steps, signal_latency, steps
from .tables import future, history, other_queue, snapshot
from .waiting import latency, lateness, lone_scheduled

ROWS: dict[str, Callable[[Sizes], Figures]] = {
    row.__name__.replace("_", "-"): row
    for row in (
        drain,
        drain_two_processes,
        drain_async,
        floor,
        cost,
        columns,
        rollups,
        ten_ms,
        one_at_a_time,
        defer,
        defer_in_transaction,
        defer_in_threads,
        defer_many,
        defer_many_by_policy,
        queries,
        latency,
        lateness,
        lone_scheduled,
        idle,
        one_worker,
        eight_workers,
        many_workers,
        eight_machines,
        history,
        future,
        other_queue,
        snapshot,
        fair,
        fair_wait,
        delete,
        archive,
        limits,
        limits_latency,
        one_key,
        rates,
        batches,
        steps,
        between_steps,
        signal_latency,
        carried,
        several_databases,
        steward_memory,
        memory,
        cold_start,
        import_time,
    )
}

"""The services of a supervisor. A new one that needs only the `Store` is a class, and a line in `SERVICES`."""

from collections.abc import Callable

from ..parts.archive.services import ArchivePartitions
from ..parts.batches.services import FinishBatches, PruneBatches
from ..parts.history.services import PruneRollUps, SampleDepths
from ..parts.history.tally import CountEnqueued
from ..parts.limits.services import BlockSurplus, PassOn
from ..parts.rates.services import PruneRates
from ..parts.schedules.fire import FireSchedules
from ..queue.store import Store
from ..worker.loop import Service
from .admit import Admit
from .prune import Prune

__all__ = ["SERVICES"]

SERVICES: tuple[Callable[[Store], Service], ...] = (
    Admit,
    BlockSurplus,
    PassOn,
    FireSchedules,
    FinishBatches,
    CountEnqueued,
    SampleDepths,
    PruneRollUps,
    ArchivePartitions,
    Prune,
    PruneBatches,
    PruneRates,
)
"""The services that need only the `Store`. `Supervisor` makes the others."""

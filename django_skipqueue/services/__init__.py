"""The services of a supervisor. A new one that needs only the `Store` is a class, and a line in `SERVICES`."""

from collections.abc import Callable

from ..rollups.count_enqueued import CountEnqueued
from ..rollups.prune_rollups import PruneRollUps
from ..rollups.sample_depths import SampleDepths
from ..runtime.service import Service
from ..store import Store
from .admit import Admit
from .archive import ArchivePartitions
from .batches import FinishBatches, PruneBatches
from .fire_schedules import FireSchedules
from .pass_on import PassOn
from .prune import Prune
from .prune_rates import PruneRates
from .queue_limits import BlockSurplus

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

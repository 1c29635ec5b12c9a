"""`Store`: the queue of one database, with a method for everything that is done to it."""

from ..conf import settings
from ..parts.archive.move import Archiving
from ..parts.history.failures import Failures
from ..parts.history.rollups import RollingUp
from ..parts.keyed import PassingOn
from ..parts.limits.admit import Limiting
from ..parts.limits.now import ObservingLimits
from ..parts.rates.admit import Rating
from .claim import Claiming
from .claim_costs import ClaimCosts
from .gates import Admitting
from .leases import Leases
from .notes import Noting
from .notify import Notifying
from .observe import Observing
from .operate import Operating
from .prune import Pruning
from .queues import Queues
from .recover import Recovering
from .release import Releasing
from .settle import Settling
from .workers import Workers

__all__ = ["Store"]


class Store(
    Claiming,
    Settling,
    Releasing,
    Leases,
    Noting,
    Admitting,
    Limiting,
    Rating,
    PassingOn,
    Recovering,
    Pruning,
    Archiving,
    Operating,
    Notifying,
    Observing,
    ObservingLimits,
    ClaimCosts,
    RollingUp,
    Failures,
    Queues,
    Workers,
):
    """The queue of one database: `Store("default")`.

    Its methods run on this thread's connection; most run one statement. A store is passed to its users as an argument.
    Its methods give their events to `send`: by default to the sinks, at once, in the caller's thread and transaction.
    """

    @classmethod
    def default(cls) -> "Store":
        """The queue of the database that `SKIPQUEUE["DATABASE"]` names."""
        return cls(settings.database)

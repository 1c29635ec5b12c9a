"""The queue in PostgreSQL: `Store` has a method for everything that is done to it.

Invariant: no other module contains SQL, and nothing here depends on tasks, worker processes or Django's model of a job.
"""

from ..conf import settings
from .archive import Archiving
from .claim import Claiming
from .claim_costs import ClaimCosts
from .failures import Failures
from .gates import Admitting
from .leases import Leases
from .limits import Limiting
from .limits_now import ObservingLimits
from .notes import Noting
from .notify import Notifying
from .observe import Observing
from .operate import Operating
from .pass_on import PassingOn
from .prune import Pruning
from .queues import Queues
from .rates import Rating
from .recover import Recovering
from .release import Releasing
from .rollups import RollingUp
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

"""The queue in PostgreSQL: `Store` has a verb for everything that is done to it.

Invariant: nobody else writes SQL, and nothing here knows a task, a worker process or Django's model of a job.
"""

from ..conf import settings
from .claim import Claiming
from .enqueue import Enqueueing
from .gates import Admitting
from .leases import Leases
from .notify import Notifying
from .operate import Operating
from .prune import Pruning
from .recover import Recovering
from .release import Releasing
from .settle import Settling
from .workers import Workers

__all__ = ["Store"]


class Store(
    Enqueueing, Claiming, Settling, Releasing, Leases, Admitting, Recovering, Pruning, Operating, Notifying, Workers
):
    """The queue of one database: `Store("default")`. Its verbs run on this thread's connection; most are one statement.

    Passed down to whoever uses it. It holds the database's alias, and `send`, which gets the events of its verbs: by
    default the sinks get them at once, in the thread and the transaction of the caller.
    """

    @classmethod
    def default(cls) -> "Store":
        """The queue of the database that `SKIPQUEUE["DATABASE"]` names."""
        return cls(settings.database)

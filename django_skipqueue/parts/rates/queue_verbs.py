"""What code says about the rate of a queue: `Queue.rate`."""

from ...queue.store import in_each
from ..keyed.queues import require_changed
from .queues import rate_columns_of, rate_queue, rate_queue_by_settings


class RateVerbs:
    """Methods of `models.Queue`."""

    @staticmethod
    def rate(name: str, rate: str | None, *, by: str = "", database: str | None = None) -> None:
        """Set how many jobs of a queue may start in a time, such as "50/s"; `None`: any number.

        It holds for the jobs that were enqueued while `SKIPQUEUE["QUEUES"]` had a `rate` for this queue, `None`
        included. Jobs that are queued and have not been claimed wait again. Raises `InvalidOption` for a value that
        cannot be used, and for a queue without a `rate` in the settings, unless it was changed before. `database`: as
        of `pause`; the rate counts in each of them.
        """
        if rate_columns_of(name).rate_key is None:
            require_changed(name, "rate", "rate_interval")
        in_each(database, lambda store: rate_queue(store, name, rate, by=by))

    @staticmethod
    def rate_by_settings(name: str, *, by: str = "", database: str | None = None) -> None:
        """Let the rate of the settings hold again for this queue. `database`: as of `pause`."""
        in_each(database, lambda store: rate_queue_by_settings(store, name, by=by))

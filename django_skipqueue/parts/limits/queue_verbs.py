"""What code says about the limit of a queue: `Queue.limit`."""

from ...queue.store import in_each
from ..keyed.queues import require_changed
from .queues import columns_of, limit_queue, limit_queue_by_settings


class LimitVerbs:
    """Methods of `models.Queue`."""

    @staticmethod
    def limit(name: str, concurrency: int | None, *, by: str = "", database: str | None = None) -> None:
        """Let at most `concurrency` jobs of a queue run at once, in place of the setting; `None`: any number.

        It holds for the jobs that were enqueued while `SKIPQUEUE["QUEUES"]` had a `concurrency` for this queue, `None`
        included. Jobs that run are left alone: no other is admitted until fewer run. Raises `InvalidOption` for a value
        that cannot be used, and for a queue without a `concurrency` in the settings, unless it was changed before.
        `database`: as of `pause`; the number counts in each of them.
        """
        if columns_of(name).limit_key is None:
            require_changed(name, "concurrency", "concurrency")
        in_each(database, lambda store: limit_queue(store, name, concurrency, by=by))

    @staticmethod
    def limit_by_settings(name: str, *, by: str = "", database: str | None = None) -> None:
        """Let the number of the settings hold again for this queue. `database`: as of `pause`."""
        in_each(database, lambda store: limit_queue_by_settings(store, name, by=by))

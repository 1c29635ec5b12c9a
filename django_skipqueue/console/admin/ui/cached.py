"""What pages show of the whole queue: read once in a few seconds by each process, and in time or not at all."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import DatabaseError
from django.utils.connection import ConnectionDoesNotExist

from ....conf import settings
from ....queue.session import short_transaction
from ....queue.store import Store

T = TypeVar("T")

CACHE_SECONDS = 5.0
"""How long a process shows what it has read before it queries again."""

QUERY_SECONDS = 1.0
"""The time that a query may take. After a longer one, the pages are shown without what was to be read."""


class CachedRead(Generic[T]):
    def __init__(self, read: Callable[[], T]) -> None:
        """`read` queries the database that this thread uses. Its queries are bounded, whatever the tables' size."""
        self._read = read
        self._cached: tuple[str, float, T | None] = ("", 0.0, None)  # of which database, when, what

    def get(self) -> T | None:
        """What was read, a few seconds ago at most; `None` if the queue's database did not answer, or not in time.

        Two threads may query at once: they find the same.
        """
        database = settings.database
        cached_of, cached_at, found = self._cached
        if cached_of != database or time.monotonic() - cached_at >= CACHE_SECONDS:
            try:
                with short_transaction(Store.default(), QUERY_SECONDS):  # an error undoes no more than this block
                    found = self._read()
            except (DatabaseError, ConnectionDoesNotExist):  # the admin's index works without the queue's database
                found = None
            self._cached = (database, time.monotonic(), found)
        return found

    def clear(self) -> None:
        self._cached = ("", 0.0, None)

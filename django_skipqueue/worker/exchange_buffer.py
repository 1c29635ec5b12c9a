"""Holds the result of the last exchange until it is applied.

The worker sends the next exchange first, and decodes the rows of the last one while the database works. Where jobs take
no time, that is a fifth more jobs a second.

Invariant: at most one result waits here, and it is applied once. All code that drops or releases jobs of the worker
applies the result first. Code that only counts or reads the jobs may run before that: `room` adds `claimed`, the check
for surplus jobs adds `attempts`, and the check for cancelled jobs covers the new jobs from its next run on.
"""

from collections.abc import Callable, Sequence

from ..values.records import Attempt
from .round_trips import Exchange


class ExchangeBuffer:
    """Used by the control loop's thread. `apply_exchange` returns whether the exchange found the queues empty."""

    def __init__(self, apply_exchange: Callable[[Exchange], bool]) -> None:
        self._apply_exchange = apply_exchange
        self._waiting: Exchange | None = None

    @property
    def is_empty(self) -> bool:
        return self._waiting is None

    @property
    def claimed(self) -> int:
        return self._waiting.answer.count_claimed() if self._waiting else 0

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The attempts that are settled in the database, while the worker still counts their jobs as held."""
        return self._waiting.attempts if self._waiting else ()

    def put(self, exchange: Exchange) -> None:
        """Keep this result. The previous one must have been applied."""
        assert self._waiting is None  # noqa: S101 (a result that is overwritten would lose its jobs)
        self._waiting = exchange

    def apply(self) -> bool:
        """Apply the result, if one waits. Sends no statement. Returns whether that exchange found the queues empty."""
        if self._waiting is None:
            return False
        exchange, self._waiting = self._waiting, None
        return self._apply_exchange(exchange)

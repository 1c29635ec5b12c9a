"""The result of the last exchange, while it is not applied.

The next exchange is sent first, and the database works on that while this process decodes the rows of the last one: a
fifth more jobs a second where they take no time. Without it both wait for each other.

Invariant: at most one result waits here, and it is applied once. Nothing but the next exchange goes to the database in
between: whoever reads or changes the jobs that the worker holds applies it first.
"""

from collections.abc import Callable, Sequence

from ..values.records import Attempt
from .round_trips import Exchange


class ExchangeBuffer:
    """Used by the control loop's thread. `apply_exchange` returns whether the exchange has found the queues empty."""

    def __init__(self, apply_exchange: Callable[[Exchange], bool]) -> None:
        self._apply_exchange = apply_exchange
        self._waiting: Exchange | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no result waits."""
        return self._waiting is None

    @property
    def claimed(self) -> int:
        """How many claimed jobs wait here."""
        return self._waiting.answer.count_claimed() if self._waiting else 0

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The attempts whose outcomes the database has answered for, and which still count as held."""
        return self._waiting.attempts if self._waiting else ()

    def put(self, exchange: Exchange) -> None:
        """Have this result wait. The one before must have been applied."""
        assert self._waiting is None  # noqa: S101 (a result that is overwritten would lose its jobs)
        self._waiting = exchange

    def apply(self) -> bool:
        """Apply the result, if one waits; whether that exchange has found the queues empty. Asks no database."""
        if self._waiting is None:
            return False
        exchange, self._waiting = self._waiting, None
        return self._apply_exchange(exchange)

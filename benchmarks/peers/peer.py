"""What the module of each peer has. Its tasks are `noop`, which does nothing, and `mark`, which calls `marks.leave`."""

from collections.abc import Sequence
from typing import Protocol


class Peer(Protocol):
    """A job queue, seen from outside."""

    TITLE: str
    """Its name in the table."""

    HISTORY: str
    """What is left of a finished job in the measured set-up."""

    def prepare(self) -> None:
        """Make its tables, or start the server that it needs, which ends with this process."""

    def enqueue(self, task: str, number: int) -> None:
        """Enqueue one job of `noop` or `mark`, as the quick start does."""

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue jobs of `noop` by the quickest documented way."""

    def worker(self, *, best: bool) -> list[str]:
        """The command of a worker: as the quick start has it, or with the best documented settings."""

    def unfinished(self) -> int:
        """How many jobs wait or run."""


class LimitedPeer(Peer, Protocol):
    """A job queue whose tasks can have a limit. Its task `limited` does nothing; two jobs of a key may run at once."""

    def enqueue_limited(self, keys: Sequence[int]) -> None:
        """Enqueue a job of `limited` for each of these keys by the quickest documented way."""

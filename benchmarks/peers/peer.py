"""The functions of a peer's module. Its tasks are `noop`, which does nothing, and `mark`, which writes a mark."""

from collections.abc import Sequence
from typing import Protocol


class AnyPeer(Protocol):
    """What each table needs."""

    TITLE: str
    """The name of the peer in the table."""

    HISTORY: str
    """What the queue keeps of a finished job in the measured set-up."""

    def prepare(self) -> None:
        """Create the tables of the peer, or start the server that it needs. The server ends with this process."""

    def unfinished(self) -> int:
        """How many jobs wait or run."""


class Peer(AnyPeer, Protocol):
    """A job queue that is measured."""

    def enqueue(self, task: str, number: int) -> None:
        """Enqueue one job of `noop` or `mark`, as the quick start does."""

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue jobs of `noop` by the fastest documented function."""

    def worker(self, *, best: bool) -> list[str]:
        """The command that starts a worker: with the settings of the quick start, or the best documented settings."""


class LimitedPeer(Peer, Protocol):
    """A job queue with limits. Its task `limited` does nothing, and at most two jobs of a key run at once."""

    def enqueue_limited(self, keys: Sequence[int]) -> None:
        """Enqueue a job of `limited` for each of these keys by the fastest documented function."""


class SteppedPeer(AnyPeer, Protocol):
    """A job queue with steps. Its task `workflow` calls `work.in_steps` with a step that does nothing."""

    def enqueue_workflows(self, numbers: Sequence[int], steps: int) -> None:
        """Enqueue a job of `workflow` for each of these numbers."""

    def worker_of_four(self) -> list[str]:
        """The command that starts a worker: one process, which runs four workflows at once."""

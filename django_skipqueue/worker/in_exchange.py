"""The interface by which a part adds statements to a worker's exchanges, and changes the order in which jobs begin.

A part may have subclasses of the classes here: see `Part.in_exchange`. The classes themselves do nothing. A worker uses
them if no part has subclasses.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..queue.parameters import ExchangeResult, Statement
from ..queue.store import Store
from ..values.part import installed_parts
from ..values.records import NEVER, Attempt, ClaimedJob


class PartStatements(NamedTuple):
    """The statements that an exchange sends for a part."""

    statements: Sequence[Statement | None] = ()
    """Sent between the settle and the claim."""
    claim: str | None = None
    """A statement that claims jobs instead of CLAIM; `None` for CLAIM."""
    admits: bool = False
    """Whether the statements admit jobs."""


class BeginOrder:
    """Decides in which order claimed jobs begin. In this class, they begin in the order in which they were claimed.

    Only the control loop's thread calls the methods, except for `follow`. `enter` is called only for jobs with a
    `permit_key`, which are jobs of a limit.
    """

    @property
    def has_waiting(self) -> bool:
        """Whether there are jobs that have entered, but may not begin yet."""
        return False

    def claimed(self, jobs: Iterable[ClaimedJob], *, ahead: bool = False) -> None:
        """Note claimed jobs. `ahead` says whether `InExchange.claimed_ahead` has returned them."""

    def gone(self, jobs: Iterable[ClaimedJob]) -> None:
        """Forget jobs that were settled, released or lost. Call `claimed` first for jobs that take their places."""

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        """Let the job wait for its turn among the jobs with its key. Returns the jobs that may begin now."""
        return [job]

    def follow(self, job: ClaimedJob) -> ClaimedJob | None:
        """Note that a job has ended. Returns the job that begins in its place, if any. Called in the job's thread."""

    def taken_from_runners(self, jobs: Iterable[ClaimedJob]) -> None:
        """Note that these jobs were taken from their runners before they began."""

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        """Take back the jobs that may not begin yet. With `since`, only jobs that have waited since this time."""
        return []


class InExchange:
    """Adds a part's statements to a worker's exchanges. Used only by the control loop's thread."""

    def __init__(self, begin_order: BeginOrder | None = None) -> None:
        self.begin_order = begin_order or BeginOrder()
        self.due_at = NEVER
        """When to send an exchange only for the part, by the monotonic clock."""

    def statements_of_parts(self, attempts: Sequence[Attempt], *, has_room: bool, claims: bool) -> PartStatements:
        """Return the statements to send together with the outcomes of these attempts.

        has_room: whether the worker can take more jobs. claims: whether it also claims, from at least one queue.
        """
        return PartStatements()

    def answered(self, answer: ExchangeResult) -> None:
        """Note that the exchange with the last statements has succeeded."""

    def failed(self, jobs: Iterable[ClaimedJob]) -> None:
        """Note that an exchange has failed, and that the outcomes of these jobs may or may not be written."""

    def claimed_ahead(self, answer: ExchangeResult) -> list[ClaimedJob]:
        """Return the jobs that the part's own statements have claimed, in the order in which they begin."""
        return []

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Note the jobs of a claim."""


def make_in_exchange(store: Store, worker_id: str, *, claims_ahead: bool = False) -> InExchange:
    """Make the `InExchange` of the part that has one, or else one that adds no statements.

    claims_ahead: whether a worker may claim jobs of a limit before the limit has room for them.
    """
    makers = [part.in_exchange for part in installed_parts() if part.in_exchange]
    in_exchange: InExchange = makers[0](store, worker_id, claims_ahead=claims_ahead) if makers else InExchange()
    return in_exchange

"""What a part may do in the exchanges of one worker, and with the jobs that the worker has claimed.

A part that has a subclass of `InExchange` names the subclass in its `Part`. The classes here do nothing: a worker uses
them if no part has a subclass.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..queue.parameters import ExchangeResult, Statement
from ..queue.store import Store
from ..values.part import installed_parts
from ..values.records import NEVER, Attempt, ClaimedJob


class PartStatements(NamedTuple):
    """What an exchange sends for a part."""

    statements: Sequence[Statement | None] = ()
    """Sent between the settle and the claim."""
    claim: str | None = None
    """The statement that claims jobs, in place of CLAIM."""
    admits: bool = False
    """Whether the statements admit jobs."""


class BeginOrder:
    """The order in which claimed jobs begin: here, the order in which they were claimed.

    Used by the control loop's thread, except for `follow`. `enter` is called for the jobs that have a `permit_key`.
    """

    @property
    def has_waiting(self) -> bool:
        """Whether jobs have entered that may not begin yet."""
        return False

    def claimed(self, jobs: Iterable[ClaimedJob], *, ahead: bool = False) -> None:
        """Note claimed jobs. ahead: whether they come from `InExchange.claimed_ahead`."""

    def gone(self, jobs: Iterable[ClaimedJob]) -> None:
        """Forget jobs that were settled, released or lost. Call `claimed` before, for jobs claimed in their place."""

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        """Put the job into its line. Returns the jobs that may begin now."""
        return [job]

    def follow(self, job: ClaimedJob) -> ClaimedJob | None:
        """Note that this job has ended. Returns the job that begins in its place, if any. Runs in the job's thread."""

    def withdrawn(self, jobs: Iterable[ClaimedJob]) -> None:
        """Note that these jobs were taken out of their runners before they began."""

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        """Take back the jobs that may not begin yet; with `since`, only the jobs that would go on waiting."""
        return []


class InExchange:
    """Used by the control loop's thread."""

    def __init__(self, lines: BeginOrder | None = None) -> None:
        self.lines = lines or BeginOrder()
        self.due_at = NEVER
        """When to send an exchange for the part alone, in monotonic seconds."""

    def statements_of_parts(self, attempts: Sequence[Attempt], *, has_room: bool, claims: bool) -> PartStatements:
        """What to send with the outcomes of these attempts.

        has_room: whether the worker can take jobs. claims: whether it also claims, from at least one queue.
        """
        return PartStatements()

    def answered(self, answer: ExchangeResult) -> None:
        """Note that the exchange with the last `statements_of_parts` has succeeded."""

    def failed(self, jobs: Iterable[ClaimedJob]) -> None:
        """Note that an exchange has failed, and that the outcomes of these jobs may or may not be written."""

    def claimed_ahead(self, answer: ExchangeResult) -> list[ClaimedJob]:
        """The jobs that the statements of `statements_of_parts` have claimed, in the order in which they begin."""
        return []

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Note the jobs of a claim."""


def make_in_exchange(store: Store, worker_id: str, *, claims_ahead: bool = False) -> InExchange:
    """Make the `InExchange` of the part that has one. claims_ahead: whether to claim jobs beyond the worker's room."""
    made = [part.in_exchange for part in installed_parts() if part.in_exchange]
    found: InExchange = made[0](store, worker_id, claims_ahead=claims_ahead) if made else InExchange()
    return found

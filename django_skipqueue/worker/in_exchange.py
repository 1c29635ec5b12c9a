"""What a part may do in the exchanges of one worker, and with the jobs that the worker has claimed. Here: nothing.

A part that has a subclass of `InExchange` names it in its `Part`. Without one, these classes are used as they are.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..queue.parameters import ExchangeResult, Statement
from ..queue.store import Store
from ..values.part import installed_parts
from ..values.records import NEVER, Attempt, ClaimedJob


class PartStatements(NamedTuple):
    """What an exchange sends beside its settle."""

    statements: Sequence[Statement | None] = ()
    """Between the settle and the claim."""
    claim: str | None = None
    """The statement of the claim, in place of CLAIM."""
    admits: bool = False
    """Whether the statements admit jobs."""


class BeginOrder:
    """The order in which claimed jobs begin: that of the claims. Used by the control loop's thread, but for `follow`.

    `enter` is called for the jobs that have a `permit_key`.
    """

    @property
    def has_waiting(self) -> bool:
        """Whether jobs have entered that may not begin yet."""
        return False

    def claimed(self, jobs: Iterable[ClaimedJob], *, ahead: bool = False) -> None:
        """Note claimed jobs; `ahead`: those of `InExchange.claimed_ahead`."""

    def gone(self, jobs: Iterable[ClaimedJob]) -> None:
        """Forget jobs that were settled, released or lost. Call `claimed` first for those claimed in their place."""

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        """Returns the jobs that may begin now."""
        return [job]

    def follow(self, job: ClaimedJob) -> ClaimedJob | None:
        """This job has ended: returns the one that begins in its place, if any. Called in the thread of the job."""

    def withdrawn(self, jobs: Iterable[ClaimedJob]) -> None:
        """Note that these were taken out of their runners before they began."""

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        """Take back the jobs that may not begin yet; with `since`, those that would wait on."""
        return []


class InExchange:
    """Used by the control loop's thread."""

    def __init__(self, lines: BeginOrder | None = None) -> None:
        self.lines = lines or BeginOrder()
        self.due_at = NEVER
        """When to send an exchange although there is no other reason, in monotonic seconds."""

    def statements_of_parts(self, attempts: Sequence[Attempt], *, has_room: bool, claims: bool) -> PartStatements:
        """What to send with the outcomes of these attempts.

        has_room: whether the worker can take jobs. claims: whether it claims as well, so there is a queue to look in.
        """
        return PartStatements()

    def answered(self, answer: ExchangeResult) -> None:
        """The exchange with the last `statements_of_parts` has succeeded."""

    def failed(self, jobs: Iterable[ClaimedJob]) -> None:
        """An exchange has failed: nobody knows whether the outcomes of these jobs were written."""

    def claimed_ahead(self, answer: ExchangeResult) -> list[ClaimedJob]:
        """The jobs that the statements of `statements_of_parts` have claimed, in the order in which they begin."""
        return []

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Note the jobs of a claim."""


def make_in_exchange(store: Store, worker_id: str, *, claims_ahead: bool = False) -> InExchange:
    """That of the part which has one. claims_ahead: whether the worker may claim jobs beyond its room."""
    made = [part.in_exchange for part in installed_parts() if part.in_exchange]
    found: InExchange = made[0](store, worker_id, claims_ahead=claims_ahead) if made else InExchange()
    return found

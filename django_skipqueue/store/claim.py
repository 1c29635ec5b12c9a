"""The verbs that claim jobs, and find out where there are some."""

from collections.abc import Mapping, Sequence
from itertools import starmap

from django.db import transaction

from ..values.records import ClaimedJob, QueuePosition
from . import sql
from .parameters import claim_values, in_claim_order, positions_as_values
from .statements import Statements


class Claiming(Statements):
    """For workers, and for loops written by hand."""

    def claim(self, *, queue_names: Sequence[str], limit: int, worker_id: str) -> list[ClaimedJob]:
        """Take up to `limit` jobs: the queues in the listed order, within each the highest priority first."""
        values = claim_values(queue_names, after={}, limit=limit, worker_id=worker_id)
        return in_claim_order(starmap(ClaimedJob, self.rows(sql.CLAIM, values)), queue_names)

    def queues_with_jobs(self, *, after: str = "", limit: int | None = None) -> list[str]:
        """The names of the queues that have jobs to claim, in alphabetical order; `limit` of those after a name."""
        return [name for (name,) in self.rows(sql.QUEUES_WITH_JOBS, {"after": after, "limit": limit})]

    def first_in_queues(
        self, queue_names: Sequence[str], *, after: Mapping[str, QueuePosition], seconds: float
    ) -> list[tuple[str, int | None, QueuePosition]]:
        """Where the first jobs to claim stand, each queue's with the job's id; without one, where it would stand now.

        The statement may take this many seconds, whatever the connection's timeout.
        """
        with transaction.atomic(using=self.alias):
            self.rows(sql.SET_STATEMENT_TIMEOUT, {"timeout": f"{seconds:.3f}s"})
            rows = self.rows(sql.FIRST_IN_QUEUES, positions_as_values(queue_names, after))
        return [(name, id, QueuePosition(*position)) for name, id, *position in rows]

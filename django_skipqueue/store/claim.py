"""The methods that claim jobs, and that find queued jobs."""

from collections.abc import Mapping, Sequence
from itertools import starmap

from django.db import transaction

from ..values.records import ClaimedJob, LeaseRef, QueuePosition
from . import sql
from .parameters import claim_values, in_claim_order, positions_as_values
from .session import Session


class Claiming(Session):
    """Used by workers, and by loops written by hand."""

    def claim(self, *, queue_names: Sequence[str], limit: int, worker_id: str) -> list[ClaimedJob]:
        """Claim up to `limit` jobs: the queues in the listed order, within each queue the highest priority first."""
        values = claim_values(queue_names, after={}, limit=limit, worker_id=worker_id)
        return in_claim_order(starmap(ClaimedJob, self.rows(sql.CLAIM, values)), queue_names)

    def take_over(self, suspect: LeaseRef, *, worker_id: str) -> ClaimedJob | None:
        """Claim a job that another worker has claimed and not begun. `None`: that lease has ended."""
        id, lease = suspect
        rows = self.rows(sql.TAKE_OVER, {"id": id, "lease": lease, "worker_id": worker_id})
        return ClaimedJob(*rows[0]) if rows else None

    def queues_with_jobs(self, *, after: str = "", limit: int | None = None, with_paused: bool = False) -> list[str]:
        """The names of the queues with jobs to claim: at most `limit` names, alphabetically after `after`.

        `with_paused`: also those that are paused, whose jobs nobody claims now.
        """
        values = {"after": after, "limit": limit, "with_paused": with_paused}
        return [name for (name,) in self.rows(sql.QUEUES_WITH_JOBS, values)]

    def first_in_queues(
        self, queue_names: Sequence[str], *, after: Mapping[str, QueuePosition], seconds: float
    ) -> list[tuple[str, int | None, QueuePosition]]:
        """Find the first job to claim in each queue, searching from the queue's position in `after`.

        Returns (queue name, job id, position of the job). For a queue without such a job the id is None, and the
        position is that of a job of priority 0 that is due now. `seconds` replaces the connection's statement timeout.
        """
        with transaction.atomic(using=self.alias):
            self.limit_statements(seconds)
            rows = self.rows(sql.FIRST_IN_QUEUES, positions_as_values(queue_names, after))
        return [(name, id, QueuePosition(*position)) for name, id, *position in rows]

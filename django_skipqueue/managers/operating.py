"""The verbs of operators, who change what becomes of jobs; what is not in a status that allows it stays as it is."""

from collections.abc import Iterable

from django.db import IntegrityError, transaction

from .. import sql
from ..payload import shorten
from .notifications import wake
from .statements import Statements


class Operating(Statements):
    """For the admin, and for whoever calls a job's own methods."""

    def retry(self, ids: Iterable[int]) -> set[int]:
        """Put failed and discarded jobs back into their queues; the ids that were.

        Left as they are: jobs in another status, and those whose unique key a job that is not finished holds.
        """
        chosen = list(ids)
        for _ in range(10):
            try:
                with transaction.atomic(using=self.db):
                    rows = self._rows(sql.RETRY, {"ids": chosen})
            except IntegrityError:
                continue  # somebody took one of the unique keys meanwhile; the next look sees it
            wake(self.db, (queue_name for _, queue_name in rows))
            return {id for id, _ in rows}
        raise IntegrityError(
            "The unique keys of these jobs are being taken by others again and again; retry them singly."
        )

    def discard(self, ids: Iterable[int], *, reason: str = "Discarded by hand.") -> set[int]:
        """Finish scheduled and queued jobs without running them; the ids that were."""
        return {id for (id,) in self._rows(sql.DISCARD, {"ids": list(ids), "reason": shorten(reason)})}

    def cancel(self, ids: Iterable[int], *, reason: str = "Cancelled by hand.") -> set[int]:
        """Discard jobs that are not finished; the ids that were. A worker ends those that run within a second or so."""
        return {id for (id,) in self._rows(sql.CANCEL, {"ids": list(ids), "reason": shorten(reason)})}

"""The methods that release claimed jobs."""

from collections.abc import Iterable
from datetime import datetime

from ..events.events import JobsReleased
from ..values.records import LeaseRef
from . import sql
from .limits import admit_or_announce, with_rates
from .notify import LIMITS_PAYLOAD, notify_supervisors, wake
from .parameters import leases_as_values
from .statements import Statements


class Releasing(Statements):
    """Used by workers, by loops written by hand, and by supervisors after a worker died."""

    def release(self, leases: Iterable[LeaseRef], *, interrupted: bool = False, later: bool = False) -> set[int]:
        """Put jobs back into their queues without charging the attempt. Returns the ids whose lease was still valid.

        `interrupted`: the jobs were running. Their rows keep that, for the people who look at them later.
        `later`: they wait for up to 10 seconds first, and give up their permits meanwhile.
        """
        values = {**leases_as_values(leases), "interrupted": interrupted, "later": later}
        return self._released(self.rows(*self.chosen(sql.RELEASE, sql.RELEASE_CARRIED, values)), later=later)

    def release_orphans(
        self, worker_id: str, *, known: Iterable[int], claimed_until: datetime | None = None
    ) -> set[int]:
        """Release the jobs that a worker holds, except `known`: those not started, or whose claim's answer was lost.

        claimed_until: only those that were claimed at this time or before it, by the database's clock.
        """
        values = {"worker_id": worker_id, "known": list(known), "claimed_until": claimed_until}
        return self._released(self.rows(sql.RELEASE_ORPHANS, values))

    def _released(self, rows: list[tuple[int, str, str | None]], *, later: bool = False) -> set[int]:
        """Notify the workers of the queues of these jobs, admit by their keys, and send the event. Returns the ids."""
        if rows and later:
            notify_supervisors(self, LIMITS_PAYLOAD)  # the jobs are due soon, and their permits are free
        else:
            wake(self, (queue_name for _, queue_name, key in rows if key is None))
            if keys := {key for _, _, key in rows if key is not None}:
                wake(self, with_rates(self, admit_or_announce(self, sorted(keys))))
        ids = [id for id, *_ in rows]
        if ids:
            self.send(JobsReleased(self.alias, ids))
        return set(ids)

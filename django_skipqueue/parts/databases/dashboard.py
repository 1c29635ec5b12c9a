"""The table "Databases" of a queue in several: the numbers of each, and their sum.

Invariant: one that cannot be reached, or does not answer in time, has a line without numbers. The others have theirs.
All are read at once, so the page takes as long as the slowest of them, and no longer than `SECONDS` for all.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now

from ...conf import settings, using_database
from ...console.admin.dashboard import Situation
from ...console.admin.ui.addresses import address_of
from ...console.at_once import read_at_once
from ...console.counts import Count, grouped
from ...console.durations import roughly
from ...console.job_states import Indexed
from ...console.queues_and_workers import Workforce
from ...console.rules.verdict import Verdict
from ...models import Status
from ...queue.observe import queues_now
from ...queue.session import short_transaction
from ...queue.store import Store

CONNECT_SECONDS = 0.5
"""To reach a database: so much one costs that is down."""

QUERY_SECONDS, VERDICT_SECONDS, SECONDS = 1.0, 0.5, 2.0
"""For each query of one database, for its verdict, and for all of them with the time to connect."""

DAY = timedelta(hours=24)
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Numbers:
    queued: int
    running: int
    failed: Count
    waits: float
    """For how many seconds the oldest job has been due; 0: none waits."""
    workers: int
    problems: int
    """The problems that the verdict names."""

    @classmethod
    def now(cls, store: Store) -> "Numbers":
        """The numbers of the database that is used in this thread. Raises `DatabaseError` if it does not answer."""
        problems = len(Verdict.now(store, seconds=VERDICT_SECONDS).problems)
        with short_transaction(store, QUERY_SECONDS):
            queues = queues_now(store)
            return cls(
                queued=sum(queue.queued for queue in queues),
                running=sum(queue.running for queue in queues),
                failed=Indexed.covering(Status.FAILED).count(Q(finished_at__gte=Now() - DAY)),
                waits=max((queue.oldest or 0.0 for queue in queues), default=0.0),
                workers=len(Workforce.now().runners),
                problems=problems,
            )

    @classmethod
    def sum(cls, all_of_them: "list[Numbers]") -> "Numbers":
        """The sum; of the times, the longest."""
        failed = Count(
            sum(each.failed.shown for each in all_of_them), any(each.failed.is_capped for each in all_of_them)
        )
        return cls(
            queued=sum(each.queued for each in all_of_them),
            running=sum(each.running for each in all_of_them),
            failed=failed,
            waits=max((each.waits for each in all_of_them), default=0.0),
            workers=sum(each.workers for each in all_of_them),
            problems=sum(each.problems for each in all_of_them),
        )

    @property
    def cells(self) -> list[str]:
        oldest = roughly(self.waits) if self.waits > 0 else NOTHING
        first, last = (self.queued, self.running), (self.workers, self.problems)
        return [*map(grouped, first), str(self.failed), oldest, *map(grouped, last)]


def databases(_: Situation) -> dict[str, Any] | None:
    """The numbers of each, `None` for one that cannot be reached, and their sum; `None`: there is one database."""
    if not settings.serves_several:
        return None
    found = read_at_once(settings.served_databases, Numbers.now, connect_seconds=CONNECT_SECONDS, seconds=SECONDS)
    rows = [
        {
            "alias": alias,
            "address": _dashboard_of(alias),
            "is_retiring": alias in settings.retiring,
            "numbers": numbers,
        }
        for alias, numbers in found.items()
    ]
    return {"rows": rows, "sum": Numbers.sum([numbers for numbers in found.values() if numbers is not None])}


def _dashboard_of(alias: str) -> str:
    with using_database(alias):
        return address_of("job_dashboard")

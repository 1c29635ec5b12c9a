"""The dashboard's table of databases: the numbers of each database, and their sum.

The page reads all databases at the same time, so it takes as long as the slowest database, at most `DATABASES_SECONDS`.
A database that cannot be reached, or does not respond in time, has a line without numbers.
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
from ...console.facts import NOTHING
from ...console.job_states import Indexed
from ...console.queues_and_workers import Workforce
from ...console.rules.verdict import Verdict
from ...models import Status
from ...queue.observe import queues_now
from ...queue.session import short_transaction
from ...queue.store import Store

DATABASE_CONNECT_SECONDS = 0.5
"""The longest time in seconds to connect to a database. If the database is down, connecting takes this long."""

DATABASE_QUERY_SECONDS, DATABASE_VERDICT_SECONDS, DATABASES_SECONDS = 1.0, 0.5, 2.0
"""The longest time in seconds for one query, for one database's verdict, and for everything."""


@dataclass(frozen=True)
class Numbers:
    queued: int
    running: int
    failed: Count
    waits: float
    """How many seconds the oldest job has been due; 0 if no job waits."""
    workers: int
    problems: int
    """The number of problems in the verdict."""

    @classmethod
    def now(cls, store: Store) -> "Numbers":
        """Read the numbers of this thread's database. Raises `DatabaseError` if it does not respond."""
        problems = len(Verdict.now(store, seconds=DATABASE_VERDICT_SECONDS).problems)
        with short_transaction(store, DATABASE_QUERY_SECONDS):
            queues = queues_now(store)
            return cls(
                queued=sum(queue.queued for queue in queues),
                running=sum(queue.running for queue in queues),
                failed=Indexed.covering(Status.FAILED).count(Q(finished_at__gte=Now() - timedelta(hours=24))),
                waits=max((queue.oldest or 0.0 for queue in queues), default=0.0),
                workers=len(Workforce.now().runners),
                problems=problems,
            )

    @classmethod
    def sum(cls, of_databases: "list[Numbers]") -> "Numbers":
        """Add up the numbers of all databases, and take the longest waiting time."""
        failed = [numbers.failed for numbers in of_databases]
        return cls(
            queued=sum(numbers.queued for numbers in of_databases),
            running=sum(numbers.running for numbers in of_databases),
            failed=Count(sum(count.shown for count in failed), any(count.is_capped for count in failed)),
            waits=max((numbers.waits for numbers in of_databases), default=0.0),
            workers=sum(numbers.workers for numbers in of_databases),
            problems=sum(numbers.problems for numbers in of_databases),
        )

    @property
    def cells(self) -> list[str]:
        oldest = roughly(self.waits) if self.waits > 0 else NOTHING
        return [
            grouped(self.queued),
            grouped(self.running),
            str(self.failed),
            oldest,
            grouped(self.workers),
            grouped(self.problems),
        ]


def databases(_: Situation) -> dict[str, Any] | None:
    """Return a row for each database, without numbers if it cannot be reached, and the sum of the rows.

    With one database, return `None`.
    """
    if not settings.serves_several:
        return None
    numbers_by_alias = read_at_once(
        settings.served_databases, Numbers.now, connect_seconds=DATABASE_CONNECT_SECONDS, seconds=DATABASES_SECONDS
    )
    rows = [
        {"alias": alias, "address": _dashboard_of(alias), "is_retiring": alias in settings.retiring, "numbers": numbers}
        for alias, numbers in numbers_by_alias.items()
    ]
    return {"rows": rows, "sum": Numbers.sum([numbers for numbers in numbers_by_alias.values() if numbers is not None])}


def _dashboard_of(alias: str) -> str:
    with using_database(alias):
        return address_of("job_dashboard")

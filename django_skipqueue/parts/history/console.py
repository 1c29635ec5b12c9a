"""The history, for operators: the rates of queues, a check of the doctor, metrics, and what the admin shows of it."""

from collections.abc import Iterator

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from psycopg.sql import Identifier

from ...console.counts import grouped
from ...console.doctor.finding import Check, Finding, Severity, statement
from ...console.parts import PartCard, PartConsole, PartSection
from ...console.queues_and_workers import QueueRate
from ...events.log_format import printable
from ...queue.store import Store
from ...values import counting
from ...values.part import later
from .claim_costs import claim_costs
from .metrics import SCRAPED, known_queues

# pages → the roll-ups of each queue, and of all (an empty name), of the current minute and the `minutes` before it: the
# name, the number of jobs that ended, the minutes since the first of these began, the histogram of the waiting times.
# Index: prune of the roll-ups.
RATES_NOW = """
SELECT queue_name, ended, date_part('epoch', statement_timestamp() - first_minute) / 60, waited
FROM (
    SELECT queue_name, task, completed + failed + discarded AS ended, waited, first_minute
    FROM
        skipqueue_rollup,
        (SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => %(minutes)s)) AS age (first_minute)
    WHERE span = 60 AND starts_at >= first_minute
    ORDER BY starts_at DESC
    LIMIT 20000
) AS recent
WHERE task = ''
"""

RATE_MINUTES = 5
"""Whole minutes before the current one over which a rate is taken."""


def queue_rates(store: Store) -> dict[str, QueueRate]:
    """See `PartConsole.queue_rates`."""
    rates: dict[str, QueueRate] = {}
    for name, ended, minutes, waited in store.rows(RATES_NOW, {"minutes": RATE_MINUTES}):
        known = rates.get(name, QueueRate(0.0, counting.empty()))
        times = counting.added(known.waited, waited or counting.empty())
        rates[name] = QueueRate(known.per_minute + ended / minutes, times)
    return rates


MANY_PAGES = 2_000
"""Pages that the search of a claim may read: 16 MB."""


def expensive_claims(store: Store) -> Iterator[Finding]:
    for cost in claim_costs(store):
        if cost.pages > MANY_PAGES:
            yield Finding.of(
                Severity.WARNING,
                gettext("Claims of queue %(queue)s read many pages"),
                gettext(
                    "To find 100 jobs, a claim reads %(pages)s pages and %(entries)s index entries. A few hundred are "
                    "usual; the others belong to dead rows."
                ),
                gettext(
                    "Vacuum the table. If its dead rows stay, something holds an old snapshot: see the other findings."
                ),
                statement("VACUUM (VERBOSE, ANALYZE) {table};", table=Identifier("skipqueue_job")),
                facts={
                    "queue": printable(cost.queue_name),
                    "pages": grouped(cost.pages),
                    "entries": grouped(cost.rows),
                },
            )


DASHBOARD, FAILURES = f"{__package__}.dashboard", f"{__package__}.failures"
"""Modules that need the admin: a command does not import them."""

CONSOLE = PartConsole(
    checks=(Check("expensive-claims", expensive_claims, _("Claims read few pages")),),
    metrics=SCRAPED,
    known_queues=known_queues,
    queue_rates=queue_rates,
    pages=later(f"{FAILURES}.pages"),
    about_job=later(f"{FAILURES}.failures_like"),
    cards=(
        PartCard(make=later(f"{DASHBOARD}.rate"), after="running"),
        PartCard(make=later(f"{DASHBOARD}.recovered"), after="failed"),
    ),
    sections=(
        PartSection(
            name="charts",
            template="admin/django_skipqueue/history/charts.html",
            content=later(f"{DASHBOARD}.charts"),
        ),
        PartSection(
            name="failing",
            template="admin/django_skipqueue/history/failing.html",
            content=later(f"{FAILURES}.top_causes"),
            css="django_skipqueue/history/failures.css",
        ),
        PartSection(
            name="slowest_tasks",
            template="admin/django_skipqueue/history/slowest_tasks.html",
            content=later(f"{DASHBOARD}.slowest_tasks"),
            after="longest_jobs",
        ),
    ),
)

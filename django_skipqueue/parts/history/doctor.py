"""The check of the doctor that reads what claims have cost."""

from collections.abc import Iterator

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from psycopg.sql import Identifier

from ...console.counts import grouped
from ...console.doctor.finding import Check, Finding, Severity, statement
from ...events.log_format import printable
from ...queue.store import Store
from .claim_costs import claim_costs

MANY_PAGES = 2_000
"""Pages that the search of a claim may read: 16 MB."""


def expensive_claims(store: Store) -> Iterator[Finding]:
    for cost in claim_costs(store):
        if cost.pages > MANY_PAGES:
            yield Finding(
                "expensive-claims",
                Severity.WARNING,
                gettext("Claims of queue %(queue)s read many pages") % {"queue": printable(cost.queue_name)},
                gettext(
                    "To find 100 jobs, a claim reads %(pages)s pages and %(entries)s index entries. A few hundred are "
                    "usual; the others belong to dead rows."
                )
                % {"pages": grouped(cost.pages), "entries": grouped(cost.rows)},
                gettext(
                    "Vacuum the table. If its dead rows stay, something holds an old snapshot: see the other findings."
                ),
                statement("VACUUM (VERBOSE, ANALYZE) {table};", table=Identifier("skipqueue_job")),
            )


CHECK = Check("expensive-claims", expensive_claims, _("Claims read few pages"))

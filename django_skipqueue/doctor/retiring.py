"""A database in `RETIRING`: how many of its jobs are left, and when it can be taken out."""

from collections.abc import Iterator

from django.utils.translation import gettext

from ..placement.retirement import in_figures, unfinished
from ..store import Store
from .finding import Finding, Severity


def retiring(store: Store) -> Iterator[Finding]:
    """Say what is left in this database. There is a finding in any case."""
    if left := unfinished(store.alias):
        yield Finding(
            "retiring-database",
            Severity.INFO,
            gettext("A database that gets no new jobs has unfinished ones"),
            gettext("Jobs left in %(database)s: %(number)s.") % {"database": store.alias, "number": in_figures(left)},
            gettext(
                "Leave it in SKIPQUEUE['RETIRING'] until workers have run them. Discard those that fail again and "
                "again, or that are years ahead."
            ),
            "python manage.py skipqueue status",
        )
    else:
        yield Finding(
            "retiring-database",
            Severity.INFO,
            gettext("A database that gets no new jobs is empty"),
            gettext("None of the jobs in %(database)s is unfinished.") % {"database": store.alias},
            gettext(
                "Take it out of SKIPQUEUE['RETIRING']. The history of its jobs is shown only as long as it is listed."
            ),
        )

"""Several databases, for operators: pages of each, a table of all, and what the doctor says of one that is to go.

What needs Django's admin is imported when the admin asks for it: a project may have none, and the commands work there.
"""

from collections.abc import Callable, Iterator
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.doctor.finding import Check, Finding, Severity
from ...console.parts import PartConsole, PartSection
from ...queue.store import Store
from ...values.records import EncodedCall, JobSpec
from .retirement import in_figures, unfinished


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


def is_retiring(alias: str) -> bool:
    return alias in settings.retiring


def numbers(_: Any) -> Any:
    from .dashboard import Databases

    return Databases.now()


def admin_view(model_admin: Any, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    from .addresses import in_its_database

    return in_its_database(model_admin, view)


def why_held_elsewhere(job: Any, spec: JobSpec, call: EncodedCall) -> str:
    from . import keys

    return keys.why_held_elsewhere(job, spec, call)


CONSOLE = PartConsole(
    checks=(Check("retiring-database", retiring, _("No database is in RETIRING"), concerns=is_retiring),),
    sections=(
        PartSection(
            name="databases",
            template="admin/django_skipqueue/databases/dashboard.html",
            content=numbers,
            after="",
        ),
    ),
    admin_view=admin_view,
    why_held_elsewhere=why_held_elsewhere,
)

"""Several databases, for operators: pages of each, a table of all, and what the doctor says of one that is to go.

What needs Django's admin is imported when the admin asks for it: a project may have none, and the commands work there.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.parts import PartConsole, PartSection, why_existing
from ...console.rules.rule import Finding, Rule, Severity
from ...exceptions import InvalidArguments, InvalidOption, UnknownTask
from ...jobs.placement import database_of_key
from ...jobs.registry import registry
from ...models import Job
from ...queue.store import Store
from ...queue.unique_keys import unique_keys
from ...values.part import later
from ...values.records import EncodedCall, JobSpec
from .checks import in_figures, unfinished


def retiring(store: Store) -> Iterator[Finding]:
    """Say what is left in this database. There is a finding in any case."""
    if left := unfinished(store.alias):
        title = gettext("A database that gets no new jobs has unfinished ones")
        found = gettext("Jobs left in %(database)s: %(number)s.")
        advice = gettext(
            "Leave it in SKIPQUEUE['RETIRING'] until workers have run them. Discard those that fail again and "
            "again, or that are years ahead."
        )
        command = "python manage.py skipqueue status"
    else:
        title = gettext("A database that gets no new jobs is empty")
        found = gettext("None of the jobs in %(database)s is unfinished.")
        advice = gettext(
            "Take it out of SKIPQUEUE['RETIRING']. The history of its jobs is shown only as long as it is listed."
        )
        command = ""
    found = found % {"database": store.alias, "number": in_figures(left)}
    yield Finding("retiring-database", Severity.INFO, title, found, advice, command)


def why_held_elsewhere(job: Any, spec: JobSpec, call: EncodedCall) -> str:
    """Why this copy of the job cannot be made: a job in another database holds its unique key. Empty if none does.

    A copy stays in the database of its job, since its key lives there. Only the key of a job from before a change of
    `DATABASES` may belong to another one by now.
    """
    from ...console.admin.verbs.copies import unreachable

    if call.unique_key is None:
        return ""
    task = None
    with suppress(UnknownTask):
        task = registry.get(spec.task)
    try:
        alias = database_of_key(spec, call, task)
    except (InvalidArguments, InvalidOption):  # the task takes other arguments by now: its key has no database
        return ""
    if alias == settings.database:
        return ""
    if reason := unreachable(alias):
        return reason
    holders = Job.objects.using(alias).filter(pk__in=unique_keys().held(alias, [call.unique_key]).values())
    return next((why_existing(job, holder) for holder in holders), "")


CONSOLE = PartConsole(
    rules=(
        Rule(
            "retiring-database",
            retiring,
            _("No database is in RETIRING"),
            concerns=lambda alias: alias in settings.retiring,
        ),
    ),
    sections=(
        PartSection(
            name="databases",
            template="admin/django_skipqueue/databases/dashboard.html",
            content=later(f"{__package__}.dashboard.databases"),
            after="",
        ),
    ),
    carried=later(f"{__package__}.addresses.carried"),
    over_page=later(f"{__package__}.addresses.switch"),
    admin_view=later(f"{__package__}.addresses.in_its_database"),
    why_held_elsewhere=why_held_elsewhere,
)

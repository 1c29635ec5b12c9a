"""What operators see of several databases: pages for each, a table of all databases, and a rule about `RETIRING`.

`later` delays imports that need Django's admin, so that the commands work in a project without the admin.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.parts import PartConsole, PartSection, unreachable, why_existing
from ...console.rules.rule import Finding, Rule, Severity
from ...exceptions import InvalidArguments, InvalidOption, UnknownTask
from ...jobs.placement import database_of_key
from ...jobs.registry import registry
from ...models import Job
from ...queue.store import Store
from ...queue.unique_keys import unique_keys
from ...values.part import later
from ...values.records import EncodedCall, JobSpec
from .checks import capped_number, count_unfinished


def retiring_database(store: Store) -> Iterator[Finding]:
    """Say how many unfinished jobs are left in this database."""
    if unfinished := count_unfinished(store.alias):
        title = gettext("A retiring database still has unfinished jobs")
        details = gettext("Jobs left in %(database)s: %(number)s.")
        advice = gettext(
            "Leave it in SKIPQUEUE['RETIRING'] until workers have run them. Discard jobs that fail again and again, or "
            "that are scheduled years ahead."
        )
        command = "python manage.py skipqueue status"
    else:
        title = gettext("A retiring database has no unfinished jobs")
        details = gettext("All jobs in %(database)s are finished.")
        advice = gettext(
            "Remove it from SKIPQUEUE['RETIRING']. From then on, the history of its jobs is no longer shown."
        )
        command = ""
    details = details % {"database": store.alias, "number": capped_number(unfinished)}
    yield Finding("retiring-database", Severity.INFO, title, details, advice, command)


def why_held_elsewhere(job: Any, spec: JobSpec, call: EncodedCall) -> str:
    """Return why the job cannot be copied, if a job in another database holds its unique key; otherwise "".

    A copy stays in the database of its job, because its key belongs there. But if `DATABASES` has changed since the job
    was enqueued, its key may now belong to another database.
    """
    if call.unique_key is None:
        return ""
    task = None
    with suppress(UnknownTask):
        task = registry.get(spec.task)
    try:
        alias = database_of_key(spec, call, task)
    except (InvalidArguments, InvalidOption):  # the task has other arguments now, so its key has no database
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
            retiring_database,
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
    carried_parameters=later(f"{__package__}.addresses.carried_parameters"),
    over_page=later(f"{__package__}.addresses.switch"),
    admin_view=later(f"{__package__}.addresses.in_its_database"),
    why_held_elsewhere=why_held_elsewhere,
)

"""What several databases give to operators: pages of each database, a table of all, and a rule about retiring ones.

`later` imports what needs Django's admin, so that the commands work in a project without the admin.
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
    """Say how many jobs are left in this database."""
    if left := count_unfinished(store.alias):
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
    found = found % {"database": store.alias, "number": capped_number(left)}
    yield Finding("retiring-database", Severity.INFO, title, found, advice, command)


def why_held_elsewhere(job: Any, spec: JobSpec, call: EncodedCall) -> str:
    """Return why no copy of the job can be made: a job in another database holds its unique key; else return "".

    A copy stays in the database of its job, since its key belongs there. Only the key of a job from before a change of
    `DATABASES` may belong to another database by now.
    """
    if call.unique_key is None:
        return ""
    task = None
    with suppress(UnknownTask):
        task = registry.get(spec.task)
    try:
        alias = database_of_key(spec, call, task)
    except (InvalidArguments, InvalidOption):  # the task takes other arguments by now, so its key has no database
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
    carried=later(f"{__package__}.addresses.carried"),
    over_page=later(f"{__package__}.addresses.switch"),
    admin_view=later(f"{__package__}.addresses.in_its_database"),
    why_held_elsewhere=why_held_elsewhere,
)

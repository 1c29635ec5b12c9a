"""What the archive adds to the console: a step after `prunejobs`, and the URL of an archived job's page."""

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.admin.ui.addresses import address_of
from ...console.parts import BarEntry, PartConsole
from ...console.search import is_id
from ...models import ArchivedJob
from ...queue.store import Store
from .move import keep_partitions


def keep_all_partitions(store: Store) -> None:
    try:
        while keep_partitions(store):
            pass
    except DatabaseError as error:
        raise CommandError(f"The partitions of the archive could not be made or dropped: {error}") from None


def page_of(request: HttpRequest, job_id: str, site: str) -> str:
    may_view = request.user.has_perm("django_skipqueue.view_archivedjob")
    if may_view and is_id(job_id) and ArchivedJob.objects.filter(pk=job_id).exists():
        return address_of("archivedjob_change", job_id, site=site)
    return ""


CONSOLE = PartConsole(
    pruned=lambda: {"archived": settings.has_archive},
    after_prune=keep_all_partitions,
    find_job=page_of,
    bar_entries=(
        BarEntry(
            label=_("Archive"),
            page="archivedjob_changelist",
            place=25,
            permission="view_archivedjob",
            is_shown=lambda: settings.has_archive,
            below="job_changelist",
        ),
    ),
)

"""The navigation bar above every page. Each entry shows how many problems its page has. Parts add entries."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..parts import BarEntry, consoles
from ..rules.verdict import Verdict
from .notices import notices_cache
from .ui.addresses import PAGE_NAME_PREFIX, address_of

DOCTOR_ENTRY = BarEntry(label=_("Doctor"), page="job_doctor", place=90)
"""The entry of the doctor's page. It shows the number of all current problems."""

BAR_ENTRIES = (
    BarEntry(label=_("Dashboard"), page="job_dashboard", place=10),
    BarEntry(
        label=_("Jobs"),
        page="job_changelist",
        place=20,
        rules=("orphaned-job", "retry-storm", "unknown-task"),
    ),
    BarEntry(
        label=_("Queues"),
        page="queue_changelist",
        place=40,
        permission="view_queue",
        rules=("queue-without-worker", "paused-queue", "long-wait", "growing-queue"),
    ),
    BarEntry(
        label=_("Workers"),
        page="worker_changelist",
        place=50,
        permission="view_worker",
        rules=("no-worker", "late-worker", "dead-worker", "worker-deaths", "no-free-slot"),
    ),
    DOCTOR_ENTRY,
)
"""The entries that the console itself adds. Parts add more."""


@dataclass(frozen=True)
class BarLink:
    entry: BarEntry
    address: str
    current: str
    """The value of `aria-current`: `page` on the entry's own page, `true` on a page below it, otherwise empty."""
    problems: Verdict
    """The current problems that concern the entry's page."""


@dataclass(frozen=True)
class Bar:
    links: Sequence[BarLink]
    below: Sequence[BarLink]
    """Links to the pages below the current page."""

    @classmethod
    def of(cls, request: HttpRequest, site: str | None) -> "Bar":
        """Build the bar from the entries that this user may see."""
        match, has_permission = request.resolver_match, request.user.has_perm
        page = ((match and match.url_name) or "").removeprefix(PAGE_NAME_PREFIX)
        entries_of_parts = (entry for part in consoles() for entry in part.bar_entries)
        entries = sorted([*BAR_ENTRIES, *entries_of_parts], key=lambda entry: entry.place)
        visible_entries = [
            entry for entry in entries if has_permission(f"django_skipqueue.{entry.permission}") and entry.is_shown()
        ]
        current = max(visible_entries, key=lambda entry: entry.nearness(page), default=None)
        current = current if current and current.nearness(page) else None
        verdict = notices_cache.get()

        def link(entry: BarEntry) -> BarLink:
            is_above = current is not None and entry.page in (current.page, current.below)
            aria_current = "page" if entry.page == page else ("true" if is_above else "")
            problems = [problem for problem in verdict.problems if entry is DOCTOR_ENTRY or problem.code in entry.rules]
            return BarLink(entry, address_of(entry.page, site=site), aria_current, Verdict(tuple(problems)))

        entries_below = [entry for entry in visible_entries if current and entry.below == current.page]
        return cls(
            [link(entry) for entry in visible_entries if not entry.below], [link(entry) for entry in entries_below]
        )

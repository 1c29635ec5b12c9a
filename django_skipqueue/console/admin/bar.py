"""The bar over every page of ours: its entries, those of parts among them, each with the number of what is wrong there.

Invariant: if the queue's database does not answer in time, the bar has no numbers, and the page is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from ...queue.store import Store
from ..parts import BarEntry, Trouble, consoles
from .notices import notices_cache
from .ui.addresses import PREFIX, address_of
from .ui.cached import CachedRead

MOST_SHOWN = 99
"""A larger number is shown as `99+`."""


def _late_workers(_: Store) -> Trouble:
    notices = notices_cache.get()
    return Trouble(len(notices.late_workers) if notices else 0)


def _problems(_: Store) -> Trouble:
    """What the notices say. A pause is on purpose."""
    notices = notices_cache.get()
    if notices is None:
        return Trouble(0)
    critical = len(notices.no_free_slot) + len(notices.of_parts) + (notices.no_worker is not None)
    return Trouble(critical + bool(notices.late_workers), is_critical=critical > 0)


ENTRIES = (
    BarEntry(label=_("Dashboard"), page="job_dashboard", place=10),
    BarEntry(label=_("Jobs"), page="job_changelist", place=20),
    BarEntry(label=_("Queues"), page="queue_changelist", place=40, permission="view_queue"),
    BarEntry(
        label=_("Workers"),
        page="worker_changelist",
        place=50,
        permission="view_worker",
        trouble=_late_workers,
        in_words=ngettext_lazy("%(number)d worker is late or dead", "%(number)d workers are late or dead", "number"),
    ),
    BarEntry(
        label=_("Doctor"),
        page="job_doctor",
        place=90,
        trouble=_problems,
        in_words=ngettext_lazy("%(number)d problem", "%(number)d problems", "number"),
    ),
)
"""The entries of the console. Their numbers come from the notices, which are read once in a few seconds."""


def _of_parts() -> list[BarEntry]:
    return [entry for part in consoles() for entry in part.bar_entries]


def _read_troubles() -> dict[str, Trouble]:
    store = Store.default()
    return {entry.page: entry.trouble(store) for entry in _of_parts() if entry.trouble and entry.is_shown()}


troubles_of_parts = CachedRead(_read_troubles)


@dataclass(frozen=True)
class BarLink:
    entry: BarEntry
    address: str
    current: str
    """The value of `aria-current`: `page`; `true` on a page below it; else empty."""
    trouble: Trouble

    @property
    def number(self) -> str:
        """What is wrong there, in figures; empty if nothing is."""
        number = self.trouble.number
        return f"{MOST_SHOWN}+" if number > MOST_SHOWN else str(number or "")

    @property
    def in_words(self) -> str:
        return str(self.entry.in_words % {"number": self.trouble.number})


@dataclass(frozen=True)
class Bar:
    links: Sequence[BarLink]
    below: Sequence[BarLink]
    """Links to the pages that are reached from this one."""

    @classmethod
    def of(cls, request: HttpRequest, site: str | None) -> "Bar":
        """The entries that the user may see."""
        match, may = request.resolver_match, request.user.has_perm
        page = ((match and match.url_name) or "").removeprefix(PREFIX)
        entries = sorted([*ENTRIES, *_of_parts()], key=lambda entry: entry.place)
        shown = [entry for entry in entries if may(f"django_skipqueue.{entry.permission}") and entry.is_shown()]
        current = max(shown, key=lambda entry: entry.nearness(page), default=None)
        current = current if current and current.nearness(page) else None
        troubles = {entry.page: entry.trouble(Store.default()) for entry in ENTRIES if entry.trouble}
        troubles |= troubles_of_parts.get() or {}

        def link(entry: BarEntry) -> BarLink:
            is_above = current is not None and entry.page in (current.page, current.below)
            mark = "page" if entry.page == page else "true" if is_above else ""
            return BarLink(entry, address_of(entry.page, site=site), mark, troubles.get(entry.page, Trouble(0)))

        below = [entry for entry in shown if current and entry.below == current.page]
        return cls([link(entry) for entry in shown if not entry.below], [link(entry) for entry in below])

"""The verdict over every page of the admin. A process applies the rules again after a few seconds."""

import time
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.utils import quote
from django.utils import timezone
from django.utils.translation import get_language

from ...conf import settings, using_database
from ...queue.store import Store
from ..durations import roughly
from ..rules.rule import Finding
from ..rules.verdict import Verdict
from .ui.addresses import address_of

CACHE_SECONDS = 5.0
"""How long a process shows the same verdict before it applies the rules again."""

UNFOLDED = 2
"""Problems that are shown at once. The others are folded."""


@dataclass(frozen=True)
class ShownProblem:
    finding: Finding
    address: str
    """Of the page that shows it; empty: there is none, or the user may not view it."""

    @classmethod
    def to(cls, user: Any, finding: Finding) -> "ShownProblem":
        if finding.link is None or not user.has_perm(f"django_skipqueue.view_{finding.link.name.partition('_')[0]}"):
            return cls(finding, "")
        with using_database(finding.database or settings.database):
            return cls(
                finding, address_of(finding.link.name, *map(quote, finding.link.arguments), query=finding.link.query)
            )

    @property
    def lasts(self) -> str:
        """For how long it is known; empty: nobody knows."""
        return roughly(timezone.now() - self.finding.since) if self.finding.since else ""


class _Cache:
    def __init__(self) -> None:
        self._cached: dict[tuple[str, str | None], tuple[float, Verdict]] = {}  # of which database, in which language

    def get(self) -> Verdict:
        """The verdict on the database that is shown, a few seconds old at most. Two threads may query at once."""
        key = (settings.database, get_language())
        at, verdict = self._cached.get(key, (float("-inf"), Verdict(())))
        if time.monotonic() - at >= CACHE_SECONDS:
            verdict = Verdict.now(Store.default())
            self._cached[key] = (time.monotonic(), verdict)
        return verdict

    def clear(self) -> None:
        self._cached.clear()


notices_cache = _Cache()

"""The notices above every admin page: the current problems, and the other databases that have problems.

Each process caches them for a few seconds, before it applies the rules again.
"""

import time
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.utils import quote
from django.utils.translation import get_language

from ...conf import settings, using_database
from ...queue.store import Store
from ..durations import roughly
from ..rules.examination import examine_at_once
from ..rules.rule import Finding
from ..rules.verdict import Verdict
from .ui.addresses import address_of

CACHE_SECONDS = 5.0
"""A process applies the rules again if its cached verdict is this old."""

UNFOLDED = 2
"""The page shows this many problems, and folds the rest."""


@dataclass(frozen=True)
class ShownProblem:
    finding: Finding
    address: str
    """The URL of the page about the problem; empty if there is none, or the user may not view it."""

    @classmethod
    def to(cls, user: Any, finding: Finding) -> "ShownProblem":
        """Return the finding with the URL of its page, if the user may view this page."""
        if finding.link is None or not user.has_perm(f"django_skipqueue.view_{finding.link.name.partition('_')[0]}"):
            return cls(finding, "")
        with using_database(finding.database or settings.database):
            return cls(
                finding, address_of(finding.link.name, *map(quote, finding.link.arguments), query=finding.link.query)
            )

    @property
    def duration(self) -> str:
        """How long the problem has lasted, in words; empty if that is unknown."""
        return "" if self.finding.seconds is None else roughly(self.finding.seconds)


class _Cache:
    def __init__(self) -> None:
        self._cached: dict[tuple[str, str | None], tuple[float, Verdict]] = {}  # by database and language

    def get(self) -> Verdict:
        """Return the current database's verdict, at most a few seconds old. Two threads may query at once."""
        key = (settings.database, get_language())
        if (verdict := self._fresh(key)) is None:
            verdict = Verdict.now(Store.default())
            self._cached[key] = (time.monotonic(), verdict)
        return verdict

    def elsewhere(self) -> dict[str, Verdict]:
        """Return the other databases' verdicts by alias, at most a few seconds old."""
        keys = [(alias, get_language()) for alias in settings.served_databases if alias != settings.database]
        fresh_verdicts = {key: verdict for key in keys if (verdict := self._fresh(key)) is not None}
        expired_keys = [key for key in keys if key not in fresh_verdicts]
        findings = examine_at_once([alias for alias, _language in expired_keys], only_watched=True)
        for alias, language in expired_keys:
            verdict = Verdict.of(finding for finding in findings if finding.database == alias)
            fresh_verdicts[alias, language] = verdict
            self._cached[alias, language] = (time.monotonic(), verdict)
        return {alias: fresh_verdicts[alias, language] for alias, language in keys}

    def clear(self) -> None:
        self._cached.clear()

    def _fresh(self, key: tuple[str, str | None]) -> Verdict | None:
        """Return the cached verdict, unless it is too old. Another thread may clear the cache at any time."""
        cached_at, verdict = self._cached.get(key, (0.0, None))
        return verdict if time.monotonic() - cached_at < CACHE_SECONDS else None


notices_cache = _Cache()

"""The verdict over every page of the admin, with the other databases that have problems.

A process applies the rules again after a few seconds.
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
"""The age of a verdict at which a process applies the rules again."""

UNFOLDED = 2
"""The number of problems that are shown at once. The page folds the rest."""


@dataclass(frozen=True)
class ShownProblem:
    finding: Finding
    address: str
    """The address of the page about it; empty if there is no such page, or the user may not view it."""

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
        """The time since which it is known, in words; empty if nobody knows."""
        return "" if self.finding.seconds is None else roughly(self.finding.seconds)


class _Cache:
    def __init__(self) -> None:
        self._cached: dict[tuple[str, str | None], tuple[float, Verdict]] = {}  # of which database, in which language

    def get(self) -> Verdict:
        """The verdict on the database that is shown, a few seconds old at most. Two threads may query at once."""
        key = (settings.database, get_language())
        if (verdict := self._fresh(key)) is None:
            verdict = Verdict.now(Store.default())
            self._cached[key] = (time.monotonic(), verdict)
        return verdict

    def elsewhere(self) -> dict[str, Verdict]:
        """The verdicts on the other databases, by their aliases, a few seconds old at most."""
        keys = [(alias, get_language()) for alias in settings.served_databases if alias != settings.database]
        fresh = {key: verdict for key in keys if (verdict := self._fresh(key)) is not None}
        old = [key for key in keys if key not in fresh]
        findings = examine_at_once([alias for alias, _ in old], only_watched=True)
        for key in old:
            fresh[key] = Verdict.of(each for each in findings if each.database == key[0])
            self._cached[key] = (time.monotonic(), fresh[key])
        return {key[0]: fresh[key] for key in keys}

    def clear(self) -> None:
        self._cached.clear()

    def _fresh(self, key: tuple[str, str | None]) -> Verdict | None:
        """The cached verdict, unless it is too old. Another thread may clear the cache at any time."""
        at, verdict = self._cached.get(key, (0.0, None))
        return verdict if time.monotonic() - at < CACHE_SECONDS else None


notices_cache = _Cache()

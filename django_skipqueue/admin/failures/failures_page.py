"""What the page "Failing now" shows, and the part of it that stands on the dashboard."""

from dataclasses import dataclass

from ...store import Store
from .shown_cause import ShownCause

MOST_SHOWN = 100
"""Causes on the page."""

MOST_ON_TOP = 5
"""Causes on the dashboard."""


@dataclass(frozen=True)
class FailuresPage:
    """The causes, those first that failed most often in the last hour, then in 24 hours."""

    causes: list[ShownCause]

    @classmethod
    def now(cls) -> "FailuresPage":
        return cls(_causes(MOST_SHOWN))

    @property
    def is_cut(self) -> bool:
        return len(self.causes) == MOST_SHOWN

    @property
    def most(self) -> int:
        return MOST_SHOWN


def top_causes() -> list[ShownCause]:
    """The first causes, for the template `admin/django_skipqueue/failures/causes.html`."""
    return _causes(MOST_ON_TOP)


def _causes(limit: int) -> list[ShownCause]:
    return [ShownCause(counts) for counts in Store.default().failing(limit=limit)]

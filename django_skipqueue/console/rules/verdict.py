"""The verdict: whether all is well, or what the watched rules find. Every page and command tells it first."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from django.utils.translation import gettext, ngettext

from ...conf import settings
from ...queue.store import Store
from .examination import examine, examine_at_once
from .rule import Finding, Severity

NOT_APPLIED = ("check-failed", "check-timed-out")
"""The codes of findings that a rule could not be applied. The subject is its code."""


@dataclass(frozen=True)
class Verdict:
    problems: tuple[Finding, ...]
    """The worst first."""

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> "Verdict":
        return cls(tuple(each for each in findings if each.is_problem))

    @classmethod
    def now(cls, store: Store | None = None, *, seconds: float | None = None) -> "Verdict":
        """Apply the watched rules: in the database of this store, or in all databases that hold queues, at once.

        Takes about a second at most, or these `seconds`. Raises no database error: that a rule cannot be applied, or a
        database not be used, is a problem as well.
        """
        if store is None and settings.serves_several:
            return cls.of(examine_at_once(settings.served_databases, only_watched=True))
        return cls.of(examine(store or Store.default(), only_watched=True, seconds=seconds))

    @property
    def is_well(self) -> bool:
        return not self.problems

    @property
    def severity(self) -> Severity:
        """That of the worst problem."""
        return self.problems[0].severity if self.problems else Severity.OK

    @property
    def is_unknown(self) -> bool:
        """Whether the database could not be used, or lacks tables."""
        return any(each.code in ("database-unusable", "migrations") for each in self.problems)

    @property
    def unapplied(self) -> list[str]:
        """The codes of the rules that could not be applied."""
        return [each.subject for each in self.problems if each.code in NOT_APPLIED]

    def __str__(self) -> str:
        number = len(self.problems)
        if not number:
            return gettext("All is well.")
        return ngettext("%(number)s problem", "%(number)s problems", number) % {"number": number}

    def as_json(self) -> dict[str, Any]:
        return {"is_well": self.is_well, "problems": [asdict(each) for each in self.problems]}

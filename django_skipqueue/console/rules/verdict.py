"""The verdict: whether all is well, or what the watched rules find. Every page shows it first."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.utils.translation import gettext, ngettext

from ...queue.store import Store
from .examination import examine
from .rule import Finding, Severity

UNAPPLIED_CODES = ("check-failed", "check-timed-out")
"""The codes of the findings that a rule could not be applied. Their subject is the code of this rule."""


@dataclass(frozen=True)
class Verdict:
    problems: tuple[Finding, ...]
    """The worst first. The last problem may be that rules could not be applied."""
    unapplied: tuple[str, ...] = ()
    """The codes of the rules that could not be applied."""

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> "Verdict":
        """The verdict of these findings, which are ordered from the worst on."""
        problems = [each for each in findings if each.is_problem]
        failed = [each for each in problems if each.code in UNAPPLIED_CODES]
        problems = [each for each in problems if each not in failed]
        if failed:
            title = ngettext(
                "The rule %(rule)s could not be applied",
                "%(number)s rules could not be applied, %(rule)s among them",
                len(failed),
            )
            title %= {"rule": failed[0].subject, "number": len(failed)}
            problems.append(replace(failed[0], title=title, command="python manage.py skipqueue doctor"))
        return cls(tuple(problems), tuple(each.subject for each in failed))

    @classmethod
    def now(cls, store: Store, *, seconds: float | None = None) -> "Verdict":
        """Apply the watched rules within about a second, or within `seconds`.

        Raises no database error: a rule that cannot be applied, or a database that cannot be used, is a problem.
        """
        return cls.of(examine(store, only_watched=True, seconds=seconds))

    @property
    def is_well(self) -> bool:
        return not self.problems

    @property
    def severity(self) -> Severity:
        """The severity of the worst problem."""
        return self.problems[0].severity if self.problems else Severity.OK

    @property
    def is_unknown(self) -> bool:
        """Whether the database could not be used, or lacks tables."""
        return any(each.code in ("database-unusable", "migrations") for each in self.problems)

    def __str__(self) -> str:
        number = len(self.problems)
        if not number:
            return gettext("All is well.")
        return ngettext("%(number)s problem", "%(number)s problems", number) % {"number": number}

    def as_json(self) -> dict[str, Any]:
        return {"is_well": self.is_well, "problems": [asdict(each) for each in self.problems]}

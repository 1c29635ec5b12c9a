"""The verdict: all is well, or the problems that the watched rules find. Every page shows the verdict first."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.utils.translation import gettext, ngettext

from ...queue.store import Store
from .examination import examine
from .rule import Finding, Severity

UNAPPLIED_CODES = ("check-failed", "check-timed-out")
"""The codes of findings that say that a rule could not be applied. Their subject is the rule's code."""


@dataclass(frozen=True)
class Verdict:
    problems: tuple[Finding, ...]
    """The worst first. The last problem may be that rules could not be applied."""
    unapplied: tuple[str, ...] = ()
    """The codes of the rules that could not be applied."""

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> "Verdict":
        """Return the verdict of these findings, which are sorted with the worst first."""
        problems = [finding for finding in findings if finding.is_problem]
        unapplied = [finding for finding in problems if finding.code in UNAPPLIED_CODES]
        problems = [finding for finding in problems if finding not in unapplied]
        if unapplied:
            title = ngettext(
                "The rule %(rule)s could not be applied",
                "%(number)s rules could not be applied, %(rule)s among them",
                len(unapplied),
            )
            title %= {"rule": unapplied[0].subject, "number": len(unapplied)}
            problems.append(replace(unapplied[0], title=title, command="python manage.py skipqueue doctor"))
        return cls(tuple(problems), tuple(finding.subject for finding in unapplied))

    @classmethod
    def now(cls, store: Store, *, seconds: float | None = None) -> "Verdict":
        """Apply the watched rules within about a second, or within `seconds`.

        Database errors are not raised: a rule that cannot be applied, or a database that cannot be used, is a problem.
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
        return any(problem.code in ("database-unusable", "migrations") for problem in self.problems)

    def __str__(self) -> str:
        number = len(self.problems)
        if not number:
            return gettext("All is well.")
        return ngettext("%(number)s problem", "%(number)s problems", number) % {"number": number}

    def as_json(self) -> dict[str, Any]:
        return {"is_well": self.is_well, "problems": [asdict(problem) for problem in self.problems]}

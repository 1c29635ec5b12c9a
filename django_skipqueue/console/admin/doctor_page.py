"""What the page of the doctor shows: the findings of this moment, the worst first."""

import time
from dataclasses import dataclass
from datetime import datetime

from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...queue.store import Store
from ..doctor.examination import examine, examine_at_once
from ..doctor.finding import Finding, Severity
from ..durations import span
from .ui.cells import badge

LABELS: dict[Severity, str | Promise] = {
    Severity.CRITICAL: _("critical"),
    Severity.WARNING: _("warning"),
    Severity.INFO: _("info"),
    Severity.OK: _("ok"),
}
"""The label of each severity."""


@dataclass(frozen=True)
class ShownFinding:
    finding: Finding
    database: str = ""
    """The alias of the database, of several; empty: there is only one."""

    @property
    def badge(self) -> SafeString:
        return badge(self.finding.severity, LABELS[self.finding.severity])


@dataclass(frozen=True)
class DoctorPage:
    problems: tuple[ShownFinding, ...]
    well: tuple[ShownFinding, ...]
    """The checks that found nothing."""
    seconds: float
    """How long the examination took."""
    at: datetime

    @classmethod
    def now(cls) -> "DoctorPage":
        at, start = localtime(), time.monotonic()
        shown = _examined()
        return cls(
            tuple(each for each in shown if each.finding.severity != Severity.OK),
            tuple(each for each in shown if each.finding.severity == Severity.OK),
            time.monotonic() - start,
            at,
        )

    @property
    def duration(self) -> str:
        return span(self.seconds)


def _examined() -> list[ShownFinding]:
    """The findings, the worst first; of the same severity, those of each database together."""
    if not settings.serves_several:
        return [ShownFinding(each) for each in examine(Store.default())]
    found = examine_at_once(settings.served_databases)
    shown = [ShownFinding(each, alias) for alias, findings in found.items() for each in findings]
    return sorted(shown, key=lambda each: each.finding.severity.rank)

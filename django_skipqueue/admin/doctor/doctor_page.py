"""What the page of the doctor shows: the findings of this moment, the worst first."""

import time
from dataclasses import dataclass
from datetime import datetime

from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _

from ...doctor import Finding, Severity, examine
from ...operators.durations import span
from ...store import Store
from ..ui.cells import badge

LABELS: dict[Severity, str | Promise] = {
    Severity.CRITICAL: _("critical"),
    Severity.WARNING: _("warning"),
    Severity.INFO: _("info"),
    Severity.OK: _("ok"),
}
"""The label of each severity."""


@dataclass(frozen=True)
class ShownFinding:
    """A finding, with its severity as a word and a colour."""

    finding: Finding

    @property
    def badge(self) -> SafeString:
        """The severity."""
        return badge(self.finding.severity, LABELS[self.finding.severity])


@dataclass(frozen=True)
class DoctorPage:
    """One examination."""

    problems: tuple[ShownFinding, ...]
    well: tuple[Finding, ...]
    """The checks that found nothing."""
    seconds: float
    """How long the examination took."""
    at: datetime

    @classmethod
    def now(cls) -> "DoctorPage":
        """Examine the queue of the database that the setting names."""
        at, start = localtime(), time.monotonic()
        findings = examine(Store.default())
        return cls(
            tuple(ShownFinding(each) for each in findings if each.severity != Severity.OK),
            tuple(each for each in findings if each.severity == Severity.OK),
            time.monotonic() - start,
            at,
        )

    @property
    def duration(self) -> str:
        """How long the examination took, as text."""
        return span(self.seconds)

"""The doctor examines the queue and its database, and says what to do about each finding.

Invariant: a check changes nothing, reads no more than the `LIMIT` of its statement, and cannot break another check.
"""

from .examination import examine, examine_at_once
from .finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine", "examine_at_once"]

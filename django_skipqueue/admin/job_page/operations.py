"""What operators did to a job, as its row tells it: who, what, when and why, also when they did it to many at once.

What is missing or of another kind shows as nothing: whoever may write the row may have written anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import Job, Status
from ...values.codec import shorten
from ..ui.json_time import moment_of

TEXT_LIMIT = 500

WORDS: Mapping[str, str | Promise] = {
    "retry": _("retried"),
    "discard": _("discarded"),
    "cancel": _("cancelled"),
    "run_now": _("made due"),
    "postpone": _("postponed"),
}
LEADS_TO: Mapping[str, str] = {
    "retry": Status.QUEUED,
    "discard": Status.DISCARDED,
    "cancel": Status.DISCARDED,
    "run_now": Status.QUEUED,
    "postpone": Status.SCHEDULED,
}
ENDS = ("discard", "cancel")
"""The verbs that finish a job."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that an operator did."""

    verb: str
    at: datetime
    by: str = ""
    """The user's name; empty where a program did it."""
    reason: str = ""
    attempts: int = 0
    """How many attempts of the job counted at that moment."""

    @property
    def word(self) -> str:
        """What was done."""
        return str(WORDS.get(self.verb) or self.verb)

    @property
    def label(self) -> str:
        """What was done, and by whom."""
        return gettext("%(done)s by %(user)s") % {"done": self.word, "user": self.by} if self.by else self.word

    @property
    def status(self) -> str:
        """The status that it leads to, for its colour."""
        return LEADS_TO.get(self.verb, Status.SCHEDULED)


def operations_of(job: Job) -> list[Operation]:
    """The oldest first."""
    read = map(_read, job.operations or [])
    return sorted((operation for operation in read if operation), key=lambda operation: operation.at)


def attempts_before(operations: Iterable[Operation], moment: datetime | None) -> int:
    """How many attempts counted when operators retried the job, up to `moment` (`None`: ever): each began anew at 1."""
    retries = (each for each in operations if each.verb == "retry")
    return sum(each.attempts for each in retries if moment is None or each.at <= moment)


def _read(entry: Any) -> Operation | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("verb"), str) or not (at := moment_of(entry.get("at"))):
        return None
    by, reason, attempts = entry.get("by"), entry.get("reason"), entry.get("attempts")
    return Operation(
        verb=shorten(entry["verb"], TEXT_LIMIT),
        at=at,
        by=shorten(by, TEXT_LIMIT) if isinstance(by, str) else "",
        reason=shorten(reason, TEXT_LIMIT) if isinstance(reason, str) else "",
        attempts=attempts if isinstance(attempts, int) else 0,
    )

"""The acts of operators on a job, by the column `operations` of its row: who, what, when and why.

If a value of an entry is missing, or has another type, the rest of the entry is read: other programs may write rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import Job, Status
from ...operators.durations import exact
from ...operators.json_time import moment_of
from ...values.codec import shorten
from ..verbs.table import PAST, RETRY
from ..verbs.verb import Past

TEXT_LIMIT = 500

RELEASE = "release"
"""What a worker notes that stops while the job runs."""

SNOOZE = "snooze"
"""What is noted when a task snoozes: once for all snoozes in a row."""

KNOWN = {
    **PAST,
    RELEASE: Past(done=_("released"), done_by=_("released by %(user)s"), leads_to=Status.QUEUED),
    SNOOZE: Past(done=_("snoozed"), done_by=_("snoozed by %(user)s"), leads_to=Status.SCHEDULED),
}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that an operator did."""

    verb: str
    at: datetime
    by: str = ""
    """The user's name; empty where a program did it."""
    reason: str = ""
    attempts: int = 0
    """The number of attempts that the job had at that moment."""
    change: str = ""
    """The value before and the value after it, where it set a value."""
    since: datetime | None = None
    """The start of the attempt that it ended, if a worker released a running job, or the task snoozed."""
    times: int = 1
    """The number of snoozes in a row."""

    @property
    def done(self) -> str:
        """The verb as a participle: `retried`."""
        past = KNOWN.get(self.verb)
        return str(past.done) if past else self.verb

    @property
    def done_by(self) -> str:
        """The same with the user, where it was one."""
        past = KNOWN.get(self.verb)
        if not self.by:
            return self.done
        return str(past.done_by if past else gettext("%(verb)s by %(user)s")) % {"verb": self.verb, "user": self.by}

    @property
    def status(self) -> Status:
        """The status that it led to, for its colour."""
        past = KNOWN.get(self.verb)
        return past.leads_to if past else Status.SCHEDULED

    @property
    def finished_the_job(self) -> bool:
        """Whether it discarded the job."""
        return self.status.is_finished


def operations_of(job: Job) -> list[Operation]:
    """The oldest first."""
    read = map(_read, job.operations or [])
    return sorted((operation for operation in read if operation), key=lambda operation: operation.at)


def attempts_before(operations: Iterable[Operation], moment: datetime | None) -> int:
    """The number of attempts before manual retries up to `moment` (`None`: all): each retry began anew at 1."""
    retries = (each for each in operations if each.verb == RETRY.name)
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
        since=moment_of(entry.get("since")),
        times=times if isinstance(times := entry.get("times"), int) else 1,
        change=f"{_value(entry['from'])} → {_value(entry['to'])}" if "from" in entry and "to" in entry else "",
    )


def _value(value: Any) -> str:
    """A value as text; a time in the current time zone."""
    moment = moment_of(value)
    return exact(moment) if moment else shorten(str(value), TEXT_LIMIT)

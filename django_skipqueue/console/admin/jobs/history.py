"""The history of one job: the acts of people, read from its row and from Django's log of admin actions.

The row has the verbs of operators, also those for many jobs at once, and those without the admin; that of a copy says
of which job it is one. Only the log has the copies of a job.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....models import Job, Status
from ... import operations
from ...arguments import redacted
from ...verbs.table import VERBS
from ..ui.views import logged_id

RELEASE = "release"
"""What a worker notes that stops while the job runs."""

SNOOZE = "snooze"
"""What is noted when a task snoozes: once for all snoozes in a row."""

KNOWN = {
    **{verb.name: (verb.done, verb.leads_to) for verb in VERBS},
    RELEASE: (_("released"), Status.QUEUED),
    SNOOZE: (_("snoozed"), Status.SCHEDULED),
}
"""Each verb as a participle, and the status after it."""


@dataclass(frozen=True, kw_only=True)
class Operation(operations.Operation):
    @property
    def done(self) -> str:
        """The verb as a participle: `retried`."""
        return str(KNOWN[self.verb][0] if self.verb in KNOWN else self.verb)

    @property
    def done_by(self) -> str:
        """The verb as a participle, with the user if the row has one."""
        return gettext("%(verb)s by %(user)s") % {"verb": self.done, "user": self.by} if self.by else self.done

    @property
    def status(self) -> Status:
        return KNOWN[self.verb][1] if self.verb in KNOWN else Status.SCHEDULED


def operations_of(job: Job) -> list[Operation]:
    """The oldest first."""
    return [Operation(**vars(each)) for each in operations.operations_of(job)]


SHOWN = 200
"""Entries of the log that are read for one job."""

LOOKED_AT = 100_000
"""The newest entries of the log, among which those of a job are looked for: no index finds them by the job."""

SAME_ACT = timedelta(seconds=5)
"""The largest difference between the times of one act: the row has the database's time, the log the web server's."""


@dataclass(frozen=True)
class Entry:
    at: datetime
    by: str
    text: str
    reason: str = ""


def history_of(job: Job) -> list[Entry]:
    """The newest first. An operation that stands in the row and in Django's log is listed once.

    The secrets of the job are masked: a reason may quote one.
    """
    masked = redacted(job.task, job.args, job.kwargs).text
    newest = LogEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    about_job = {"content_type": ContentType.objects.get_for_model(Job), "object_id": logged_id(job.pk)}
    logged = LogEntry.objects.filter(pk__gt=newest - LOOKED_AT, **about_job)  # a range of the primary key
    entries = list(logged.select_related("user").order_by("-action_time")[:SHOWN])
    history: list[Entry] = []
    for operation in reversed([each for each in operations_of(job) if each.verb != SNOOZE]):
        text = f"{operation.done}: {operation.change}" if operation.change else operation.done
        history.append(Entry(operation.at, operation.by, text, operation.reason))
        if twin := _twin(operation, entries):
            entries.remove(twin)
    history += (Entry(entry.action_time, entry.user.get_username(), entry.get_change_message()) for entry in entries)
    shown = [replace(entry, text=masked(entry.text), reason=masked(entry.reason)) for entry in history]
    return sorted(shown, key=lambda entry: entry.at, reverse=True)


def _twin(operation: Operation, entries: Iterable[LogEntry]) -> LogEntry | None:
    """The entry of the log that means this operation: the nearest one of the same user, if it is near."""

    def distance(entry: LogEntry) -> timedelta:
        return abs(entry.action_time - operation.at)

    own = (each for each in entries if each.user.get_username() == operation.by and distance(each) <= SAME_ACT)
    return min(own, key=distance, default=None)

"""The history of one job: the acts of people, read from its row and from Django's log of admin actions.

The row has the verbs that operators applied, in the admin or elsewhere, to one job or to many. The row of a copy names
the original job. Only the log has the copies of a job.
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
from ...verbs.table import CORE_VERBS
from ..ui.views import logged_id

RELEASE_VERB = "release"
"""A worker notes this verb if it stops while the job runs."""

SNOOZE_VERB = "snooze"
"""The worker notes this verb when a task snoozes: once for all snoozes in a row."""

VERBS_IN_HISTORY = {
    **{verb.name: (verb.done, verb.leads_to) for verb in CORE_VERBS},
    RELEASE_VERB: (_("released"), Status.QUEUED),
    SNOOZE_VERB: (_("snoozed"), Status.SCHEDULED),
}
"""Each verb as a participle, and the status after it."""


@dataclass(frozen=True, kw_only=True)
class ShownOperation(operations.Operation):
    @property
    def done(self) -> str:
        """The verb as a participle: `retried`."""
        return str(VERBS_IN_HISTORY[self.verb][0] if self.verb in VERBS_IN_HISTORY else self.verb)

    @property
    def done_by(self) -> str:
        """The verb as a participle, with the user if the row has one."""
        return gettext("%(verb)s by %(user)s") % {"verb": self.done, "user": self.by} if self.by else self.done

    @property
    def status(self) -> Status:
        return VERBS_IN_HISTORY[self.verb][1] if self.verb in VERBS_IN_HISTORY else Status.SCHEDULED


def operations_of(job: Job) -> list[ShownOperation]:
    """Return the operations, the oldest first."""
    return [ShownOperation(**vars(each)) for each in operations.operations_of(job)]


MOST_LOG_ENTRIES = 200
"""The number of log entries that are read for one job."""

LOG_ENTRIES_SEARCHED = 100_000
"""The number of newest log entries that are searched for the entries of a job: no index finds them by the job."""

SAME_ACT = timedelta(seconds=5)
"""The largest difference between the times of one act: the row has the database's time, the log the web server's."""


@dataclass(frozen=True)
class HistoryEntry:
    at: datetime
    by: str
    text: str
    reason: str = ""


def history_of(job: Job) -> list[HistoryEntry]:
    """Return the entries, the newest first. If the row and Django's log both have an operation, it is listed once.

    The secrets of the job are masked: a reason may quote a secret.
    """
    masked = redacted(job.task, job.args, job.kwargs).text
    newest = LogEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    about_job = {"content_type": ContentType.objects.get_for_model(Job), "object_id": logged_id(job.pk)}
    logged = LogEntry.objects.filter(pk__gt=newest - LOG_ENTRIES_SEARCHED, **about_job)  # a range of the primary key
    entries = list(logged.select_related("user").order_by("-action_time")[:MOST_LOG_ENTRIES])
    history: list[HistoryEntry] = []
    for operation in reversed([each for each in operations_of(job) if each.verb != SNOOZE_VERB]):
        text = f"{operation.done}: {operation.change}" if operation.change else operation.done
        history.append(HistoryEntry(operation.at, operation.by, text, operation.reason))
        if twin := _twin(operation, entries):
            entries.remove(twin)
    history += (
        HistoryEntry(entry.action_time, entry.user.get_username(), entry.get_change_message()) for entry in entries
    )
    shown = [replace(entry, text=masked(entry.text), reason=masked(entry.reason)) for entry in history]
    return sorted(shown, key=lambda entry: entry.at, reverse=True)


def _twin(operation: ShownOperation, entries: Iterable[LogEntry]) -> LogEntry | None:
    """The log entry about this operation: the entry of its user that is nearest in time, at most `SAME_ACT` away."""

    def distance(entry: LogEntry) -> timedelta:
        return abs(entry.action_time - operation.at)

    own = (each for each in entries if each.user.get_username() == operation.by and distance(each) <= SAME_ACT)
    return min(own, key=distance, default=None)

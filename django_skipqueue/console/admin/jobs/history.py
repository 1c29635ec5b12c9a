"""A job's history: what people did to it, read from its row and from Django's log of admin actions.

The job's row contains the verbs, such as `retry`, that operators applied in the admin or elsewhere. A copy's row also
names the original job. Only Django's log contains that a job was copied.
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
"""A worker records this verb if it stops while the job is running."""

SNOOZE_VERB = "snooze"
"""A worker records this verb when a task snoozes. Several snoozes in a row are recorded once."""

VERBS_IN_HISTORY = {
    **{verb.name: (verb.done, verb.leads_to) for verb in CORE_VERBS},
    RELEASE_VERB: (_("released"), Status.QUEUED),
    SNOOZE_VERB: (_("snoozed"), Status.SCHEDULED),
}
"""For each verb, its participle and the job's status afterwards."""


@dataclass(frozen=True, kw_only=True)
class ShownOperation(operations.Operation):
    @property
    def done(self) -> str:
        """The verb as a participle, such as `retried`."""
        return str(VERBS_IN_HISTORY[self.verb][0] if self.verb in VERBS_IN_HISTORY else self.verb)

    @property
    def done_by(self) -> str:
        """The verb as a participle, with the user if known: `retried by ann`."""
        return gettext("%(verb)s by %(user)s") % {"verb": self.done, "user": self.by} if self.by else self.done

    @property
    def status(self) -> Status:
        return VERBS_IN_HISTORY[self.verb][1] if self.verb in VERBS_IN_HISTORY else Status.SCHEDULED


def operations_of(job: Job) -> list[ShownOperation]:
    """Return the job's recorded operations, the oldest first."""
    return [ShownOperation(**vars(operation)) for operation in operations.operations_of(job)]


MOST_LOG_ENTRIES = 200
"""At most this many log entries are read for a job."""

LOG_ENTRIES_SEARCHED = 100_000
"""Only this many of the newest log entries are searched, because the log has no index by job."""

SAME_ACT = timedelta(seconds=5)
"""An entry in the row and an entry in the log are one act if their times differ by at most this. Clocks may differ."""


@dataclass(frozen=True)
class HistoryEntry:
    at: datetime
    by: str
    text: str
    reason: str = ""


def history_of(job: Job) -> list[HistoryEntry]:
    """Return the entries, the newest first.

    An operation that both the row and Django's log contain is listed once. The job's secrets are masked, because a
    reason may quote them.
    """
    masked = redacted(job.task, job.args, job.kwargs).text
    newest_log_id = LogEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    about_job = {"content_type": ContentType.objects.get_for_model(Job), "object_id": logged_id(job.pk)}
    # The condition for `pk` makes PostgreSQL read only a range of the primary key.
    entries_about_job = LogEntry.objects.filter(pk__gt=newest_log_id - LOG_ENTRIES_SEARCHED, **about_job)
    log_entries = list(entries_about_job.select_related("user").order_by("-action_time")[:MOST_LOG_ENTRIES])
    history: list[HistoryEntry] = []
    for operation in reversed([operation for operation in operations_of(job) if operation.verb != SNOOZE_VERB]):
        text = f"{operation.done}: {operation.change}" if operation.change else operation.done
        history.append(HistoryEntry(operation.at, operation.by, text, operation.reason))
        if log_entry := _log_entry_of(operation, log_entries):
            log_entries.remove(log_entry)
    history += (
        HistoryEntry(entry.action_time, entry.user.get_username(), entry.get_change_message()) for entry in log_entries
    )
    masked_history = [replace(entry, text=masked(entry.text), reason=masked(entry.reason)) for entry in history]
    return sorted(masked_history, key=lambda entry: entry.at, reverse=True)


def _log_entry_of(operation: ShownOperation, entries: Iterable[LogEntry]) -> LogEntry | None:
    """Return the log entry about the same act: the same user's nearest entry, at most `SAME_ACT` away."""

    def distance(entry: LogEntry) -> timedelta:
        return abs(entry.action_time - operation.at)

    candidates = (
        entry for entry in entries if entry.user.get_username() == operation.by and distance(entry) <= SAME_ACT
    )
    return min(candidates, key=distance, default=None)

"""What can be done with many jobs at once: retry, discard, cancel, delete.

Invariant: each batch is one statement of the queue, committed by itself; what could not be changed is skipped and
counted. An action stops within the time that web servers allow, says so, and can be repeated.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from django.contrib.admin.models import CHANGE, DELETION
from django.db import transaction
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..models import Job, Status
from .counts import CAP, Count
from .selection import Selection

TIME_LIMIT = 20.0
"""Seconds; web servers commonly give up on a request after 30."""


@dataclass
class Tally:
    """What an action came to."""

    changed: int = 0
    skipped: int = 0
    is_complete: bool = True
    """False where time ran out first."""

    def add(self, ids: Sequence[int], changed: set[int]) -> None:
        """Count one batch."""
        self.changed += len(changed)
        self.skipped += len(ids) - len(changed)


class Action(ABC):
    """One thing that can be done with jobs."""

    name: ClassVar[str]
    """Of the method of the admin that runs it."""
    explanation: ClassVar[str | Promise]
    statuses: ClassVar[frozenset[str]]
    """In which a job can be changed."""
    logged: ClassVar[str | Promise]
    """What the log says of one job."""
    flag: ClassVar[int] = CHANGE
    """How the log files it."""
    is_dangerous: ClassVar[bool] = False
    """Whether its button is red."""

    @abstractmethod
    def change(self, ids: Iterable[int]) -> set[int]:
        """Do it; the ids of the jobs that were changed."""

    @abstractmethod
    def order(self, count: Count) -> str:
        """To do it to so many jobs, as an order; with a question mark it is the question."""

    @abstractmethod
    def done(self, number: int) -> str:
        """That it was done to so many jobs."""

    def refused(self, selection: Selection) -> list[tuple[int, str | Promise]]:
        """How many of the jobs each status forbids to change; nothing where there are too many to count."""
        found = selection.statuses()
        if found.total() > CAP:
            return []
        return [(found[status], status.label) for status in Status if found[status] and status not in self.statuses]

    def told(self, tally: Tally) -> str:
        """What it came to, for the person who did it."""
        sentences = [self.done(tally.changed)]
        if tally.skipped:
            sentences.append(
                ngettext(
                    "%(number)s was skipped, because it could not be changed.",
                    "%(number)s were skipped, because they could not be changed.",
                    tally.skipped,
                )
                % {"number": number_format(tally.skipped, force_grouping=True)}
            )
        if not tally.is_complete:
            sentences.append(gettext("Then the time was up; the others are as they were. Do it again to go on."))
        return " ".join(sentences)

    def run(self, selection: Selection) -> tuple[Tally, list[int]]:
        """Do it to all of the selection, as far as time allows; what it came to, and to which jobs chosen by hand."""
        deadline = time.monotonic() + TIME_LIMIT
        tally, changed = Tally(), []
        for ids in selection.batches():
            if time.monotonic() >= deadline:
                tally.is_complete = False
                break
            done = self.change(ids)
            tally.add(ids, done)
            if selection.ids is not None:
                changed += sorted(done)
        return tally, changed


class Retry(Action):
    """Put failed and discarded jobs back into their queues."""

    name = "retry_selected"
    explanation = _(
        "Failed and discarded jobs go back into their queues, with all their attempts before them. "
        "A job stays as it is while another that is not finished holds its unique key."
    )
    statuses = frozenset({Status.FAILED, Status.DISCARDED})
    logged = _("Retried.")

    def change(self, ids: Iterable[int]) -> set[int]:
        """Retry."""
        retried: set[int] = Job.objects.retry(ids)
        return retried

    def order(self, count: Count) -> str:
        """Retry them."""
        return ngettext("Retry %(number)s job", "Retry %(number)s jobs", count.found) % {"number": count.spoken}

    def done(self, number: int) -> str:
        """That they were retried."""
        text = ngettext(
            "%(number)s job was put back into its queue.", "%(number)s jobs were put back into their queues.", number
        )
        return text % {"number": number_format(number, force_grouping=True)}


@dataclass(frozen=True)
class Discard(Action):
    """Finish scheduled and queued jobs without running them."""

    name = "discard_selected"
    explanation = _(
        "Scheduled and queued jobs are finished without being run. A job that runs is left alone. "
        "A discarded job can be retried later."
    )
    statuses = frozenset({Status.SCHEDULED, Status.QUEUED})
    logged = _("Discarded.")

    user: str
    """Who discards; the jobs keep it as the reason."""

    def change(self, ids: Iterable[int]) -> set[int]:
        """Discard."""
        discarded: set[int] = Job.objects.discard(ids, reason=f"Discarded by {self.user}.")
        return discarded

    def order(self, count: Count) -> str:
        """Discard them."""
        return ngettext("Discard %(number)s job", "Discard %(number)s jobs", count.found) % {"number": count.spoken}

    def done(self, number: int) -> str:
        """That they were discarded."""
        text = ngettext("%(number)s job was discarded.", "%(number)s jobs were discarded.", number)
        return text % {"number": number_format(number, force_grouping=True)}


@dataclass(frozen=True)
class Cancel(Action):
    """Discard jobs that are not finished, and interrupt those that run."""

    name = "cancel_selected"
    explanation = _(
        "The jobs are discarded. Those that run are interrupted within a second or two; "
        "what their tasks have done already stays done."
    )
    statuses = frozenset({Status.SCHEDULED, Status.QUEUED, Status.RUNNING})
    logged = _("Cancelled.")
    is_dangerous = True

    user: str
    """Who cancels; the jobs keep it as the reason."""

    def change(self, ids: Iterable[int]) -> set[int]:
        """Cancel."""
        cancelled: set[int] = Job.objects.cancel(ids, reason=f"Cancelled by {self.user}.")
        return cancelled

    def order(self, count: Count) -> str:
        """Cancel them."""
        return ngettext("Cancel %(number)s job", "Cancel %(number)s jobs", count.found) % {"number": count.spoken}

    def done(self, number: int) -> str:
        """That they were cancelled."""
        text = ngettext("%(number)s job was cancelled.", "%(number)s jobs were cancelled.", number)
        return text % {"number": number_format(number, force_grouping=True)}


class Delete(Action):
    """Remove jobs that are not running."""

    name = "delete_selected"
    explanation = _(
        "The jobs are removed for good, with their arguments, results and errors. "
        "Scheduled and queued ones will not run. A job that runs is left alone."
    )
    statuses = frozenset(set(Status.values) - {Status.RUNNING})
    logged = _("Deleted.")
    is_dangerous = True
    flag = DELETION

    def change(self, ids: Iterable[int]) -> set[int]:
        """Lock, then delete: a job that a worker claims in between is either locked, or running and left alone."""
        with transaction.atomic(using=Job.objects.all().db):
            jobs = Job.objects.filter(pk__in=ids).exclude(status=Status.RUNNING).order_by("pk")
            deleted = set(jobs.select_for_update(skip_locked=True).values_list("pk", flat=True))
            Job.objects.filter(pk__in=deleted).delete()
        return deleted

    def order(self, count: Count) -> str:
        """Delete them."""
        return ngettext("Delete %(number)s job", "Delete %(number)s jobs", count.found) % {"number": count.spoken}

    def done(self, number: int) -> str:
        """That they were deleted."""
        text = ngettext("%(number)s job was deleted.", "%(number)s jobs were deleted.", number)
        return text % {"number": number_format(number, force_grouping=True)}

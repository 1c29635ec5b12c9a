"""What can be done with many jobs at once: retry, run now, postpone, discard, cancel, delete."""

from collections.abc import Iterable
from datetime import timedelta

from django.contrib.admin.models import DELETION
from django.db import transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from ...models import ALIVE, WAITING, Job, Status
from ...store import Store
from .forms import DeleteQuestion, Instruction, PostponeQuestion, SpreadQuestion
from .many_jobs import Action


class Retry(Action):
    """Put failed and discarded jobs back into their queues."""

    name = "retry_selected"
    explanation = _(
        "Failed and discarded jobs go back into their queues, with a fresh set of attempts. "
        "A job stays as it is while another that is not finished holds its unique key."
    )
    statuses = frozenset({Status.FAILED, Status.DISCARDED})
    order_all = ngettext_lazy("Retry %(number)s job", "Retry %(number)s jobs", "count")
    order_some = _("Retry %(some)s of %(number)s jobs")
    order_none = ngettext_lazy("This job cannot be retried", "None of these %(number)s jobs can be retried", "count")
    done = ngettext_lazy(
        "%(number)s job was put back into its queue.", "%(number)s jobs were put back into their queues.", "count"
    )
    logged = _("Retried.")
    question = SpreadQuestion

    def change(self, ids: Iterable[int], wanted: Instruction) -> set[int]:
        """Retry."""
        over = timedelta(minutes=wanted.minutes)
        return Store.default().retry(ids, over=over, by=wanted.user, reason=wanted.reason)


class RunNow(Action):
    """Make jobs due that wait for a time, or for their next attempt."""

    name = "run_now_selected"
    explanation = _(
        "Scheduled and retrying jobs go into their queues now. The attempts that they have had stay counted."
    )
    statuses = frozenset({Status.SCHEDULED})
    order_all = ngettext_lazy("Run %(number)s job now", "Run %(number)s jobs now", "count")
    order_some = _("Run %(some)s of %(number)s jobs now")
    order_none = ngettext_lazy(
        "This job does not wait for a time", "None of these %(number)s jobs waits for a time", "count"
    )
    done = ngettext_lazy("%(number)s job is due now.", "%(number)s jobs are due now.", "count")
    logged = _("Made due.")

    def change(self, ids: Iterable[int], wanted: Instruction) -> set[int]:
        """Run now."""
        return Store.default().run_now(ids, by=wanted.user, reason=wanted.reason)


class Postpone(Action):
    """Have jobs wait that are not running."""

    name = "postpone_selected"
    explanation = _("Scheduled, retrying and queued jobs wait. A job that is due later anyway stays as it is.")
    statuses = frozenset(WAITING)
    order_all = ngettext_lazy("Postpone %(number)s job", "Postpone %(number)s jobs", "count")
    order_some = _("Postpone %(some)s of %(number)s jobs")
    order_none = ngettext_lazy(
        "This job cannot be postponed", "None of these %(number)s jobs can be postponed", "count"
    )
    done = ngettext_lazy("%(number)s job was postponed.", "%(number)s jobs were postponed.", "count")
    logged = _("Postponed.")
    question = PostponeQuestion

    def change(self, ids: Iterable[int], wanted: Instruction) -> set[int]:
        """Postpone."""
        delay = timedelta(minutes=wanted.minutes)
        return Store.default().postpone(ids, delay, by=wanted.user, reason=wanted.reason)


class Discard(Action):
    """Finish scheduled and queued jobs without running them."""

    name = "discard_selected"
    explanation = _(
        "Scheduled, retrying and queued jobs are finished without being run. A job that runs is left alone. "
        "A discarded job can be retried later."
    )
    statuses = frozenset(WAITING)
    order_all = ngettext_lazy("Discard %(number)s job", "Discard %(number)s jobs", "count")
    order_some = _("Discard %(some)s of %(number)s jobs")
    order_none = ngettext_lazy(
        "This job cannot be discarded", "None of these %(number)s jobs can be discarded", "count"
    )
    done = ngettext_lazy("%(number)s job was discarded.", "%(number)s jobs were discarded.", "count")
    logged = _("Discarded.")

    def change(self, ids: Iterable[int], wanted: Instruction) -> set[int]:
        """Discard."""
        return Store.default().discard(ids, by=wanted.user, reason=wanted.reason)


class Cancel(Action):
    """Discard jobs that are not finished, and interrupt those that run."""

    name = "cancel_selected"
    explanation = _(
        "The jobs are discarded. Those that run are interrupted within a second or two; "
        "what their tasks have done already stays done."
    )
    statuses = frozenset(ALIVE)
    order_all = ngettext_lazy("Cancel %(number)s job", "Cancel %(number)s jobs", "count")
    order_some = _("Cancel %(some)s of %(number)s jobs")
    order_none = ngettext_lazy(
        "This job cannot be cancelled", "None of these %(number)s jobs can be cancelled", "count"
    )
    done = ngettext_lazy("%(number)s job was cancelled.", "%(number)s jobs were cancelled.", "count")
    logged = _("Cancelled.")
    is_dangerous = True

    @classmethod
    def is_offered(cls, status: str | None) -> bool:
        """Not for jobs that only wait: there, Discard does the same."""
        return status is None or status == Status.RUNNING

    def change(self, ids: Iterable[int], wanted: Instruction) -> set[int]:
        """Cancel."""
        return Store.default().cancel(ids, by=wanted.user, reason=wanted.reason)


class Delete(Action):
    """Remove jobs that are not running."""

    name = "delete_selected"
    explanation = _(
        "The jobs are removed for good, with their arguments, results and errors. "
        "Those that wait will not run. A job that runs is left alone."
    )
    statuses = frozenset(set(Status.values) - {Status.RUNNING})
    order_all = ngettext_lazy("Delete %(number)s job", "Delete %(number)s jobs", "count")
    order_some = _("Delete %(some)s of %(number)s jobs")
    order_none = ngettext_lazy("This job cannot be deleted", "None of these %(number)s jobs can be deleted", "count")
    done = ngettext_lazy("%(number)s job was deleted.", "%(number)s jobs were deleted.", "count")
    logged = _("Deleted.")
    flag = DELETION
    question = DeleteQuestion
    is_dangerous = True

    def change(self, ids: Iterable[int], wanted: Instruction) -> set[int]:
        """Lock, then delete: a job that a worker claims in between is either locked, or running and left alone."""
        with transaction.atomic(using=Job.objects.all().db):
            jobs = Job.objects.filter(pk__in=ids).exclude(status=Status.RUNNING).order_by("pk")
            deleted = set(jobs.select_for_update(skip_locked=True).values_list("pk", flat=True))
            Job.objects.filter(pk__in=deleted).delete()
        return deleted


ACTIONS = {action.name: action for action in (Retry, RunNow, Postpone, Discard, Cancel, Delete)}

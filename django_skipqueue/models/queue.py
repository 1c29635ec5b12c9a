"""`Queue`: a queue that was ever paused, or had a limit or a rate. All other queues have no row."""

from datetime import timedelta
from itertools import chain

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..events import logs
from ..parts.limits import models as limit_models
from ..parts.limits.queues import LimitVerbs
from ..parts.rates import models as rate_models
from ..parts.rates.queues import RateVerbs
from ..queue.queues import DECLARED, pause_queue, resume_queue
from ..queue.store import Store, in_each
from .expressions import are_times
from .worker import Worker


class QueueQuerySet(models.QuerySet["Queue"]):
    """Filters for queues."""

    def paused(self) -> "QueueQuerySet":
        """Queues that are paused now."""
        return self.filter(Q(paused_until=None) | Q(paused_until__gt=Now()), paused_at__isnull=False)


_QueueManager = models.Manager.from_queryset(QueueQuerySet)


class QueueManager(_QueueManager["Queue"]):
    """`Queue.objects`: the queues with a row, in the database of `SKIPQUEUE["DATABASE"]`."""

    def get_queryset(self) -> QueueQuerySet:
        """All queues with a row."""
        return QueueQuerySet(self.model, using=self._db or settings.database)


class Queue(
    LimitVerbs,
    RateVerbs,
    limit_models.LimitedQueue,
    rate_models.RatedQueue,
    models.Model,
):
    """A queue that was ever paused, or had a limit or a rate. Workers claim no jobs of a paused queue."""

    name = models.TextField(_("name"), primary_key=True)
    paused_at = models.DateTimeField(_("paused at"), null=True)
    """`None` if the queue was resumed."""
    paused_until = models.DateTimeField(_("paused until"), null=True)
    """When the pause ends by itself; `None` if it lasts until somebody resumes the queue."""
    paused_by = models.TextField(_("paused by"), db_default="")
    reason = models.TextField(_("reason"), db_default="")
    objects = QueueManager()

    class Meta:
        db_table = "skipqueue_queue"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        constraints = (
            *limit_models.LimitedQueue._meta.constraints,
            *rate_models.RatedQueue._meta.constraints,
            models.CheckConstraint(name="skipqueue_queue_times", condition=are_times("paused_at", "paused_until")),
        )

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def pause(
        name: str, *, for_: timedelta | None = None, by: str = "", reason: str = "", database: str | None = None
    ) -> None:
        """Pause a queue. Once this is committed, workers claim no more jobs from it. Claimed jobs still run.

        `for_`: how long the pause lasts; `None` means until somebody resumes the queue. If the queue is paused already,
        the new pause replaces the old pause. `database`: the alias of one database; by default the queue is paused in
        all databases that hold queues, even if one of them cannot be reached. Raises `InvalidOption` for a value that
        is not valid. If no task, setting, worker or queued job has a queue with this name, logs a warning, because the
        name may be mistyped.
        """
        in_each(database, lambda store: pause_queue(store, name, for_=for_, by=by, reason=reason))
        known_queues = DECLARED.union(settings.queues, *in_each(database, _queues_in_use))
        if name not in known_queues:
            logs.unknown_queue(name, sorted(known_queues))

    @staticmethod
    def resume(name: str, *, by: str = "", database: str | None = None) -> bool:
        """Resume a queue, and notify its workers after the commit. Returns whether it was paused.

        `database`: see `pause`.
        """
        return any(in_each(database, lambda store: resume_queue(store, name, by=by)))


def _queues_in_use(store: Store) -> set[str]:
    queues_of_workers = Worker.objects.using(store.alias).values_list("queues", flat=True)
    return {*store.queues_with_jobs(with_paused=True), *chain.from_iterable(queues_of_workers)}

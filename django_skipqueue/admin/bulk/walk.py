"""The jobs of a list, a window at a time, from its front to its end.

Invariant: a job that the action has changed is not found again, wherever in the list the change has moved it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import DateTimeField, Q, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.db.models.lookups import GreaterThanOrEqual
from django.http import HttpRequest

from ...models import Job
from ...operators.window import Window
from ..verbs.selection import Selection
from .bulk_action import BulkAction


@dataclass(frozen=True)
class Walk:
    bulk: BulkAction
    job: Job
    """The job that applies it."""
    request: HttpRequest
    changelist: Any
    """A `JobChangeList`."""

    def front(self) -> Window:
        """The first window; the whole list, if an index finds all that match."""
        return self.changelist.window or Window.whole(self.changelist.indexed)

    def windows(self, edges: tuple[Any, Any]) -> Iterator[Window]:
        window: Window | None = Window(self.changelist.indexed, 1, *edges)
        while window is not None:
            yield window
            window = window.next()

    def within(self, window: Window) -> Selection:
        jobs = self.changelist.jobs_within(window, self.request).exclude(pk=self.job.pk)  # it may match itself
        return Selection.all_matching(jobs if window.start is None else jobs.filter(self._is_not_done()))

    def count(self, newest: int) -> int:
        front = self.front()
        windows = map(self.within, self.windows((front.start, front.end)))
        return sum(selection.jobs.filter(pk__lte=newest).count() for selection in windows)

    def _is_not_done(self) -> Q:
        """The condition that the last operation on a job is not this action, which has its time, verb and user."""
        at = Cast(KT("operations__-1__at"), DateTimeField())
        is_done = Q(GreaterThanOrEqual(at, Value(self.job.enqueued_at)))
        return Q(operations__isnull=True) | ~(
            is_done & Q(**{"operations__-1__verb": self.bulk.verb.name, "operations__-1__by": self.bulk.user})
        )

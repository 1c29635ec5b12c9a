"""What the page of one batch shows: its progress, callbacks, jobs by status, inner batches, and the graph."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...models import FINISHED, JobBatch, Status
from ...operators.batch_states import (
    CALLBACKS,
    BatchState,
    Callback,
    batch_state,
    batch_states,
    callbacks_of,
    with_time,
)
from ...operators.counts import Count
from ...operators.durations import exact, span
from ...operators.list_order import Indexed
from ..ui.cells import badge, shortened
from ..verbs.table import CANCEL, DISCARD, RETRY
from ..verbs.verb import Verb
from .columns import link_to, numbers, state_badge
from .picture import CALLBACK_STATUS, Picture, callback_state

INNER_SHOWN = 20

LABELS: tuple[tuple[Verb, Any], ...] = (
    (RETRY, _("Retry these")),
    (DISCARD, _("Discard these")),
    (CANCEL, _("Cancel these")),
)
"""The verbs for all jobs of a batch in one status."""


class ShownCallback(NamedTuple):
    label: Any
    task: str
    job_id: int | None
    """`None`: there is no job to link to."""
    badge: SafeString


@dataclass(frozen=True)
class JobsOfBatch:
    """The jobs of the batch in one status. Index: batch."""

    batch_id: int
    status: Status
    count: Count

    @property
    def label(self) -> Any:
        return self.status.label

    @property
    def query(self) -> str:
        return urlencode({"batch": self.batch_id, "status": self.status.value})

    @property
    def verbs(self) -> list[tuple[Verb, Any]]:
        return [(verb, label) for verb, label in LABELS if verb.is_offered_for(self.status)]


@dataclass(frozen=True)
class BatchPage:
    batch: BatchState

    @classmethod
    def of(cls, batch_id: int) -> "BatchPage | None":
        found = batch_state(batch_id)
        return None if found is None else cls(found)

    @property
    def row(self) -> JobBatch:
        return self.batch.row

    @property
    def name(self) -> str:
        return shortened(self.row.name)

    @property
    def badge(self) -> SafeString:
        return state_badge(self.batch)

    @property
    def numbers(self) -> SafeString:
        """The number of jobs in each status, those of inner batches among them."""
        return SafeString(numbers(self.batch))

    @property
    def times(self) -> Iterator[tuple[Any, str]]:
        """Label and text of its times."""
        yield _("Created"), exact(self.row.created_at)
        if self.row.finished_at is None:
            yield _("Running for"), span(self.batch.now - self.row.created_at)
        else:
            yield _("Finished"), exact(self.row.finished_at)
            yield _("Took"), span(self.row.finished_at - self.row.created_at)

    @cached_property
    def callbacks(self) -> list[Callback]:
        return callbacks_of(self.row)

    @property
    def shown_callbacks(self) -> Iterator[ShownCallback]:
        for each in self.callbacks:
            status = CALLBACK_STATUS.get(each.state, each.state)
            job_id = None if each.state == "gone" else each.job_id
            yield ShownCallback(CALLBACKS[each.name], shortened(each.task), job_id, badge(status, callback_state(each)))

    @cached_property
    def jobs(self) -> list[JobsOfBatch]:
        """Its own jobs, by status; what waits comes first."""
        counts = {status: Indexed.covering(status.value, batch_id=self.row.pk).count() for status in Status}
        return [JobsOfBatch(self.row.pk, status, count) for status, count in counts.items() if count.found]

    @property
    def pruned(self) -> int:
        """How many of the jobs that are counted have no row any more."""
        if self.batch.is_open or self.inner or any(group.count.is_capped for group in self.jobs):
            return 0
        finished = sum(group.count.found for group in self.jobs if group.status in FINISHED)
        return max(0, self.batch.total - finished)

    @cached_property
    def inner(self) -> list[BatchState]:
        """The newest inner batches. Index: inner."""
        rows = with_time(JobBatch.objects.filter(parent_id=self.row.pk)).order_by("-pk")
        return batch_states(rows[:INNER_SHOWN])

    @property
    def inner_query(self) -> str:
        """The query of the address of the list of all inner batches; empty if all are shown."""
        return urlencode({"inside": self.row.pk}) if len(self.inner) == INNER_SHOWN else ""

    @property
    def inner_rows(self) -> Iterator[tuple[SafeString, SafeString, str]]:
        """Link, state and progress of each inner batch."""
        return ((link_to(each.row), state_badge(each), each.numbers) for each in self.inner)

    @cached_property
    def picture(self) -> Picture:
        return Picture.of(self.row, self.inner, self.callbacks)

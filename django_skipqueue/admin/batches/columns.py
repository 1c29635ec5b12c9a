"""The columns of the list of batches. A further one is a function of a `BatchState`, and an entry in `COLUMNS`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import JobBatch, Status
from ...operators.batch_states import STATES, BatchState
from ...operators.counts import grouped
from ...operators.durations import distance
from ..ui.cells import badge, shortened

Cell = SafeString | str

NOTHING = "\N{EN DASH}"
"""In a cell of which there is nothing to say."""

BADGES = {"running": "running", "finished": "completed", "failures": "failed"}
"""The colour of each state: that of a status of jobs."""

BAR = '<progress class="skipqueue-progress" max="1" value="{}" data-status="{}" aria-label="{}"></progress>'


class Column(NamedTuple):
    name: str
    """For the style sheet: the class of its cells is `field-NAME`."""
    title: Any
    cell: Callable[[BatchState], Cell]


def state_badge(batch: BatchState) -> SafeString:
    return badge(BADGES[batch.state], STATES[batch.state])


def name_of(row: JobBatch) -> str:
    return shortened(row.name) or gettext("batch")


def link_to(row: JobBatch) -> SafeString:
    address = reverse("admin:django_skipqueue_jobbatch_change", args=[row.pk])
    return format_html(
        '<a class="skipqueue-name" href="{}">{}</a> <span class="skipqueue-detail">#{}</span>',
        address,
        name_of(row),
        row.pk,
    )


def progress(batch: BatchState) -> Cell:
    if batch.share is None:
        return batch.numbers
    label = gettext("Progress of batch %(id)s") % {"id": batch.row.pk}
    return format_html("{}" + BAR, batch.numbers, f"{batch.share:.4f}", BADGES[batch.state], label)


def numbers(batch: BatchState) -> Cell:
    cells = ((status, Status(status).label, grouped(number)) for status, number in batch.counts.items())
    return format_html_join(
        " ", '<span class="skipqueue-of-status" data-status="{}">{}: <strong>{}</strong></span>', cells
    )


def _outside(batch: BatchState) -> Cell:
    parent_id = batch.row.parent_id
    if parent_id is None:
        return NOTHING
    return format_html(
        '<a href="{}">#{}</a>', reverse("admin:django_skipqueue_jobbatch_change", args=[parent_id]), parent_id
    )


def _finished(batch: BatchState) -> Cell:
    return NOTHING if batch.row.finished_at is None else distance(batch.row.finished_at, batch.now)


COLUMNS = (
    Column("batch", _("batch"), lambda batch: link_to(batch.row)),
    Column("state", _("state"), state_badge),
    Column("progress", _("done"), progress),
    Column("jobs", _("jobs"), numbers),
    Column("created", _("created"), lambda batch: distance(batch.row.created_at, batch.now)),
    Column("finished", _("finished"), _finished),
    Column("outside", _("belongs to"), _outside),
)

ON_DASHBOARD = COLUMNS[:5]

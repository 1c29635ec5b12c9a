"""The columns of queue tables in the admin. Each is a fact of `QUEUE` in `console.queues_and_workers`."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ...conf import settings
from ..counts import grouped
from ..durations import span
from ..facts import NOTHING, Renderers
from ..parts import QueueOption, processes_in_words, queue_options
from ..queues_and_workers import (
    QueueState,
    WorkerHealth,
    pause_end,
    queue_facts,
)
from .ui.addresses import address_of
from .ui.cells import Cell, Column, badge, columns_of, queue_link, shortened


def _queue_cell(queue: QueueState) -> Cell:
    mark = badge("paused", gettext("paused")) if queue.pause else ""
    return format_html('<span class="skipqueue-name">{}</span> {}', queue_link(queue.name), mark)


def _queued_cell(queue: QueueState) -> Cell:
    number = gettext("about %(number)s") if queue.now.is_estimate else "%(number)s"
    return _jobs_link(queue, "queued", number % {"number": grouped(queue.now.queued)}) if queue.now.queued else "0"


def _blocked_cell(queue: QueueState) -> Cell:
    return _jobs_link(queue, "blocked", str(queue.blocked)) if queue.blocked.found else str(queue.blocked)


def _running_cell(queue: QueueState) -> Cell:
    if not queue.now.running:
        return "0"
    holder = settings.external_queues.get(queue.name, "")
    text = gettext("at %(holder)s, the oldest for %(span)s") if holder else gettext("the longest for %(span)s")
    longest = text % {"span": span(max(queue.now.longest or 0.0, 0.0)), "holder": holder}
    return format_html(
        '{} <span class="skipqueue-detail">{}</span>',
        _jobs_link(queue, "running", grouped(queue.now.running)),
        longest,
    )


def slots_in_words(workers: Iterable[WorkerHealth]) -> str:
    """Return the workers' number of slots (jobs that they run at a time), and the number of processes without slots."""
    slots_by_worker = [worker.slots for worker in workers]
    slots, processes_without_slots = sum(slots_by_worker), slots_by_worker.count(0)
    words = ngettext("%(number)s slot", "%(number)s slots", slots) % {"number": grouped(slots)} if slots else ""
    return " · ".join(
        filter(None, [words, processes_in_words(processes_without_slots) if processes_without_slots else ""])
    )


def _workers_cell(queue: QueueState) -> Cell:
    if not queue.workers:
        return gettext("none")
    number = grouped(sum(worker.slots > 0 for worker in queue.workers))
    return format_html('{} <span class="skipqueue-detail">{}</span>', number, slots_in_words(queue.workers))


def _note_cell(queue: QueueState) -> Cell:
    if queue.pause is None:
        return queue.note or NOTHING
    until = queue.pause.paused_until
    return format_html(
        '{}<span class="skipqueue-detail">{}</span><span class="skipqueue-detail">{}</span>',
        gettext("until %(time)s") % {"time": pause_end(until)} if until else gettext("until it is resumed"),
        gettext("by %(user)s") % {"user": shortened(queue.pause.paused_by)} if queue.pause.paused_by else "",
        queue.pause.reason,
    )


def _option_cell(option: QueueOption[Any], queue: QueueState) -> Cell:
    form, setting = option.form, queue.settings.get(option.name)
    if setting is None:
        return NOTHING
    if not setting.is_changed:
        return form.in_words(setting.value)
    by_settings = gettext("in the settings: %(value)s") % {"value": form.in_words(setting.by_settings)}
    return format_html('{} <span class="skipqueue-detail">{}</span>', form.in_words(setting.value), by_settings)


def _jobs_link(queue: QueueState, status: str, text: str) -> SafeString:
    query = {"status": status, "queue": queue.name}
    return format_html('<a href="{}">{}</a>', address_of("job_changelist", query=query), text)


QUEUE_CELLS: Renderers[QueueState] = {
    "queue": _queue_cell,
    "queued": _queued_cell,
    "blocked": _blocked_cell,
    "running": _running_cell,
    "longest": None,
    "workers": _workers_cell,
    "note": _note_cell,
}


def columns_for(queues: Sequence[QueueState]) -> tuple[Column[QueueState], ...]:
    """Return the columns of a table of these queues."""
    options: Renderers[QueueState] = {option.name: partial(_option_cell, option) for option in queue_options()}
    return columns_of(queue_facts(), queues, {**QUEUE_CELLS, **options})

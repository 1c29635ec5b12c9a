"""The columns of the list of queues. A further one is a function of a `QueueState`, and an entry in `COLUMNS`.

The options that parts give have a column each, before the last one.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ....conf import settings
from ....values.counting import quantile
from ...counts import grouped, rate_in_words
from ...durations import span
from ...parts import QueueOption, processes_in_words, queue_options
from ...queues_and_workers import QueueState, has_rates, pause_end
from ..ui.cells import badge, shortened
from ..ui.columns import NOTHING, Cell, Column


def _queue(queue: QueueState) -> Cell:
    mark = badge("paused", gettext("paused")) if queue.pause else ""
    return format_html('<span class="skipqueue-name">{}</span> {}', shortened(queue.name), mark)


def _queued(queue: QueueState) -> Cell:
    number = gettext("about %(number)s") if queue.now.is_estimate else "%(number)s"
    return _jobs_link(queue, "queued", number % {"number": grouped(queue.now.queued)}) if queue.now.queued else "0"


def _blocked(queue: QueueState) -> Cell:
    return _jobs_link(queue, "blocked", str(queue.blocked)) if queue.blocked.found else str(queue.blocked)


def _oldest(queue: QueueState) -> Cell:
    return NOTHING if queue.now.oldest is None else span(max(queue.now.oldest, 0.0))


def _running(queue: QueueState) -> Cell:
    if not queue.now.running:
        return "0"
    holder = settings.external_queues.get(queue.name, "")
    text = gettext("with %(holder)s, the first for %(span)s") if holder else gettext("the longest for %(span)s")
    longest = text % {"span": span(max(queue.now.longest or 0.0, 0.0)), "holder": holder}
    return format_html(
        '{} <span class="skipqueue-detail">{}</span>',
        _jobs_link(queue, "running", grouped(queue.now.running)),
        longest,
    )


def _rate(queue: QueueState) -> Cell:
    return NOTHING if queue.rate is None else rate_in_words(queue.rate.per_minute)


def _waited(queue: QueueState) -> Cell:
    seconds = None if queue.rate is None else quantile(queue.rate.waited, 0.95)
    return NOTHING if seconds is None else span(seconds)


def _workers(queue: QueueState) -> Cell:
    if not queue.workers:
        return gettext("none")
    slots = sum(worker.slots for worker in queue.workers)
    others = sum(not worker.slots for worker in queue.workers)
    details = [ngettext("%(number)s slot", "%(number)s slots", slots) % {"number": grouped(slots)}] if slots else []
    if others:
        details.append(processes_in_words(others))
    return format_html(
        '{} <span class="skipqueue-detail">{}</span>', grouped(len(queue.workers) - others), " · ".join(details)
    )


def _pause(queue: QueueState) -> Cell:
    if queue.pause is None:
        return NOTHING
    until = queue.pause.paused_until
    return format_html(
        '{}<span class="skipqueue-detail">{}</span><span class="skipqueue-detail">{}</span>',
        gettext("until %(time)s") % {"time": pause_end(until)} if until else gettext("until it is resumed"),
        gettext("by %(user)s") % {"user": shortened(queue.pause.paused_by)} if queue.pause.paused_by else "",
        queue.pause.reason,
    )


def _setting(option: QueueOption[Any], queue: QueueState) -> Cell:
    form, setting = option.form, queue.settings.get(option.name)
    if setting is None:
        return NOTHING
    if not setting.is_changed:
        return form.in_words(setting.value)
    by_settings = gettext("in the settings: %(value)s") % {"value": form.in_words(setting.by_settings)}
    return format_html('{} <span class="skipqueue-detail">{}</span>', form.in_words(setting.value), by_settings)


def _jobs_link(queue: QueueState, status: str, text: str) -> SafeString:
    query = {"status": status, "queue": queue.name}
    return format_html('<a href="{}">{}</a>', reverse("admin:django_skipqueue_job_changelist", query=query), text)


COLUMNS: tuple[Column[QueueState], ...] = (
    Column("queue", _("queue"), _queue),
    Column("queued", _("queued"), _queued),
    Column("oldest", _("oldest job"), _oldest),
    Column("blocked", _("blocked"), _blocked),
    Column("running", _("running"), _running),
    Column("rate", _("jobs/min"), _rate),
    Column("waited", _("waited (p95)"), _waited),
    Column("workers", _("workers"), _workers),
)

PAUSE = Column("pause", _("paused"), _pause)


def columns_for(queues: Iterable[QueueState]) -> tuple[Column[QueueState], ...]:
    """The columns of a list of these queues: without those of blocked jobs and of most options if there are none."""
    listed = list(queues)
    empty = set() if has_rates() else {"rate", "waited"}
    if not any(queue.blocked.found or queue.blocked.is_capped for queue in listed):
        empty.add("blocked")
    own = [column for column in COLUMNS if column.name not in empty]
    of_options = [
        Column(option.name, option.label, partial(_setting, option))
        for option in queue_options()
        if option.is_always_shown or any(option.name in queue.settings for queue in listed)
    ]
    return (*own, *of_options, PAUSE)

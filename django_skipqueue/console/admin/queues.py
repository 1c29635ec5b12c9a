"""Queues in the admin: their list, and the views that pause and resume one, and set what parts let set.

A column of the list is a function of a `QueueState`, and an entry in `COLUMNS`. The options that parts give have a
column each, before the last one. Invariant: every view checks the user's permission itself, a GET changes nothing, and
every change is logged.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...exceptions import InvalidArguments, InvalidOption
from ...models import Queue
from ...values.bounds import check_columns
from ..counts import grouped, rate_in_words
from ..durations import span
from ..parts import QueueOption, processes_in_words, queue_options
from ..queues_and_workers import (
    MOST_QUEUES,
    QueueState,
    WorkerHealth,
    has_rates,
    pause_end,
    pause_sentence,
    queue_states,
)
from .notices import notices_cache
from .queue_forms import SETTINGS, PauseForm
from .ui.addresses import address_of
from .ui.cells import NOTHING, Cell, Column, badge, shortened
from .ui.views import READ, READ_OR_CHANGE, ReadOnlyViews, guarded, refreshing


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
    seconds = None if queue.rate is None else queue.rate.p95_wait
    return NOTHING if seconds is None else span(seconds)


def slots_in_words(workers: Iterable[WorkerHealth]) -> str:
    """The number of their slots, and of the processes that have none."""
    numbers = [worker.slots for worker in workers]
    slots, others = sum(numbers), numbers.count(0)
    words = ngettext("%(number)s slot", "%(number)s slots", slots) % {"number": grouped(slots)} if slots else ""
    return " · ".join(filter(None, [words, processes_in_words(others) if others else ""]))


def _workers(queue: QueueState) -> Cell:
    if not queue.workers:
        return gettext("none")
    number = grouped(sum(worker.slots > 0 for worker in queue.workers))
    return format_html('{} <span class="skipqueue-detail">{}</span>', number, slots_in_words(queue.workers))


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
    return format_html('<a href="{}">{}</a>', address_of("job_changelist", query=query), text)


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


def _may_change(_: Any, request: HttpRequest) -> bool:
    return request.user.has_perm("django_skipqueue.change_queue")


@admin.register(Queue)
class QueueAdmin(ReadOnlyViews):
    """Most queues are names without a row, so the list is a view of its own: a queue is there when a job names it."""

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/queue_list.css"]}

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("pause/", "pause", self.pause_view),
            self.page("resume/", "resume", self.resume_view),
            *(
                self.page(f"{option.page}/", option.page, partial(self.option_view, option=option))
                for option in queue_options()
            ),
            *super().get_urls(),
        ]

    @refreshing
    @guarded(*READ)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The known queues."""
        may_change = _may_change(self, request)
        queues = queue_states()
        columns = columns_for(queues)
        content = {
            "columns": columns,
            "rows": [self._row(queue, columns, may_change=may_change) for queue in queues],
            "most": MOST_QUEUES if len(queues) == MOST_QUEUES else 0,
            "may_change": may_change,
            "resume": self.address("resume"),
        }
        title = capfirst(str(self.opts.verbose_name_plural))
        return self.show(request, "queue/change_list.html", None, content | (extra_context or {}), title=title)

    @guarded(*READ_OR_CHANGE, may=_may_change)
    def pause_view(self, request: HttpRequest) -> HttpResponse:
        name = _require_queue_name(request.GET)
        form = PauseForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            reason = form.cleaned_data["reason"]
            Queue.pause(name, for_=form.duration, by=request.user.get_username(), reason=reason)
            return self._done(request, name, pause_sentence(Queue.objects.get(name=name)))
        return self.ask(
            request,
            title=gettext("Pause the queue “%(queue)s”?") % {"queue": name},
            subject=gettext("Pause the queue"),
            explanation=gettext("Workers stop taking jobs from this queue. Jobs already running finish."),
            form=form,
        )

    @guarded("POST", may=_may_change)
    def resume_view(self, request: HttpRequest) -> HttpResponse:
        name = _require_queue_name(request.POST)
        if Queue.resume(name, by=request.user.get_username()):
            return self._done(request, name, gettext("The queue “%(queue)s” was resumed.") % {"queue": name})
        message = gettext("The queue “%(queue)s” is not paused.") % {"queue": name}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    @guarded(*READ_OR_CHANGE, may=_may_change)
    def option_view(self, request: HttpRequest, option: QueueOption[Any]) -> HttpResponse:
        name = _require_queue_name(request.GET)
        setting = option.of(name)
        form = option.form(request.POST if request.method == "POST" else None, setting) if setting else None
        if form and form.is_valid():
            by = request.user.get_username()
            if form.cleaned_data[form.choice] == SETTINGS:
                option.follow_settings(name, by=by)
                return self._done(request, name, option.follows_settings % {"queue": name})
            option.change(name, form.chosen, by=by)
            return self._done(request, name, option.changed % {"queue": name, "value": form.in_words(form.chosen)})
        return self.ask(
            request,
            title=option.title % {"queue": name},
            subject=str(option.heading),
            explanation=str(option.explanation if form else option.without),
            can_be_done=form is not None,
            form=form,
        )

    def _done(self, request: HttpRequest, name: str, message: str) -> HttpResponse:
        notices_cache.clear()
        self.log_change(request, Queue(name=name), message)
        self.message_user(request, message, messages.SUCCESS)
        return HttpResponseRedirect(self.address("changelist"))

    def _row(self, queue: QueueState, columns: Iterable[Column[QueueState]], *, may_change: bool) -> dict[str, Any]:
        values = {"queue": queue.name}
        return {
            "name": queue.name,
            "cells": [(column, column.cell(queue)) for column in columns],
            "is_paused": queue.pause is not None,
            "pause": self.address("pause", query=values) if may_change else "",
            "options": [
                (self.address(option.page, query=values), option.button, option.button_in_full % values)
                for option in reversed(queue_options())
                if may_change and option.name in queue.settings
            ],
        }


def _require_queue_name(values: Any) -> str:
    """The queue that the request names. Raises `Http404` for what no queue is called."""
    name: str = values.get("queue", "")
    try:
        check_columns({"queue_name": name})
    except (InvalidArguments, InvalidOption) as error:
        raise Http404(str(error)) from None
    return name

"""Queues in the admin: their list, a queue's page, and the views that pause or resume a queue, or set options.

Every view checks the user's permission itself, a GET changes nothing, and every change is logged.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext

from ...exceptions import InvalidArguments, InvalidOption
from ...models import Queue
from ...values.bounds import check_columns
from ..parts import QueueOption, queue_options
from ..queues_and_workers import MOST_QUEUES_LISTED, QueueState, pause_sentence, queue_states
from ..workers import worker_rows, worker_states
from .dashboard import Dashboard
from .notices import notices_cache
from .queue_columns import columns_for
from .queue_forms import SETTINGS, PauseForm
from .ui.cells import Column, Table
from .ui.views import READ, READ_OR_CHANGE, ReadOnlyViews, guarded, refreshing
from .workers import WORKER_COLUMNS

SERVING = [column for column in WORKER_COLUMNS if column.name in ("state", "worker", "slots", "runs_now", "memory")]
"""The columns of the table of workers that serve a queue."""

MOST_WORKERS_OF_QUEUE = 50
"""A queue's page lists at most this many workers."""


def _may_change(_: Any, request: HttpRequest) -> bool:
    return request.user.has_perm("django_skipqueue.change_queue")


@admin.register(Queue)
class QueueAdmin(ReadOnlyViews):
    """The admin of queues. The list is our own view, because most queues have no row: only jobs contain their names."""

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
        """Show the known queues."""
        may_change = _may_change(self, request)
        queues = queue_states()
        columns = columns_for(queues)
        content = {
            "columns": columns,
            "rows": [self._row(queue, columns, may_change=may_change) for queue in queues],
            "most": MOST_QUEUES_LISTED if len(queues) == MOST_QUEUES_LISTED else 0,
            "may_change": may_change,
            "resume": self.address("resume"),
        }
        title = capfirst(str(self.opts.verbose_name_plural))
        return self.show(request, "queue/change_list.html", None, content | (extra_context or {}), title=title)

    @refreshing
    @guarded(*READ)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a queue. Every valid queue name has a page."""
        name = _require_queue_name({"queue": unquote(object_id)})
        dashboard = Dashboard.of(request.GET.dict() | {"queue": name}, request.user.has_perm, of_queue=True)
        queue = dashboard.situation.queue
        columns = columns_for([queue])
        serving_workers = (
            worker_rows().filter(pk__in=[worker.id for worker in queue.workers]).order_by("hostname", "name")
        )
        content = {
            "dashboard": dashboard,
            "facts": [(column, column.cell(queue)) for column in columns if column.name != "queue"],
            "row": self._row(queue, columns, may_change=_may_change(self, request)),
            "workers": Table(SERVING, worker_states(serving_workers[:MOST_WORKERS_OF_QUEUE])),
            "resume": self.address("resume"),
        }
        return self.show(request, "queue/page.html", name, content | (extra_context or {}), title=name)

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
            explanation=gettext(
                "Workers take no more jobs from this queue. Jobs that are already running will finish."
            ),
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
            username = request.user.get_username()
            if form.cleaned_data[form.choice] == SETTINGS:
                option.follow_settings(name, by=username)
                return self._done(request, name, option.follows_settings_message % {"queue": name})
            option.change(name, form.chosen, by=username)
            return self._done(
                request, name, option.changed_message % {"queue": name, "value": form.in_words(form.chosen)}
            )
        return self.ask(
            request,
            title=option.title % {"queue": name},
            subject=str(option.heading),
            explanation=str(option.explanation if form else option.unset_text),
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
    """Return the queue name in the request. Raise `Http404` if it is not a valid queue name."""
    name: str = values.get("queue", "")
    try:
        check_columns({"queue_name": name})
    except (InvalidArguments, InvalidOption) as error:
        raise Http404(str(error)) from None
    return name

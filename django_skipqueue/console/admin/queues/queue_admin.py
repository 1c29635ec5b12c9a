"""Queues in the admin: their list, and the views that pause and resume one, and set what parts let set.

Invariant: every view checks the user's permission itself, a GET changes nothing, and every change is logged.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext

from ....exceptions import InvalidArguments, InvalidOption
from ....models import Queue
from ....values.columns import check_columns
from ...parts import QueueOption, queue_options
from ...queues_and_workers import MOST_QUEUES, QueueState, pause_sentence, queue_states
from ..notices import notices_cache
from ..ui.columns import Column
from ..ui.views import OwnViews, refreshing
from .columns import columns_for
from .pause_form import PauseForm

MAY_CHANGE = "django_skipqueue.change_queue"


@admin.register(Queue)
class QueueAdmin(OwnViews):
    """Most queues are names without a row, so the list is a view of its own."""

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/queue_list.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """A queue is there when a job or a task names it."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        """The row of a queue takes no room that matters."""
        return False

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
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The known queues. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_change = request.user.has_perm(MAY_CHANGE)
        queues = queue_states()
        columns = columns_for(queues)
        context = self.context(request, None, title=capfirst(str(self.opts.verbose_name_plural))) | {
            "columns": columns,
            "rows": [self._row(queue, columns, may_change=may_change) for queue in queues],
            "most": MOST_QUEUES if len(queues) == MOST_QUEUES else 0,
            "may_change": may_change,
            "resume": self.address("resume"),
        }
        return TemplateResponse(
            request, "admin/django_skipqueue/queue/change_list.html", context | (extra_context or {})
        )

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        name = self._require_queue_name(request, request.GET)
        form = PauseForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            reason = form.cleaned_data["reason"]
            Queue.pause(name, for_=form.duration, by=request.user.get_username(), reason=reason)
            return self._done(request, name, pause_sentence(Queue.objects.get(name=name)))
        title = gettext("Pause the queue “%(queue)s”?") % {"queue": name}
        explanation = gettext("Workers stop taking jobs from this queue. Jobs already running finish.")
        return self._ask(request, form, gettext("Pause the queue"), title, explanation)

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        name = self._require_queue_name(request, request.POST)
        if Queue.resume(name, by=request.user.get_username()):
            return self._done(request, name, gettext("The queue “%(queue)s” was resumed.") % {"queue": name})
        message = gettext("The queue “%(queue)s” is not paused.") % {"queue": name}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    def option_view(self, request: HttpRequest, option: QueueOption[Any]) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        name = self._require_queue_name(request, request.GET)
        setting = option.of(name)
        form = option.form(request.POST if request.method == "POST" else None, setting) if setting else None
        if form and form.is_valid():
            by = request.user.get_username()
            if form.is_by_settings:
                option.follow_settings(name, by=by)
                return self._done(request, name, option.follows_settings % {"queue": name})
            option.change(name, form.chosen, by=by)
            return self._done(request, name, option.changed % {"queue": name, "value": form.in_words(form.chosen)})
        explanation = str(option.explanation if form else option.without)
        return self._ask(request, form, str(option.heading), option.title % {"queue": name}, explanation)

    def _ask(self, request: HttpRequest, form: Form | None, heading: str, title: str, explanation: str) -> HttpResponse:
        context = self.context(request, heading, title=title) | {
            "explanation": explanation,
            "can_be_done": form is not None,
            "form": form,
            "target": request.get_full_path(),
            "back": self.address("changelist"),
        }
        return TemplateResponse(request, "admin/django_skipqueue/job/confirm.html", context)

    def _require_queue_name(self, request: HttpRequest, values: Any) -> str:
        """The queue that the request names. Raises `PermissionDenied`, and `Http404` for what no queue is called."""
        if not (request.user.has_perm(MAY_CHANGE) and self.has_view_permission(request)):
            raise PermissionDenied
        name: str = values.get("queue", "")
        try:
            check_columns({"queue_name": name})
        except (InvalidArguments, InvalidOption) as error:
            raise Http404(str(error)) from None
        return name

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

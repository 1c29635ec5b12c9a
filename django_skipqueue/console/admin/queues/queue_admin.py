"""Queues in the admin: their list, and the views that pause, resume, limit and rate one.

Invariant: every view checks the user's permission itself, a GET changes nothing, and every change is logged.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....exceptions import InvalidArguments, InvalidOption
from ....models import Queue
from ....parts.limits.form import LimitForm
from ....parts.limits.states import LIMITS
from ....parts.rates.form import RateForm
from ....parts.rates.states import RATES
from ....values.columns import check_columns
from ... import queue_states as pauses
from ...queue_options import QueueOption
from ...queue_states import MOST, QueueState, queue_states
from ..notices import notices_cache
from ..ui.columns import Column
from ..ui.views import OwnViews, refreshing
from .columns import columns_for
from .pause_form import PauseForm
from .setting_form import SettingForm

MAY_CHANGE = "django_skipqueue.change_queue"


@dataclass(frozen=True, kw_only=True)
class Changing:
    """How the limit of a queue is changed, or its rate: the verbs and the words."""

    option: QueueOption[Any]
    form: type[SettingForm]
    change: Callable[..., None]
    follow_settings: Callable[..., None]
    title: Any
    heading: Any
    explanation: Any
    without: Any
    """Says that the queue has no such setting."""
    changed: Any
    follows_settings: Any


LIMITING = Changing(
    option=LIMITS,
    form=LimitForm,
    change=Queue.limit,
    follow_settings=Queue.limit_by_settings,
    title=_("Limit the queue “%(queue)s”?"),
    heading=_("Limit the queue"),
    explanation=_("So many of its jobs run at once, over all workers; the others wait. Jobs that run are left alone."),
    without=_('Its jobs can be limited once SKIPQUEUE["QUEUES"] names the queue, also with the number None.'),
    changed=_("Jobs of the queue “%(queue)s” that may run at once: %(value)s."),
    follows_settings=_("The limit of the queue “%(queue)s” is that of the settings again."),
)

RATING = Changing(
    option=RATES,
    form=RateForm,
    change=Queue.rate,
    follow_settings=Queue.rate_by_settings,
    title=_("Change the rate of the queue “%(queue)s”?"),
    heading=_("Change the rate"),
    explanation=_(
        "So many of its jobs start in a time, over all workers; the others wait. Jobs that run are left alone, and "
        "those that are queued wait again."
    ),
    without=_('Its jobs can be given a rate once SKIPQUEUE["QUEUES"] has one for the queue, also None.'),
    changed=_("Jobs of the queue “%(queue)s” that may start: %(value)s."),
    follows_settings=_("The rate of the queue “%(queue)s” is that of the settings again."),
)


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
            self.page("limit/", "limit", self.limit_view),
            self.page("rate/", "rate", self.rate_view),
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
            "most": MOST if len(queues) == MOST else 0,
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
            return self._done(request, name, pauses.sentence(Queue.objects.get(name=name)))
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

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        return self._change(request, LIMITING)

    def rate_view(self, request: HttpRequest) -> HttpResponse:
        return self._change(request, RATING)

    def _change(self, request: HttpRequest, changing: Changing) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        name = self._require_queue_name(request, request.GET)
        setting = changing.option.of(name)
        form = changing.form(request.POST if request.method == "POST" else None, setting) if setting else None
        if form and form.is_valid():
            by = request.user.get_username()
            if form.is_by_settings:
                changing.follow_settings(name, by=by)
                return self._done(request, name, changing.follows_settings % {"queue": name})
            changing.change(name, form.chosen, by=by)
            return self._done(request, name, changing.changed % {"queue": name, "value": form.in_words(form.chosen)})
        explanation = str(changing.explanation if form else changing.without)
        return self._ask(request, form, str(changing.heading), changing.title % {"queue": name}, explanation)

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
        return {
            "name": queue.name,
            "cells": [(column, column.cell(queue)) for column in columns],
            "is_paused": queue.pause is not None,
            "pause": self.address("pause", query={"queue": queue.name}) if may_change else "",
            "limit": self.address("limit", query={"queue": queue.name}) if may_change and queue.limit else "",
            "rate": self.address("rate", query={"queue": queue.name}) if may_change and queue.start_rate else "",
        }

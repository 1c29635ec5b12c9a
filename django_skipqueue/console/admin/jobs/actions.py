"""The actions of the job list: each verb of the table that has one, with its question and its log entries.

Invariant: many jobs are changed only after a question is answered. An action that would skip all jobs of the list is
not offered.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ....models import Job
from ...job_states import STATES, status_of
from ...search import is_id
from ..bulk.run import queue_with_workers
from ..ui.time_limit import Afterwards
from ..verbs import log, many_jobs
from ..verbs.forms import MANY, Instruction
from ..verbs.selection import Selection
from ..verbs.table import ACTIONS
from ..verbs.verb import Action, Verb
from .bulk_views import BY_HAND, discard_bulk_job
from .edit_views import EditViews
from .filters import StateFilter

CHANGELIST = "skipqueue_changelist"
"""The attribute of a request that has its list."""


def _as_django_has_it(verb: Verb, action: Action) -> Callable[..., HttpResponse]:
    """The verb as a function that Django takes for an action, by the name that the list posts."""

    def run(model_admin: "JobActions", request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return model_admin.ask_or_apply(request, verb, action, queryset)

    run.__name__ = verb.action_name
    return admin.action(run, description=action.label)


class JobActions(EditViews):
    actions: Sequence[Callable[..., Any] | str] = tuple(
        _as_django_has_it(verb, action) for verb, action in ACTIONS.values()
    )

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """The actions that the user may apply and that could change a job of the list. Django 6.1 passes a location."""
        state = request.GET.get(StateFilter.parameter_name, "")
        status = status_of(state) if state in STATES else None
        location = {} if action_location is None else {"action_location": action_location}
        return {
            name: action
            for name, action in super().get_actions(request, **location).items()
            if name not in ACTIONS or self._is_offered(request, ACTIONS[name][0], status)
        }

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list. Leaves it with the request: Django gives actions the jobs alone."""
        changelist: Any = super().get_changelist_instance(request)
        setattr(request, CHANGELIST, changelist)
        return changelist

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run the chosen action. Drops posted values that are not valid ids: Django would raise on them."""
        posted: Any = request.POST.copy()
        chosen = [each for each in posted.getlist(helpers.ACTION_CHECKBOX_NAME) if is_id(each)]
        posted.setlist(helpers.ACTION_CHECKBOX_NAME, chosen)
        request.POST = posted
        return super().response_action(request, queryset, *args, **kwargs)

    def ask_or_apply(self, request: HttpRequest, verb: Verb, action: Action, queryset: QuerySet[Job]) -> HttpResponse:
        selection = _selection(request, queryset)
        queue_name = queue_with_workers() if selection.ids is None and _is_large(selection) else None
        if selection.is_part and queue_name is None:  # then the rest of the list stays as it is
            selection = replace(selection, expected=int)
        number = _large_number(request, selection)
        form = verb.form(request.POST, number=number)
        if not form.is_valid():
            return self.ask_for_many(request, verb, action, selection, form, is_for_workers=queue_name is not None)
        instruction = form.instruction(request.user.get_username())
        waiting = request.POST.get(BY_HAND, "")
        if is_id(waiting) and not discard_bulk_job(int(waiting), verb, request.GET.urlencode(), instruction):
            self.message_user(request, gettext("A worker has begun."), messages.WARNING)
            return HttpResponseRedirect(self.address("progress", waiting))
        if queue_name is not None and not waiting:
            return self.hand_to_workers(
                request, verb, instruction, queue_name, number=number, is_least=selection.total.is_capped
            )
        return Afterwards(partial(self._apply_now, request, verb, action, selection, instruction))

    def _apply_now(
        self, request: HttpRequest, verb: Verb, action: Action, selection: Selection, instruction: Instruction
    ) -> HttpResponse:
        names = log.job_names(selection.ids or ())
        tally = many_jobs.apply(verb, selection, instruction)
        message = many_jobs.message_of(action, tally)
        if selection.ids is None:
            if tally.changed:
                log.record_all(request, verb, message, instruction)
        else:
            entry = log.with_reason(str(verb.log_entry), instruction)
            log.record(request, {pk: names[pk] for pk in tally.ids}, entry, flag=verb.log_flag)
        level = messages.SUCCESS if tally.changed and tally.left is None else messages.WARNING
        self.message_user(request, message, level)
        return HttpResponseRedirect(request.get_full_path())

    def _is_offered(self, request: HttpRequest, verb: Verb, status: str | None) -> bool:
        """Whether the user has the permission, and the list of the jobs in this status (`None`: in any) offers it."""
        return (status is None or verb.is_offered_for(status)) and self.may(request, verb)


def _selection(request: HttpRequest, found: QuerySet[Job]) -> Selection:
    """The jobs that were chosen by hand, or all that match: the `found` ones, and more of them further down."""
    if request.POST.get("select_across") != "1":
        return Selection.by_hand(request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))
    changelist = getattr(request, CHANGELIST)
    return Selection.all_matching(
        found,
        is_part=changelist.partly_searched is not None,
        listed=changelist.total,
        expected=changelist.expected,
    )


def _is_large(selection: Selection) -> bool:
    """Whether the chosen jobs are, or may be, more than `MANY`."""
    return (selection.listed or selection.total).found > (0 if selection.is_part else MANY)


def _large_number(request: HttpRequest, selection: Selection) -> int:
    """The number of chosen jobs where that is, or may be, more than `MANY`, else 0; once one was shown, that number."""
    if not _is_large(selection):
        return 0
    shown = request.POST.get("number", "")
    few = 0 if selection.is_part else MANY
    return int(shown) if is_id(shown) and int(shown) > few else selection.total.shown

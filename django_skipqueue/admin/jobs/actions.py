"""The actions of the job list: which are offered, what is asked, and what the log says of them.

Invariant: nothing is done to many jobs before a question has been answered, nor offered where it would skip them all.
"""

from typing import Any
from urllib.parse import unquote_plus

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import Job
from ..ui.ids import is_id
from ..ui.job_states import STATES, status_of
from ..verbs import log
from ..verbs.forms import MANY, Instruction
from ..verbs.many_jobs import Action
from ..verbs.selection import Selection
from ..verbs.table import ACTIONS, Cancel, Delete, Discard, Postpone, Retry, RunNow
from .filters import StateFilter
from .views import JobViews

MOST_COUNTED = 1_000_000
"""Jobs that are counted one by one, for somebody to type their number."""


class JobActions(JobViews):
    """What can be done with the jobs that are chosen in the list."""

    actions = tuple(ACTIONS)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Those that the user may, and that could change a job of the list. Django 6.1 says for which page."""
        state = request.GET.get(StateFilter.parameter_name, "")
        status = status_of(state) if state in STATES else None
        location = {} if action_location is None else {"action_location": action_location}
        allowed = super().get_actions(request, **location)
        return {name: action for name, action in allowed.items() if ACTIONS[name].is_offered(status)}

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run the chosen action, without what was sent as an id and is none: Django fails at that."""
        posted: Any = request.POST.copy()
        chosen = [each for each in posted.getlist(helpers.ACTION_CHECKBOX_NAME) if is_id(each)]
        posted.setlist(helpers.ACTION_CHECKBOX_NAME, chosen)
        request.POST = posted
        return super().response_action(request, queryset, *args, **kwargs)

    @admin.action(permissions=["retry"], description=_("Retry selected %(verbose_name_plural)s"))
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Put the failed and discarded ones back into their queues."""
        return self._act(request, Retry(), queryset)

    @admin.action(permissions=["run_now"], description=_("Run selected %(verbose_name_plural)s now"))
    def run_now_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Make the scheduled and retrying ones due."""
        return self._act(request, RunNow(), queryset)

    @admin.action(permissions=["postpone"], description=_("Postpone selected %(verbose_name_plural)s"))
    def postpone_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Have those wait that are not running."""
        return self._act(request, Postpone(), queryset)

    @admin.action(permissions=["discard"], description=_("Discard selected %(verbose_name_plural)s"))
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Finish the scheduled and queued ones without running them."""
        return self._act(request, Discard(), queryset)

    @admin.action(permissions=["cancel"], description=_("Cancel selected %(verbose_name_plural)s"))
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Discard those that are not finished, and interrupt those that run."""
        return self._act(request, Cancel(), queryset)

    @admin.action(permissions=["delete"], description=_("Delete selected %(verbose_name_plural)s"))
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Remove those that are not running."""
        return self._act(request, Delete(), queryset)

    def _act(self, request: HttpRequest, action: Action, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask first; then do it."""
        if request.POST.get("select_across") == "1":
            selection = Selection.all_matching(queryset)
        else:
            selection = Selection.by_hand(request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))
        question = action.question(request.POST, number=_large_number(request, selection))
        if not question.is_valid():
            return self.ask(request, action, selection, question)
        self._do(request, action, selection, question.instruction(request.user.get_username()))
        return None

    def _do(self, request: HttpRequest, action: Action, selection: Selection, wanted: Instruction) -> None:
        names = log.names_of(selection.ids or ())
        tally, changed = action.run(selection, wanted)
        told = action.told(tally)
        if selection.ids is not None:
            logged = _with_reason(str(action.logged), wanted)
            log.record(request, {pk: names[pk] for pk in changed}, logged, flag=action.flag)
        elif tally.changed:
            name = gettext("all jobs matching %(filter)s") % {"filter": _filter(request)}
            logged = _with_reason(f"{told} {gettext('Filter: %s') % _filter(request)}", wanted)
            log.record_many(request, name, logged, flag=action.flag)
        level = messages.SUCCESS if tally.changed and tally.left is None else messages.WARNING
        self.message_user(request, told, level)


def _large_number(request: HttpRequest, selection: Selection) -> int:
    """How many jobs were chosen, where that is more than `MANY`; the number that was shown, once it was."""
    if selection.count(MANY + 1) <= MANY:
        return 0
    shown = request.POST.get("number", "")
    return int(shown) if is_id(shown) and int(shown) > MANY else selection.count(MOST_COUNTED)


def _with_reason(logged: str, wanted: Instruction) -> str:
    return f"{logged} {gettext('Reason: %s') % wanted.reason}" if wanted.reason else logged


def _filter(request: HttpRequest) -> str:
    """What the list was filtered by, to be read and to be typed after its address."""
    return f"?{unquote_plus(request.GET.urlencode())}"

"""Steps in the admin: on the page of a job, in the filters of the list, on the dashboard, and the form of a signal."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.ui.cells import badge, shortened
from ...console.admin.verbs.one_job import CONFIRMED
from ...console.durations import span
from ...console.verbs.table import run_again
from ...exceptions import InvalidArguments, InvalidOption
from ...models import FINISHED, Job, JobStep, Status
from ...queue.store import Store
from ...values.codec import clean
from .console import JobSteps, state_of_step, step_counts
from .operate import copy_steps, retry_from_step

RESULT_LIMIT = 2_000
"""Characters of a result on the page of a job."""


def shown_steps(found: JobSteps) -> dict[str, Any]:
    """What the page of a job shows. `found` is not empty."""
    return {
        "steps": [
            {
                "step": step,
                "state": state_of_step(step, found.job),
                "took": span(step.recorded_at - step.started_at) if step.recorded_at else "",
                "value": _as_text(found.shown(step.result if step.error is None else step.error)),
            }
            for step in found.steps
        ],
        "signals": [{"signal": signal, "value": _as_text(found.shown(signal.payload))} for signal in found.signals],
        "children": [
            (child, badge(state, Status(state).label) if state else badge("discarded", gettext("deleted")))
            for child, state in found.children
        ],
        "parents": found.parents,
        "job": found.job,
        "can_get_signals": found.job.finished_at is None,
        "can_be_retried": found.job.status in (Status.FAILED, Status.DISCARDED),
        "can_run_again": found.job.status in FINISHED,
    }


def _as_text(value: Any) -> str:
    return "" if value is None else clean(json.dumps(value, ensure_ascii=False), RESULT_LIMIT)


class SignalFilter(admin.SimpleListFilter):
    """The jobs that wait for a signal. Index: waiting of steps."""

    title = _("signal")
    parameter_name = "signal"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("waits", _("waits for a signal"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.value() != "waits":
            return queryset
        return queryset.filter(pk__in=JobStep.objects.using(queryset.db).filter(is_waiting=True).values("job_id"))


def job_filters() -> tuple[type[SignalFilter], ...]:
    return (SignalFilter,)


def on_dashboard(_: object = None) -> Mapping[str, Any]:
    """How many jobs wait for signals, and how many sleep."""
    counts = step_counts(Store.default())
    return {
        "counts": counts,
        "is_shown": bool(counts.waiting or counts.untaken or counts.sleeping),
        "waiting_for": span(counts.waiting_seconds),
        "untaken_for": span(counts.untaken_seconds),
    }


class SignalForm(forms.Form):
    name = forms.CharField(label=_("Name"), max_length=200, widget=AdminTextInputWidget)
    payload = forms.JSONField(
        label=_("Payload"),
        help_text=_("JSON, such as {“approved”: true}. Without one, the task gets None."),
        required=False,
        widget=AdminTextareaWidget({"rows": 4}),
    )


class StepForm(forms.Form):
    """Which step, and why."""

    step = forms.ChoiceField(label=_("Step"))
    reason = forms.CharField(label=_("Reason"), max_length=200, required=False, widget=AdminTextInputWidget)

    def __init__(self, posted: Any, names: list[str], chosen: str) -> None:
        super().__init__(posted, initial={"step": chosen})
        self.fields["step"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]


def retry_from_view(pages: Any, request: HttpRequest, job_id: int) -> HttpResponse:
    """Ask from which step on to retry a job, and do it."""

    def apply(job: Job, step: str, reason: str) -> int | None:
        by = request.user.get_username()
        return job.pk if retry_from_step(Store.default(), job.pk, step, by=by, reason=reason) else None

    return _ask_for_step(
        pages,
        request,
        job_id,
        title=gettext("Retry from a step?"),
        subject=gettext("Retry from step"),
        explanation=gettext("The records of this step and of all later steps are forgotten, and the job is retried."),
        statuses=(Status.FAILED, Status.DISCARDED),
        apply=apply,
        entry=gettext("Retried from the step “%(step)s”."),
    )


def run_again_from_view(pages: Any, request: HttpRequest, job_id: int) -> HttpResponse:
    """Ask from which step on to run a copy of a job, and make the copy."""

    def apply(job: Job, step: str, reason: str) -> int | None:
        store, by = Store.default(), request.user.get_username()
        with transaction.atomic(using=store.alias):
            copy_id = run_again(store, [job.pk], by=by, reason=reason).get(job.pk)
            if copy_id is not None:
                copy_steps(store, job.pk, copy_id, step)
        return copy_id

    return _ask_for_step(
        pages,
        request,
        job_id,
        title=gettext("Run again from a step?"),
        subject=gettext("Run again from step"),
        explanation=gettext("A new job is made, with the records of the steps before this one."),
        statuses=FINISHED,
        apply=apply,
        entry=gettext("Run again from the step “%(step)s”."),
    )


def _ask_for_step(  # noqa: PLR0913 (the texts of a verb)
    pages: Any,
    request: HttpRequest,
    job_id: int,
    *,
    title: str,
    subject: str,
    explanation: str,
    statuses: Collection[str],
    apply: Callable[[Job, str, str], int | None],
    entry: str,
) -> HttpResponse:
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        redirect: HttpResponse = pages.redirect_job_missing(request, str(job_id))
        return redirect
    names = [step.name for step in JobSteps.of(job).steps]
    form = StepForm(request.POST if CONFIRMED in request.POST else None, names, request.GET.get("step", ""))
    page = pages.address("change", job.pk)
    if job.status not in statuses or not names:
        text = gettext("Job %(id)s has no steps, or its status does not allow that.")
        pages.message_user(request, text % {"id": job.pk}, messages.WARNING)
        return HttpResponseRedirect(page)
    if form.is_valid():
        step = form.cleaned_data["step"]
        shown = apply(job, step, form.cleaned_data["reason"])
        if shown is None:
            text = gettext("Nothing was done: another job holds the unique key, or the job has changed meanwhile.")
            pages.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(page)
        text = entry % {"step": shortened(step)}
        pages.log_change(request, job, text)
        pages.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(pages.address("change", shown))
    asked: HttpResponse = pages.ask(
        request, title=title, subject=subject, explanation=explanation, form=form, back=page
    )
    return asked


def signal_view(pages: Any, request: HttpRequest, job_id: int) -> HttpResponse:
    """Ask for a signal, and send it. `pages`: the `JobAdmin`."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        redirect: HttpResponse = pages.redirect_job_missing(request, str(job_id))
        return redirect
    page = HttpResponseRedirect(pages.address("change", job.pk))
    waits_for = JobSteps.of(job).waits_for
    form = SignalForm(request.POST if CONFIRMED in request.POST else None, initial={"name": waits_for})
    if form.is_valid():
        name, by = form.cleaned_data["name"], request.user.get_username()
        try:
            is_sent = job.signal(name, form.cleaned_data["payload"], by=by)
        except (InvalidOption, InvalidArguments) as error:
            form.add_error(None, str(error))
        else:
            _say_what_was_sent(pages, request, job, name, is_sent=is_sent)
            return page
    if job.finished_at is not None:
        pages.message_user(request, _refused(job, "") or "", messages.WARNING)
        return page
    asked: HttpResponse = pages.ask(
        request,
        title=gettext("Send a signal to job %(id)s?") % {"id": job.pk},
        subject=gettext("Send signal"),
        explanation=gettext("The task gets the payload from context.wait with this name. It can be sent once."),
        form=form,
        back=pages.address("change", job.pk),
    )
    return asked


def _say_what_was_sent(pages: Any, request: HttpRequest, job: Job, name: str, *, is_sent: bool) -> None:
    if not is_sent:
        job.refresh_from_db()
        pages.message_user(request, _refused(job, name), messages.WARNING)
        return
    facts = {"name": shortened(name), "id": job.pk}
    pages.log_change(request, job, gettext("Sent the signal “%(name)s”.") % facts)
    pages.message_user(request, gettext("The signal “%(name)s” was sent to job %(id)s.") % facts, messages.SUCCESS)


def _refused(job: Job, name: str) -> str:
    facts = {"name": shortened(name), "id": job.pk}
    if job.finished_at is not None:
        return gettext("Job %(id)s is finished, and gets no signal.") % facts
    return gettext("Job %(id)s has already got a signal “%(name)s”.") % facts

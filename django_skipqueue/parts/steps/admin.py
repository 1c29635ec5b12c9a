"""Steps in the admin: on the page of a job, in the filters of the list, on the dashboard, and the form of a signal."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.ui.cells import badge
from ...console.durations import span
from ...models import FINISHED, Job, JobStep, Status
from ...queue.store import Store
from ...values.codec import clean
from .console import ChildJob, JobSteps, state_of_step, step_counts

RESULT_LIMIT = 2_000
"""The page of a job cuts a result to this number of characters."""


def shown_steps(found: JobSteps) -> dict[str, Any]:
    """Return what the page of a job shows. `found` must contain records."""
    is_in_table = isinstance(found.job, Job)  # False for an archived job
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
        "left_out": found.left_out,
        "signals": [{"signal": signal, "value": _as_text(found.shown(signal.payload))} for signal in found.signals],
        "children": _shown_children(found.children),
        "parents": found.parents,
        "job": found.job,
        "can_be_retried": is_in_table and found.job.status in (Status.FAILED, Status.DISCARDED),
        "can_run_again": is_in_table and found.job.status in FINISHED,
    }


def _shown_children(children: Sequence[ChildJob]) -> list[dict[str, Any]]:
    return [
        {
            "row": child.row,
            "badge": badge(child.status, Status(child.status).label)
            if child.status
            else badge("discarded", gettext("deleted")),
            "children": _shown_children(child.children),
        }
        for child in children
    ]


def _as_text(value: Any) -> str:
    return "" if value is None else clean(json.dumps(value, ensure_ascii=False), RESULT_LIMIT)


class SignalFilter(admin.SimpleListFilter):
    """Filters the list of jobs by whether they wait for a signal. Index: waiting of steps."""

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
    """Return how many jobs wait for signals, and how many sleep."""
    counts = step_counts(Store.default())
    return {
        "counts": counts,
        "is_shown": bool(counts.waiting or counts.untaken or counts.sleeping),
        "waiting_for": span(counts.waiting_seconds),
        "untaken_for": span(counts.untaken_seconds),
    }

"""The views of verbs that a worker applies: handing them over, and the page that shows their progress.

Invariant: a job that waits is taken back from the workers before the server applies its verb itself.
"""

from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Now
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseNotFound,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from ....models import Job
from ....queue.store import Store
from ..bulk.progress_page import ProgressPage
from ..bulk.run import BulkAction
from ..verbs import log, one_job
from ..verbs.copies import BULK_TASK
from ..verbs.forms import Instruction
from ..verbs.table import CANCEL
from ..verbs.verb import Verb
from .changelist import WINDOW_VAR
from .verb_views import VerbViews

BY_HAND = "by_hand"
"""The form field with the id of a job that waits for a worker, and whose verb the server is to apply."""


class BulkViews(VerbViews):
    def hand_to_workers(
        self,
        request: HttpRequest,
        verb: Verb,
        instruction: Instruction,
        queue_name: str,
        *,
        number: int,
        is_least: bool,
    ) -> HttpResponse:
        """Enqueue a job that applies the verb to all jobs of this list, and show its progress.

        `is_least`: there may be more than this number.
        """
        values = asdict(instruction)
        del values["run_after"]  # no verb for many jobs has it
        bulk = BulkAction(
            action=verb.action_name,
            query=_query_of(request),
            site=self.admin_site.name,
            user_id=request.user.pk,
            number=number,
            is_least=is_least,
            **values,
        )
        return HttpResponseRedirect(self.address("progress", bulk.enqueue(queue_name).pk))

    def progress_view(self, request: HttpRequest, job_id: int) -> HttpResponse:
        """Show how far the job is; a POST stops it."""
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        job: Any = Job.objects.annotate(now=Now()).filter(pk=job_id, task=BULK_TASK).first()
        is_fragment = "fragment" in request.GET
        if job is None:
            return HttpResponseNotFound() if is_fragment else self.redirect_job_missing(request, str(job_id))
        bulk = BulkAction.of(job)
        if bulk is None:
            raise Http404
        may_stop = self.may(request, CANCEL) or bulk.user_id == request.user.pk
        if request.method == "POST":
            if not may_stop:
                raise PermissionDenied
            return self._stop(request, job)
        context: dict[str, Any] = {
            "content": "admin/django_skipqueue/job/progress.html",
            "page": ProgressPage(job, job.now, bulk),
            "list": f"{self.address('changelist')}?{bulk.query}",
            "job": self.address("change", job.pk),
            "may_stop": may_stop,
            "may_apply": self.may(request, bulk.verb),
        }
        if is_fragment:
            return TemplateResponse(request, context["content"], context)
        title = gettext("Progress of job %(id)s") % {"id": job.pk}
        return TemplateResponse(
            request, "admin/django_skipqueue/job/page.html", context | self.context(request, title, title=title)
        )

    def _stop(self, request: HttpRequest, job: Job) -> HttpResponse:
        """Cancel the job. What it has done stays done."""
        button = CANCEL.button
        assert button is not None  # noqa: S101 (a verb of the table)
        result = one_job.apply(CANCEL, button, job, Instruction(request.user.get_username()))
        for pk, name, entry in result.log_entries:
            log.record(request, {pk: name}, entry)
        self.message_user(request, result.message, messages.SUCCESS if result.log_entries else messages.WARNING)
        return HttpResponseRedirect(self.address("progress", job.pk))


def _query_of(request: HttpRequest) -> str:
    query = request.GET.copy()
    query.pop(WINDOW_VAR, None)
    return query.urlencode()


def discard_bulk_job(job_id: int, verb: Verb, query: str, instruction: Instruction) -> bool:
    """Discard a job that waits for a worker to apply the verb to this list. Returns whether it still waited."""
    job = Job.objects.filter(pk=job_id, task=BULK_TASK).first()
    if job is None:
        return False
    bulk = BulkAction.of(job)
    is_the_same = bulk is not None and (bulk.action, bulk.query) == (verb.action_name, query)
    return is_the_same and bool(Store.default().discard([job_id], by=instruction.user))

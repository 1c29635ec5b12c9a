"""The view that runs a finished job again with other arguments."""

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.translation import gettext

from ....conf import settings, using_database
from ....exceptions import UnknownTask
from ....jobs.registry import registry
from ....models import Job
from ....values.codec import shorten
from ...parts import why_existing
from ..ui.cells import badge_of
from ..ui.views import DATABASE
from ..verbs import log, one_job
from ..verbs.copies import EDIT, LOG_ENTRY, LOG_ENTRY_OF_COPY, EditForm, why_not_copied, why_not_edited
from ..verbs.table import RUN_AGAIN
from .bulk_views import BulkViews


class EditViews(BulkViews):
    def edit_view(self, request: HttpRequest, job_id: int) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if not self.may(request, RUN_AGAIN):
            raise PermissionDenied
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            return self.redirect_job_missing(request, str(job_id))
        fits = job.status in RUN_AGAIN.statuses
        if reason := (why_not_copied(job) or why_not_edited(job)) if fits else one_job.does_not_fit(EDIT, job):
            return self._refuse(request, job, reason)
        try:
            task = registry.get(job.task)
        except UnknownTask:
            reason = gettext("The task %(task)s is not registered in this process, so its arguments cannot be checked.")
            return self._refuse(request, job, reason % {"task": shorten(job.task, one_job.TEXT_LIMIT)})
        form = EditForm(job, task, request.POST)
        if form.is_valid() and (made := form.enqueue()):
            if made.created:
                return self._show_made(request, job, made)
            form.add_error(None, why_existing(job, made))
        return self._ask_for_arguments(request, job, form)

    def _ask_for_arguments(self, request: HttpRequest, job: Job, form: EditForm) -> HttpResponse:
        subject = str(EDIT.question_title) % {"id": job.pk}
        return self.ask(
            request,
            title=gettext("%(order)s?") % {"order": subject},
            subject=subject,
            explanation=EDIT.hint,
            sample=[(job, badge_of(job))],
            can_be_done=True,
            form=form,
            target=self.address("edit", job.pk),
            back=self.address("change", job.pk),
        )

    def _show_made(self, request: HttpRequest, job: Job, made: Job) -> HttpResponse:
        values = {"id": job.pk, "copy": made.pk}
        log.record(request, {job.pk: str(job)}, str(LOG_ENTRY) % values)
        with using_database(made._state.db or settings.database):
            log.record(request, {made.pk: str(made)}, str(LOG_ENTRY_OF_COPY) % values)
            query = {DATABASE: settings.database} if settings.serves_several else None
        self.message_user(request, str(EDIT.done) % values, messages.SUCCESS)
        return HttpResponseRedirect(self.address("change", made.pk, query=query))

    def _refuse(self, request: HttpRequest, job: Job, reason: str) -> HttpResponse:
        self.message_user(request, reason, messages.WARNING)
        return HttpResponseRedirect(self.address("change", job.pk))

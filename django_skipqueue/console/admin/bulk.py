"""Bulk actions: a background job that applies a verb to a whole job list, or searches it.

One request could not handle a long list. The background job's arguments are the verb and the query string of the
list's URL. The worker evaluates the query string with the same code as the admin. The background job reads the list one
window at a time, from front to end; a window is a limited part of the list. The background job does not find a job
again that it has already changed, even if the change has moved the job to another position in the list. The background
job's metadata contains its progress. Each batch is written in one transaction with the progress, so after a crash the
next attempt continues after the last batch. No job is changed twice or left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, get_origin

from django.apps import apps
from django.contrib.admin import ModelAdmin
from django.contrib.admin.sites import all_sites
from django.contrib.auth import get_user_model
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models import DateTimeField, Q, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.db.models.lookups import GreaterThanOrEqual
from django.http import HttpRequest, QueryDict

from ...conf import settings, using_database
from ...exceptions import LeaseLost
from ...jobs.context import JobContext
from ...models import Job, Queue
from ...models.copies import BULK_TASK
from ...values.codec import encode
from ...values.outcomes import Discard
from ..counts import expected
from ..durations import moment_of
from ..queues_and_workers import Workforce
from ..search import SearchWindow, size_of
from ..verbs.table import verbs_by_action
from ..verbs.verb import Instruction, Verb
from .verbs import log, many_jobs
from .verbs.many_jobs import ChangeTally, Selection, newest_id
from .verbs.one_job import CONFIRMED, VerbForm

BULK_PRIORITY = 100
"""The background job's priority. It is high, so that the job runs before the jobs that it changes."""


SEARCH = "search"
"""The action that searches a whole list. It does not change the jobs."""

MOST_FOUND = 1_000
"""A search ends when it has found this many jobs."""

SIGNER = Signer(salt="django_skipqueue.admin.bulk")


def _searched_models() -> set[str | None]:
    """Return the names of the models whose lists offer bulk actions or a search of the whole list."""
    admins = [(model, admin) for site in all_sites for model, admin in site._registry.items()]
    return {model._meta.model_name for model, admin in admins if hasattr(admin, "search_view")}


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    action: str
    """A key of `verbs_by_action`, or `SEARCH`."""
    query: str
    """The query string of the list's URL."""
    site: str
    """The name of the admin site."""
    user_id: Any
    user: str
    number: int = 0
    """The number of matching jobs that the confirmation page showed."""
    model: str = "job"
    """The list's model. A part may have its own job list."""
    is_lower_bound: bool = False
    """Whether more jobs than `number` may match, because counting stopped early. The job then counts all of them."""
    answers: dict[str, str] = field(default_factory=dict)
    """The values that the user entered in the form for the verb."""
    signature: str = ""
    """A signature of all other values, made with `SECRET_KEY`, so that nobody else can forge a job that acts for a
    user."""

    @classmethod
    def of(cls, job: Job) -> "BulkAction | None":
        """Read the action from the job's arguments; return `None` if they are malformed."""
        kwargs = job.kwargs if isinstance(job.kwargs, dict) else {}
        type_by_field = {field.name: get_origin(field.type) or field.type for field in fields(cls)}
        try:
            action = cls(**kwargs)
        except TypeError:
            return None
        has_right_types = all(
            type_by_field[name] is Any or type(value) is type_by_field[name] for name, value in kwargs.items()
        )
        is_known = action.action in (*verbs_by_action(), SEARCH) and action.model in _searched_models()
        return action if has_right_types and is_known else None

    @property
    def is_genuine(self) -> bool:
        """Whether a process with the project's `SECRET_KEY` has signed this action."""
        try:
            SIGNER.unsign(f"{self._signed_text()}{SIGNER.sep}{self.signature}")
        except BadSignature:
            return False
        return True

    def is_allowed(self, model_admin: Any, request: HttpRequest) -> bool:
        """Return whether the user may search jobs, or apply this verb to jobs."""
        if self.action == SEARCH:
            return bool(model_admin.has_view_permission(request))
        return bool(model_admin.may(request, self.verb))

    def may_be_viewed(self, admin_site: Any, request: HttpRequest) -> bool:
        """Return whether the user may see the jobs of this list."""
        model_admin = admin_site._registry.get(apps.get_model(Job._meta.app_label, self.model))
        return model_admin is not None and bool(model_admin.has_view_permission(request))

    @property
    def verb(self) -> Verb:
        """The verb to apply. Raises `KeyError` for a search."""
        return verbs_by_action()[self.action]

    def instruction(self) -> Instruction:
        """Return what the verb needs to know. Raise `Discard` if the form no longer accepts the user's answers."""
        form = VerbForm(self.verb, {**self.answers, CONFIRMED: "yes"})
        if not form.is_valid():
            raise Discard(f"The answers are no longer valid: {form.errors.as_json()}")
        return form.instruction(self.user)

    def model_admin(self) -> "ModelAdmin[Any]":
        model = apps.get_model(Job._meta.app_label, self.model)
        return next(site for site in all_sites if site.name == self.site)._registry[model]

    def enqueue(self, queue_name: str) -> Job:
        """Sign this action, and enqueue its job. `.defer()` would refuse the task, because it is internal."""
        kwargs = encode("kwargs", asdict(self.signed()))
        return Job.objects.enqueue(BULK_TASK, kwargs=kwargs, queue_name=queue_name, priority=BULK_PRIORITY)

    def signed(self) -> "BulkAction":
        return replace(self, signature=SIGNER.signature(self._signed_text()))

    def _signed_text(self) -> str:
        """Return all values except the signature as JSON. A user id that is not a number is signed as text."""
        return json.dumps(asdict(replace(self, signature="")), sort_keys=True, default=str)


def queue_with_workers() -> str | None:
    """Return a queue where a worker will run a job soon. Prefer `default`.

    The queue is not paused, has a live worker, and is not carried, which means that no other system runs its jobs.
    """
    workforce = Workforce.now()
    unusable_names = {*Queue.objects.paused().values_list("name", flat=True), *settings.external_queues}
    names = ["default", *(queue_name for worker in workforce.runners for queue_name in worker.queues)]
    return next((name for name in names if name not in unusable_names and workforce.serving(name)), None)


PROGRESS_KEY = "progress"
"""The key in the background job's metadata that contains its progress."""


@dataclass(frozen=True)
class BulkProgress:
    newest: int
    """The highest job id at the start. Jobs that are added later are left out."""
    edges: tuple[Any, Any] = (None, None)
    """The start and the end of the current window, which is a part of the list."""
    after: int = 0
    """The last id that was handled in this window."""
    counted: int | None = None
    """The number of matching jobs at the start, in all windows; `None` if they were not all counted."""
    changed: int = 0
    skipped: int = 0
    looked_at: int = 0
    """For a search: the number of jobs in the finished windows. It may be too high for the list's last window."""
    found: tuple[int, ...] = ()
    """For a search: the ids of the matching jobs, at most `MOST_FOUND`."""

    @classmethod
    def of(cls, job: Job) -> "BulkProgress | None":
        """Read the progress from the job's metadata; return `None` if it is missing or malformed."""
        stored_progress = job.metadata.get(PROGRESS_KEY) if isinstance(job.metadata, dict) else None
        try:
            start, end = map(_edge_from_json, stored_progress["edges"])  # type: ignore[index]
            found = tuple(stored_progress.get("found", ()))  # type: ignore[union-attr]
            progress = cls(**{**stored_progress, "edges": (start, end), "found": found})  # type: ignore[dict-item]
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        numbers = (
            progress.newest,
            progress.after,
            progress.counted or 0,
            progress.changed,
            progress.skipped,
            progress.looked_at,
            *progress.found,
        )
        return progress if all(isinstance(number, int) for number in numbers) else None

    def within(self, window: SearchWindow) -> "BulkProgress":
        """Return the progress for this window. In a new window, no job has been handled yet."""
        edges = (window.start, window.end)
        return self if edges == self.edges else replace(self, edges=edges, after=0)

    @property
    def done(self) -> int:
        return self.changed + self.skipped

    def save(self, context: JobContext) -> None:
        """Write the progress into the job. Raise `LeaseLost` if the job was cancelled or taken over."""
        metadata = {PROGRESS_KEY: {**asdict(self), "edges": [_edge_to_json(edge) for edge in self.edges]}}
        if not Job.objects.running().filter(pk=context.job_id, lease=context.lease).update(metadata=metadata):
            raise LeaseLost(f"Job {context.job_id} was cancelled, or taken over by another worker.")


def _edge_to_json(edge: tuple[Any, ...] | None) -> list[Any] | None:
    return None if edge is None else [key.isoformat() if isinstance(key, datetime) else key for key in edge]


def _edge_from_json(edge: list[Any] | None) -> tuple[Any, ...] | None:
    return None if edge is None else tuple(moment_of(key) or key for key in edge)


@dataclass(frozen=True)
class BulkRun:
    """One attempt of a background job to apply a bulk action to a list, or to search the list."""

    bulk: BulkAction
    job: Job
    """The background job that performs the action."""
    request: HttpRequest
    changelist: Any
    """A `JobChangeList`."""

    def begin(self) -> BulkProgress:
        """Return the progress before the first job.

        If the confirmation page could not count the jobs, count them here. For a search, the count is the list's
        estimated length, from the database's statistics.
        """
        # If an index finds all matching jobs, the list is a single window without a start and an end.
        first_window = self.changelist.window or SearchWindow(self.changelist.indexed, 1, None, None)
        progress = BulkProgress(newest_id(), (first_window.start, first_window.end))
        if self.bulk.action == SEARCH:
            return replace(progress, counted=expected(self.changelist.indexed.jobs()))
        if not self.bulk.is_lower_bound:
            return progress
        matching_jobs = (
            self.within(window).jobs.filter(pk__lte=progress.newest) for window in self.windows(progress.edges)
        )
        return replace(progress, counted=sum(jobs.count() for jobs in matching_jobs))

    def windows(self, edges: tuple[Any, Any]) -> Iterator[SearchWindow]:
        """Yield the window with these edges, and then all windows after it."""
        return SearchWindow(self.changelist.indexed, 1, *edges).and_all_after()

    def within(self, window: SearchWindow) -> Selection:
        """Select the jobs of this window that the action has not changed yet.

        The background job itself is left out, because it may match the list's filters.
        """
        jobs = self.changelist.jobs_within(window, self.request).exclude(pk=self.job.pk)
        return Selection(jobs if window.start is None else jobs.filter(self._is_unchanged()))

    def search(self, progress: BulkProgress, context: JobContext) -> BulkProgress:
        """Continue the search until the list ends, or `MOST_FOUND` jobs are found.

        It can be stopped after each window. If an attempt was interrupted within a window, the whole window is searched
        again.
        """
        for window in self.windows(progress.edges):
            progress = progress.within(window)
            progress.save(context)
            searched_count, total = progress.looked_at, max(progress.counted or 1, progress.looked_at)
            context.progress(searched_count / total, f"{searched_count:,} of {total:,}")
            jobs = self.changelist.jobs_within(window, self.request).exclude(pk__in=[self.job.pk, *progress.found])
            found_ids = jobs.values_list("pk", flat=True)[: MOST_FOUND - len(progress.found)]
            looked_at = progress.looked_at + size_of(window.indexed)
            progress = replace(progress, looked_at=looked_at, found=(*progress.found, *found_ids))
            if len(progress.found) == MOST_FOUND:
                break
        progress.save(context)
        return progress

    def _is_unchanged(self) -> Q:
        """Return the condition for jobs that this action has not changed: their last operation is another or older."""
        last_changed_at = Cast(KT("operations__-1__at"), DateTimeField())
        is_recent = Q(GreaterThanOrEqual(last_changed_at, Value(self.job.enqueued_at)))
        return Q(operations__isnull=True) | ~(
            is_recent & Q(**{"operations__-1__verb": self.bulk.verb.name, "operations__-1__by": self.bulk.user})
        )


MOST_OPERATIONS = 50
"""A job keeps only its newest operations, up to this number."""


def run(context: JobContext, action: Mapping[str, Any]) -> dict[str, int]:
    """Run the background job: continue where its last attempt ended, until the end of the list.

    Return how many jobs were changed or found. All jobs of the list are in the same database as this background job.
    """
    with using_database(context.database):
        bulk = BulkAction(**action)
        request = _request_of_user(bulk, context.job)
        bulk_run = BulkRun(bulk, context.job, request, bulk.model_admin().get_changelist_instance(request))
        progress = BulkProgress.of(context.job) or bulk_run.begin()
        if bulk.action == SEARCH:
            return {"found": len(bulk_run.search(progress, context).found)}
        instruction = bulk.instruction()
        try:
            for window in bulk_run.windows(progress.edges):
                progress = progress.within(window)
                for ids in bulk_run.within(window).batches(after=progress.after, newest=progress.newest):
                    with transaction.atomic(using=context.database):
                        changed_count = len(bulk.verb.apply(ids, instruction))
                        new_progress = replace(
                            progress,
                            after=max(ids),
                            changed=progress.changed + changed_count,
                            skipped=progress.skipped + len(ids) - changed_count,
                        )
                        new_progress.save(context)
                    progress = new_progress
                    total = max(progress.counted or bulk.number, progress.done)  # more jobs may match by now
                    context.progress(progress.done / max(total, 1), f"{progress.done:,} of {total:,}")
        finally:  # record the changes that were made, even if the action was stopped
            if progress.changed:
                message = many_jobs.message_of(bulk.verb, ChangeTally(progress.changed, progress.skipped))
                log.record_all(request, bulk.verb, message, instruction.reason)
        return {"changed": progress.changed, "skipped": progress.skipped}


def _request_of_user(bulk: BulkAction, job: Job) -> HttpRequest:
    """Return a request by the user who started the action.

    Raise `Discard` if the arguments are not signed, the user may no longer apply the verb, or someone else retried the
    job.
    """
    if not bulk.is_genuine:
        raise Discard(
            "The signature of these arguments is not valid. Web servers and workers need the same SECRET_KEY, or the "
            "other's key in SECRET_KEY_FALLBACKS."
        )
    operations = job.operations or []
    if len(operations) >= MOST_OPERATIONS:  # older operations are gone, and one of them may be a retry by someone else
        raise Discard("The job's history is full, so it is unknown who has retried the job.")
    for operation in operations:
        if operation["verb"] == "retry" and operation["by"] not in ("", bulk.user):
            raise Discard(f"The job acts for {bulk.user}, but {operation['by']} has retried it.")
    users: Any = get_user_model()._default_manager
    request = HttpRequest()
    request.method, request.GET = "POST", QueryDict(bulk.query)
    request.user = users.filter(pk=bulk.user_id).first()
    if request.user is None:
        raise Discard(f"The user {bulk.user} was deleted.")
    model_admin: Any = bulk.model_admin()
    if not model_admin.admin_site.has_permission(request) or not bulk.is_allowed(model_admin, request):
        raise Discard(f"{bulk.user} may not {'see' if bulk.action == SEARCH else bulk.verb.name} jobs.")
    return request

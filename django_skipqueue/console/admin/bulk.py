"""Applies a verb to all jobs of a list, or searches all of it, in a worker: more jobs than one request can handle.

The verb and the list are the arguments of the job that applies it. Invariant: the list is stored as the query of its
address, and evaluated by the code of the admin itself.

The jobs of the list are read a window at a time, from its front to its end. Invariant: a job that the action has
changed is not found again, wherever in the list the change has moved it.

How far the job is stands in its metadata. Invariant: each batch and the progress are written in one transaction. After
a crash the job goes on behind the last batch, so no job is changed twice, and none is left out.
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
from ..verbs.table import BY_ACTION
from ..verbs.verb import Instruction, Verb
from .verbs import log, many_jobs
from .verbs.many_jobs import ChangeTally, Selection, newest_id
from .verbs.one_job import CONFIRMED, VerbForm

BULK_PRIORITY = 100
"""The priority of the job: it runs before the jobs that it changes."""


SEARCH = "search"
"""The action that only finds the jobs of a list, wherever they are in it."""

MOST_FOUND = 1_000
"""The maximum of ids that a search keeps. The search ends when it has found this number of jobs."""

SIGNER = Signer(salt="django_skipqueue.admin.bulk")


def _searched_models() -> set[str | None]:
    """The names of the models whose lists have bulk actions or the search of everything."""
    admins = [(model, admin) for site in all_sites for model, admin in site._registry.items()]
    return {model._meta.model_name for model, admin in admins if hasattr(admin, "search_view")}


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    action: str
    """Its name in `BY_ACTION`, or `SEARCH`."""
    query: str
    """The query of the list's address."""
    site: str
    """The name of the admin site."""
    user_id: Any
    user: str
    number: int = 0
    """The jobs that matched when the question was asked."""
    model: str = "job"
    """The name of the model whose list this is: a part may have a list of its own."""
    is_lower_bound: bool = False
    """Whether there may be more: a part of the list was searched, or the count has stopped. The job counts all."""
    answers: dict[str, str] = field(default_factory=dict)
    """The answers of the verb's form, by its fields."""
    signature: str = ""
    """Signs all other values with the project's `SECRET_KEY`: only the project makes a job that acts for a user."""

    @classmethod
    def of(cls, job: Job) -> "BulkAction | None":
        """Read it from the job; `None` if somebody has written other arguments into its row."""
        given = job.kwargs if isinstance(job.kwargs, dict) else {}
        kinds = {each.name: get_origin(each.type) or each.type for each in fields(cls)}
        try:
            read = cls(**given)
        except TypeError:
            return None
        is_sound = all(kinds[name] is Any or type(value) is kinds[name] for name, value in given.items())
        is_known = read.action in (*BY_ACTION, SEARCH) and read.model in _searched_models()
        return read if is_sound and is_known else None

    @property
    def is_genuine(self) -> bool:
        """Whether this process or another one of the project has signed it."""
        try:
            SIGNER.unsign(f"{self._signed_text()}{SIGNER.sep}{self.signature}")
        except BadSignature:
            return False
        return True

    def is_allowed(self, model_admin: Any, request: HttpRequest) -> bool:
        """Whether the user may see jobs, and apply the verb if there is one."""
        if self.action == SEARCH:
            return bool(model_admin.has_view_permission(request))
        return bool(model_admin.may(request, self.verb))

    def may_be_viewed(self, admin_site: Any, request: HttpRequest) -> bool:
        """Whether the user may see the jobs of this list."""
        model_admin = admin_site._registry.get(apps.get_model(Job._meta.app_label, self.model))
        return model_admin is not None and bool(model_admin.has_view_permission(request))

    @property
    def verb(self) -> Verb:
        """Raises `KeyError` for a search."""
        return BY_ACTION[self.action]

    def instruction(self) -> Instruction:
        """Raises `Discard` for answers that the form refuses: it accepted other ones, or has changed since."""
        form = VerbForm(self.verb, {**self.answers, CONFIRMED: "yes"})
        if not form.is_valid():
            raise Discard(f"The answers are no longer valid: {form.errors.as_json()}")
        return form.instruction(self.user)

    def model_admin(self) -> "ModelAdmin[Any]":
        model = apps.get_model(Job._meta.app_label, self.model)
        return next(site for site in all_sites if site.name == self.site)._registry[model]

    def enqueue(self, queue_name: str) -> Job:
        """Sign it, and enqueue the job. Its task is the package's own, so `.defer()` would refuse it."""
        kwargs = encode("kwargs", asdict(self.signed()))
        return Job.objects.enqueue(BULK_TASK, kwargs=kwargs, queue_name=queue_name, priority=BULK_PRIORITY)

    def signed(self) -> "BulkAction":
        return replace(self, signature=SIGNER.signature(self._signed_text()))

    def _signed_text(self) -> str:
        """All values but the signature. If an id is not a number, the text that the job stores is signed."""
        return json.dumps(asdict(replace(self, signature="")), sort_keys=True, default=str)


def queue_with_workers() -> str | None:
    """A queue that a live worker serves, not paused, not carried, `default` if possible; `None` if there is none."""
    workforce = Workforce.now()
    closed = {*Queue.objects.paused().values_list("name", flat=True), *settings.external_queues}
    names = ["default", *(queue_name for worker in workforce.runners for queue_name in worker.queues)]
    return next((name for name in names if name not in closed and workforce.serving(name)), None)


PROGRESS_KEY = "progress"
"""In the metadata."""


@dataclass(frozen=True)
class BulkProgress:
    newest: int
    """The highest id at the start: jobs that are added later are left out."""
    edges: tuple[Any, Any] = (None, None)
    """The start and the end of the window of the list that is being changed."""
    after: int = 0
    """The last id that is done in this window."""
    counted: int | None = None
    """The jobs that matched at the start, in all windows; `None`: nobody has searched them all."""
    changed: int = 0
    skipped: int = 0
    looked_at: int = 0
    """By a search: the jobs in the windows that are done. The last window of a list may have fewer."""
    found: tuple[int, ...] = ()
    """By a search: the ids of the jobs that match, at most `MOST_FOUND`."""

    @classmethod
    def of(cls, job: Job) -> "BulkProgress | None":
        """Read it from the job; `None` if the job has not begun, or somebody has written something else there."""
        written = job.metadata.get(PROGRESS_KEY) if isinstance(job.metadata, dict) else None
        try:
            start, end = map(_from_json, written["edges"])  # type: ignore[index]
            found = tuple(written.get("found", ()))  # type: ignore[union-attr]
            read = cls(**{**written, "edges": (start, end), "found": found})  # type: ignore[dict-item]
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        numbers = (read.newest, read.after, read.counted or 0, read.changed, read.skipped, read.looked_at, *read.found)
        return read if all(isinstance(number, int) for number in numbers) else None

    def within(self, window: SearchWindow) -> "BulkProgress":
        """This progress in this window: of every window but the last one, nothing is done."""
        edges = (window.start, window.end)
        return self if edges == self.edges else replace(self, edges=edges, after=0)

    @property
    def done(self) -> int:
        return self.changed + self.skipped

    def save(self, context: JobContext) -> None:
        """Write it into the job. Raises `LeaseLost` if it was cancelled, or another worker has taken it over."""
        written = {PROGRESS_KEY: {**asdict(self), "edges": [_to_json(edge) for edge in self.edges]}}
        if not Job.objects.running().filter(pk=context.job_id, lease=context.lease).update(metadata=written):
            raise LeaseLost(f"Job {context.job_id} was cancelled, or taken over by another worker.")


def _to_json(edge: tuple[Any, ...] | None) -> list[Any] | None:
    return None if edge is None else [key.isoformat() if isinstance(key, datetime) else key for key in edge]


def _from_json(edge: list[Any] | None) -> tuple[Any, ...] | None:
    return None if edge is None else tuple(moment_of(key) or key for key in edge)


@dataclass(frozen=True)
class Walk:
    bulk: BulkAction
    job: Job
    """The job that applies it."""
    request: HttpRequest
    changelist: Any
    """A `JobChangeList`."""

    def begin(self) -> BulkProgress:
        """Returns the progress before the first job, with the number of jobs if the question could not say it.

        Of a search that is about how many jobs of the list there are to look at, by the database's statistics.
        """
        front = self.changelist.window or SearchWindow(
            self.changelist.indexed, 1, None, None
        )  # an index finds all that match
        progress = BulkProgress(newest_id(), (front.start, front.end))
        if self.bulk.action == SEARCH:
            return replace(progress, counted=expected(self.changelist.indexed.jobs()))
        if not self.bulk.is_lower_bound:
            return progress
        found = (self.within(window).jobs.filter(pk__lte=progress.newest) for window in self.windows(progress.edges))
        return replace(progress, counted=sum(jobs.count() for jobs in found))

    def windows(self, edges: tuple[Any, Any]) -> Iterator[SearchWindow]:
        return SearchWindow(self.changelist.indexed, 1, *edges).and_all_after()

    def within(self, window: SearchWindow) -> Selection:
        jobs = self.changelist.jobs_within(window, self.request).exclude(pk=self.job.pk)  # it may match itself
        return Selection(jobs if window.start is None else jobs.filter(self._is_not_done()))

    def search(self, progress: BulkProgress, context: JobContext) -> BulkProgress:
        """Go on with the search, to the end of the list or to `MOST_FOUND` jobs. After each window, it can be stopped.

        If an attempt was interrupted within a window, the whole window is searched again.
        """
        for window in self.windows(progress.edges):
            progress = progress.within(window)
            progress.save(context)
            number, most = progress.looked_at, max(progress.counted or 1, progress.looked_at)
            context.progress(number / most, f"{number:,} of {most:,}")
            jobs = self.changelist.jobs_within(window, self.request).exclude(pk__in=[self.job.pk, *progress.found])
            found = jobs.values_list("pk", flat=True)[: MOST_FOUND - len(progress.found)]
            looked_at = progress.looked_at + size_of(window.indexed)
            progress = replace(progress, looked_at=looked_at, found=(*progress.found, *found))
            if len(progress.found) == MOST_FOUND:
                break
        progress.save(context)
        return progress

    def _is_not_done(self) -> Q:
        """The condition that the last operation on a job is not this action, which has its time, verb and user."""
        at = Cast(KT("operations__-1__at"), DateTimeField())
        is_done = Q(GreaterThanOrEqual(at, Value(self.job.enqueued_at)))
        return Q(operations__isnull=True) | ~(
            is_done & Q(**{"operations__-1__verb": self.bulk.verb.name, "operations__-1__by": self.bulk.user})
        )


MOST_OPERATIONS = 50
"""The operations that the row of a job keeps, the newest ones."""


def run(context: JobContext, action: Mapping[str, Any]) -> dict[str, int]:
    """Go on where the last attempt ended, to the end of the list. Returns how many jobs were changed, or found.

    All of it is in the database of this job: the jobs of the list, and their verbs.
    """
    with using_database(context.database):
        bulk = BulkAction(**action)
        request = _request(bulk, context.job)
        walk = Walk(bulk, context.job, request, bulk.model_admin().get_changelist_instance(request))
        progress = BulkProgress.of(context.job) or walk.begin()
        if bulk.action == SEARCH:
            return {"found": len(walk.search(progress, context).found)}
        instruction = bulk.instruction()
        try:
            for window in walk.windows(progress.edges):
                progress = progress.within(window)
                for ids in walk.within(window).batches(after=progress.after, newest=progress.newest):
                    with transaction.atomic(using=context.database):
                        changed = len(bulk.verb.apply(ids, instruction))
                        further = replace(
                            progress,
                            after=max(ids),
                            changed=progress.changed + changed,
                            skipped=progress.skipped + len(ids) - changed,
                        )
                        further.save(context)
                    progress = further
                    most = max(progress.counted or bulk.number, progress.done)  # more may be found than were counted
                    context.progress(progress.done / max(most, 1), f"{progress.done:,} of {most:,}")
        finally:  # jobs that were changed stay changed, even if somebody has stopped the action
            if progress.changed:
                message = many_jobs.message_of(bulk.verb, ChangeTally(progress.changed, progress.skipped))
                log.record_all(request, bulk.verb, message, instruction.reason)
        return {"changed": progress.changed, "skipped": progress.skipped}


def _request(bulk: BulkAction, job: Job) -> HttpRequest:
    """The request of the user.

    Raises `Discard` if the admin has not asked for this, the user may no longer apply the verb, or another retried it.
    """
    if not bulk.is_genuine:
        raise Discard(
            "The admin has not signed these arguments. Have web servers and workers the same SECRET_KEY, or one as a "
            "fallback of the other?"
        )
    operations = job.operations or []
    if len(operations) >= MOST_OPERATIONS:  # older ones are gone, and a retry by somebody else may be among them
        raise Discard("The history of the job is full, so nobody can tell who has retried it.")
    for each in operations:
        if each["verb"] == "retry" and each["by"] not in ("", bulk.user):
            raise Discard(f"The job acts for {bulk.user}, but {each['by']} has retried it.")
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

"""Applies a verb to all jobs of a list, in a worker.

The verb and the list are the arguments of the job that applies it. Invariant: the list is stored as the query of its
address, and evaluated by the code of the admin itself.

The jobs of the list are read a window at a time, from its front to its end. Invariant: a job that the action has
changed is not found again, wherever in the list the change has moved it.

Invariant: each batch and the progress are written in one transaction. After a crash the job goes on behind the last
batch, so no job is changed twice, and none is left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from django.contrib.admin import ModelAdmin
from django.contrib.admin.sites import all_sites
from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models import DateTimeField, Q, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.db.models.lookups import GreaterThanOrEqual
from django.http import HttpRequest, QueryDict

from ....conf import settings, using_database
from ....exceptions import LeaseLost
from ....jobs.context import JobContext
from ....models import Job, Queue
from ....values.codec import encode
from ....values.outcomes import Discard
from ...queues_and_workers import Workforce
from ...search import Window
from ..verbs import log, many_jobs
from ..verbs.copies import BULK_TASK
from ..verbs.forms import Instruction
from ..verbs.many_jobs import Tally
from ..verbs.selection import Selection
from ..verbs.table import ACTIONS
from ..verbs.verb import Action, Verb
from .progress import Progress

PRIORITY = 100
"""An operator who acts on so many jobs does not wait for the jobs that are in the way."""


SIGNER = Signer(salt="django_skipqueue.admin.bulk")


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    action: str
    """Its name in `ACTIONS`."""
    query: str
    """Of the list's address."""
    site: str
    """The name of the admin site."""
    user_id: Any
    user: str
    number: int
    """The jobs that matched when the question was asked."""
    is_least: bool = False
    """Whether there may be more: a part of the list was searched, or the count has stopped. The job counts all."""
    reason: str = ""
    minutes: int = 0
    queue_name: str = ""
    priority: int = 0
    signature: str = ""
    """Of all other values, with the project's `SECRET_KEY`: nobody else makes a job that acts for a user."""

    @classmethod
    def of(cls, job: Job) -> "BulkAction | None":
        """Read it from the job; `None` if somebody has written other arguments into its row."""
        given = job.kwargs if isinstance(job.kwargs, dict) else {}
        kinds = {field.name: field.type for field in fields(cls)}
        try:
            read = cls(**given)
        except TypeError:
            return None
        is_sound = all(kinds[name] is Any or type(value) is kinds[name] for name, value in given.items())
        return read if is_sound and read.action in ACTIONS else None

    @property
    def is_genuine(self) -> bool:
        """Whether this process or another one of the project has signed it."""
        try:
            SIGNER.unsign(f"{self._signed_text()}{SIGNER.sep}{self.signature}")
        except BadSignature:
            return False
        return True

    @property
    def verb(self) -> Verb:
        return ACTIONS[self.action][0]

    @property
    def texts(self) -> Action:
        return ACTIONS[self.action][1]

    @property
    def instruction(self) -> Instruction:
        return Instruction(self.user, self.reason, self.minutes, queue_name=self.queue_name, priority=self.priority)

    def request(self) -> HttpRequest:
        request = HttpRequest()
        request.method = "POST"
        request.GET = QueryDict(self.query)
        users: Any = get_user_model()._default_manager
        request.user = users.get(pk=self.user_id)
        return request

    def model_admin(self) -> "ModelAdmin[Job]":
        return next(site for site in all_sites if site.name == self.site)._registry[Job]

    def enqueue(self, queue_name: str) -> Job:
        """Enqueue the job. Its task is the package's own, so `.defer()` would refuse it."""
        kwargs = encode("kwargs", asdict(self.signed()))
        return Job.objects.enqueue(BULK_TASK, kwargs=kwargs, queue_name=queue_name, priority=PRIORITY)

    def signed(self) -> "BulkAction":
        return replace(self, signature=SIGNER.signature(self._signed_text()))

    def _signed_text(self) -> str:
        """All values but the signature. An id that is no number is signed as the text that the job stores."""
        return json.dumps(asdict(replace(self, signature="")), sort_keys=True, default=str)


def queue_with_workers() -> str | None:
    """A queue that a live worker serves, not paused, not carried, `default` if possible; `None` if there is none."""
    workforce = Workforce.now()
    closed = {*Queue.objects.paused().values_list("name", flat=True), *settings.external_queues}
    names = ["default", *(queue_name for worker in workforce.runners for queue_name in worker.queues)]
    return next((name for name in names if name not in closed and workforce.serving(name)), None)


@dataclass(frozen=True)
class Walk:
    bulk: BulkAction
    job: Job
    """The job that applies it."""
    request: HttpRequest
    changelist: Any
    """A `JobChangeList`."""

    def front(self) -> Window:
        """The first window; the whole list, if an index finds all that match."""
        return self.changelist.window or Window.whole(self.changelist.indexed)

    def windows(self, edges: tuple[Any, Any]) -> Iterator[Window]:
        window: Window | None = Window(self.changelist.indexed, 1, *edges)
        while window is not None:
            yield window
            window = window.next()

    def within(self, window: Window) -> Selection:
        jobs = self.changelist.jobs_within(window, self.request).exclude(pk=self.job.pk)  # it may match itself
        return Selection.all_matching(jobs if window.start is None else jobs.filter(self._is_not_done()))

    def count(self, newest: int) -> int:
        front = self.front()
        windows = map(self.within, self.windows((front.start, front.end)))
        return sum(selection.jobs.filter(pk__lte=newest).count() for selection in windows)

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
    """Go on where the last attempt ended, to the end of the list. Returns how many jobs were changed and skipped.

    All of it is in the database of this job: the jobs of the list, and their verbs.
    """
    with using_database(context.database):
        return _run(context, action)


def _run(context: JobContext, action: Mapping[str, Any]) -> dict[str, int]:
    bulk = BulkAction(**action)
    request = _request(bulk, context.job)
    walk = Walk(bulk, context.job, request, bulk.model_admin().get_changelist_instance(request))
    progress = Progress.of(context.job) or _begin(walk)
    number = progress.counted or bulk.number
    try:
        for window in walk.windows(progress.edges):
            progress = progress.within(window)
            for ids in walk.within(window).batches(after=progress.after, newest=progress.newest):
                with transaction.atomic(using=context.database):
                    further = progress.plus(ids, bulk.verb.change(ids, bulk.instruction))
                    _save(further, context)
                progress = further
                context.progress(progress.share_of(number), progress.text(number))
    finally:  # what is done stays done, even if somebody has stopped the job
        if progress.changed:
            message = many_jobs.message_of(bulk.texts, Tally(progress.changed, progress.skipped))
            log.record_all(request, bulk.verb, message, bulk.instruction)
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
    try:
        request = bulk.request()
    except ObjectDoesNotExist:
        raise Discard(f"The user {bulk.user} was deleted.") from None
    model_admin: Any = bulk.model_admin()
    if not model_admin.admin_site.has_permission(request) or not model_admin.may(request, bulk.verb):
        raise Discard(f"{bulk.user} may not {bulk.verb.name} jobs.")
    return request


def _begin(walk: Walk) -> Progress:
    """Count the jobs, if the question could not say how many they are. Returns the progress before the first."""
    progress = Progress.at_the_start(walk.front())
    return replace(progress, counted=walk.count(progress.newest)) if walk.bulk.is_least else progress


def _save(progress: Progress, context: JobContext) -> None:
    if not progress.save(context.job_id, context.lease):
        raise LeaseLost(f"Job {context.job_id} was cancelled, or taken over by another worker.")

"""A verb for all jobs of a list, as the arguments of the job that applies it.

Invariant: the list is stored as the query of its address, and evaluated by the code of the admin itself.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from django.contrib.admin import ModelAdmin
from django.contrib.admin.sites import all_sites
from django.contrib.auth import get_user_model
from django.core.signing import BadSignature, Signer
from django.http import HttpRequest, QueryDict

from ...conf import settings
from ...models import Job, Queue
from ...operators.worker_health import Workforce
from ...values.codec import encode
from ..verbs.copy_job import BULK_TASK
from ..verbs.forms import Instruction
from ..verbs.table import ACTIONS
from ..verbs.verb import Action, Verb

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
    closed = {*Queue.objects.paused().values_list("name", flat=True), *settings.carried_queues}
    names = ["default", *(queue_name for worker in workforce.runners for queue_name in worker.queues)]
    return next((name for name in names if name not in closed and workforce.serving(name)), None)

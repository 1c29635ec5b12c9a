"""The acts of operators on a job, with their words."""

from dataclasses import dataclass

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...explanations import operations
from ...models import Job, Status
from ..verbs.table import PAST
from ..verbs.verb import Past

RELEASE = "release"
"""What a worker notes that stops while the job runs."""

SNOOZE = "snooze"
"""What is noted when a task snoozes: once for all snoozes in a row."""

KNOWN = {
    **PAST,
    RELEASE: Past(done=_("released"), done_by=_("released by %(user)s"), leads_to=Status.QUEUED),
    SNOOZE: Past(done=_("snoozed"), done_by=_("snoozed by %(user)s"), leads_to=Status.SCHEDULED),
}


@dataclass(frozen=True, kw_only=True)
class Operation(operations.Operation):
    @property
    def done(self) -> str:
        """The verb as a participle: `retried`."""
        past = KNOWN.get(self.verb)
        return str(past.done) if past else self.verb

    @property
    def done_by(self) -> str:
        """The verb as a participle, with the user if the row has one."""
        past = KNOWN.get(self.verb)
        if not self.by:
            return self.done
        return str(past.done_by if past else gettext("%(verb)s by %(user)s")) % {"verb": self.verb, "user": self.by}

    @property
    def status(self) -> Status:
        past = KNOWN.get(self.verb)
        return past.leads_to if past else Status.SCHEDULED

    @property
    def finished_the_job(self) -> bool:
        return self.status.is_finished


def operations_of(job: Job) -> list[Operation]:
    """The oldest first."""
    return [Operation(**vars(each)) for each in operations.operations_of(job)]

"""The states of jobs as operators see them: the statuses, and *retrying* apart from *scheduled*.

A job that waits for its next attempt after a failed one is `scheduled`, like a job for tomorrow. For operators it is
the first sign of trouble.
"""

from collections.abc import Mapping
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..models import Job, Status

RETRYING = "retrying"

STATES: Mapping[str, Any] = {
    Status.SCHEDULED.value: Status.SCHEDULED.label,
    RETRYING: _("retrying"),
    **{status.value: status.label for status in Status if status != Status.SCHEDULED},
}
"""Each state's label, in the order of the tabs."""


def state_of(job: Job) -> str:
    """The job's status, or 'retrying' if it is scheduled after a failed attempt."""
    return RETRYING if job.status == Status.SCHEDULED and job.attempts > 0 else str(job.status)


def status_of(state: str) -> str:
    """The status of the jobs in this state: that of retrying jobs is 'scheduled'."""
    return Status.SCHEDULED.value if state == RETRYING else state


def is_in(state: str) -> Q:
    """The condition that a job is in this state. A snooze counts no attempt."""
    condition = Q(status=status_of(state))
    if state == RETRYING:
        condition &= Q(attempts__gt=0)
    elif state == Status.SCHEDULED:
        condition &= Q(attempts=0)
    return condition

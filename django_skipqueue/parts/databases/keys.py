"""The database that the key of a job belongs to, where several are chosen by keys.

A copy stays in the database of its job, since its key lives there. Only the key of a job from before a change of
`DATABASES` may belong to another one by now.
"""

from contextlib import suppress
from typing import Any

from ...conf import settings
from ...console.admin.verbs.copies import unreachable
from ...console.parts import why_existing
from ...exceptions import InvalidArguments, InvalidOption, UnknownTask
from ...jobs.placement import database_of_key
from ...jobs.registry import registry
from ...models import Job
from ...queue.unique_keys import unique_keys
from ...values.records import EncodedCall, JobSpec


def why_held_elsewhere(job: Any, spec: JobSpec, call: EncodedCall) -> str:
    """Why this copy of the job cannot be made: a job in another database holds its unique key. Empty if none does."""
    if call.unique_key is None:
        return ""
    task = None
    with suppress(UnknownTask):
        task = registry.get(spec.task)
    try:
        alias = database_of_key(spec, call, task)
    except (InvalidArguments, InvalidOption):  # the task takes other arguments by now: its key has no database
        return ""
    if alias == settings.database:
        return ""
    if reason := unreachable(alias):
        return reason
    holders = Job.objects.using(alias).filter(pk__in=unique_keys().held(alias, [call.unique_key]).values())
    return next((why_existing(job, holder) for holder in holders), "")

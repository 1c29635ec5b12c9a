"""The database that the key of a job belongs to, where several are chosen by keys.

A copy stays in the database of its job, since its key lives there. Only the key of a job from before a change of
`DATABASES` may belong to another one by now.
"""

from contextlib import suppress
from typing import Any

from ...conf import settings
from ...console.admin.verbs.copies import unreachable
from ...console.waiting import key_is_held
from ...exceptions import InvalidArguments, InvalidOption, UnknownTask
from ...jobs.placement import database_of_key
from ...jobs.registry import registry
from ...models import Job
from ...models.expressions import HOLDS_KEY
from ...values.records import EncodedCall, JobSpec
from .choose import held_keys


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
    if not held_keys(alias, [call.unique_key]):
        return ""
    holders = Job.objects.using(alias).filter(HOLDS_KEY, unique_key=call.unique_key)
    return next((key_is_held(job, holder) for holder in holders), "")

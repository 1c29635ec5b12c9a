"""The database that the key of a job belongs to, where several are chosen by keys.

A copy stays in the database of its job, since its key lives there. Only the key of a job from before a change of
`DATABASES` may belong to another one by now.
"""

from contextlib import suppress
from typing import Any

from django.utils.translation import gettext

from ...conf import settings
from ...console.waiting import key_is_held
from ...exceptions import InvalidArguments, InvalidOption, UnknownTask
from ...jobs.placement import shard_of
from ...jobs.registry import registry
from ...jobs.task import Task
from ...models import Job
from ...models.expressions import HOLDS_KEY
from ...queue.reachable import can_be_reached
from ...values.records import EncodedCall, JobSpec
from .choose import bound_to, held_keys
from .settings import SPREAD


def database_of_key(spec: JobSpec, call: EncodedCall, task: Task[Any, Any] | None) -> str:
    """The alias of the database that the key of a call belongs to; of the one that is shown, if it has none.

    task: `None` if this process does not know it. Raises `InvalidOption` and `InvalidArguments` as `.defer()` does.
    """
    if settings.placement != SPREAD:
        return settings.database
    shard = None if task is None else shard_of(task, call)
    return bound_to(spec, call, shard=shard) or settings.database


def unreachable(alias: str) -> str:
    """The message for a database of a key that cannot be used now; empty if it can."""
    if can_be_reached(alias):
        return ""
    return gettext("The database %(alias)s cannot be reached") % {"alias": alias} + "."


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

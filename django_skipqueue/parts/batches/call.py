"""What batches and chains do with calls: the row of a batch has its callbacks, and steps are deferred together."""

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...exceptions import InvalidOption
from ...jobs.placement import placement
from ...jobs.task_call import TaskCall
from ...queue.store import Store
from .values import stored

if TYPE_CHECKING:
    from ...models import Job


def as_callback(call: TaskCall) -> dict[str, Any]:
    """The call as a JSON object in the row of a batch. A callback whose unique key a job holds is skipped."""
    return stored(call.spec._replace(on_conflict="skip"), call.call)


def defer_all(calls: Iterable[TaskCall]) -> "list[Job]":
    """Defer calls in an open transaction, and return their jobs in the same order.

    Calls in succession that have the same columns, and no unique key, are inserted in one statement.
    """
    deferred: list[Job] = []
    for _, group in groupby(enumerate(calls), key=_what_they_share):
        deferred += _defer_together([call for _, call in group])
    return deferred


def _what_they_share(numbered: tuple[int, TaskCall]) -> Any:
    number, call = numbered
    return number if call.call.unique_key is not None else (call.database, call.shard, call.spec)


def _defer_together(calls: list[TaskCall]) -> "list[Job]":
    from ...models import Job

    first = calls[0]
    if len(calls) == 1:
        return [first.defer()]
    jobs = Job.objects.db_manager(placement().choose(first.spec, first.call, named=first.database, shard=first.shard))
    ids = Store(jobs.db).enqueue_many(first.spec, [call.call for call in calls])
    found = jobs.in_bulk(ids)
    deferred = [found[id] for id in ids]
    for call, job in zip(calls, deferred, strict=True):
        if call.inserted is not None:
            call.inserted(job)
    return deferred


def as_call(name: str, given: Any) -> TaskCall:
    """A task, or a task with arguments, as a call. Raises `InvalidOption` for anything else."""
    if isinstance(given, TaskCall):
        return given
    if callable(getattr(given, "s", None)):
        call: TaskCall = given.s()
        return call
    raise InvalidOption(f"{name} must be a task, or a task with arguments such as send.s(1), not {given!r}.")


def in_batch(name: str, call: TaskCall, alias: str) -> TaskCall:
    """The call, in the database of its batch. Raises `InvalidOption` for a call that belongs to another one."""
    placed = call.in_database(alias)
    if placed.database != alias:
        raise InvalidOption(
            f"{name} is a call in the database {placed.database!r}, and the batch is in {alias!r}. Give the batch the "
            "same database, or under the placement 'spread' the same shard_key."
        )
    return placed

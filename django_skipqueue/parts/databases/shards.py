"""Where the jobs of a task go if several databases hold queues: the shard key of a call, the insert of many calls.

Invariant: equal values of the arguments of `shard_by`, and an equal `shard_key`, choose one database for all tasks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...exceptions import InvalidArguments
from ...jobs.advice import explained
from ...jobs.calls import arguments_by_name
from ...queue.store import Store
from ...values.codec import decode
from ...values.keys import names_of
from ...values.records import DeferredJobs, EncodedCall, JobSpec
from .choose import choose, choose_fixed, choose_many, shard_text
from .options import Place

if TYPE_CHECKING:
    from ...jobs.task import Task


def shard_of(task: "Task[Any, Any]", call: EncodedCall) -> str | None:
    """The text of the shard key of a call; `None`: its unique key or its limit decides, or it may go anywhere.

    Raises `InvalidArguments` if the call has no argument that `shard_by` names.
    """
    place = task.options.of_part(Place)
    if place is None:
        return None
    if place.shard_key is not None:
        return shard_text([place.shard_key])
    if place.shard_by is None:
        return None
    given = arguments_by_name(task, decode(call.args), decode(call.kwargs))
    names = names_of("shard_by", place.shard_by)
    for name in names:
        if name not in given:
            raise InvalidArguments(f"the call has no argument {name!r}, which chooses its database.")
    return shard_text([_as_json(task, name, given[name]) for name in names])


def _as_json(task: "Task[Any, Any]", name: str, value: Any) -> Any:
    """The value of one argument as its job stores it, which an encoded call has already, unless it is a default."""
    parameter = task.signature.parameters.get(name)
    return task.encoded_argument(name, value) if parameter is not None and value is parameter.default else value


def database_of(task: "Task[Any, Any]", spec: JobSpec, call: EncodedCall) -> str:
    """The alias of the database for a job. Raises `InvalidOption` as `choose` does."""
    return choose(spec, call, named=task.named_database, shard=shard_of(task, call))


def database_of_schedule(task: "Task[Any, Any]", call: EncodedCall) -> str:
    """The alias of the database for a schedule and its jobs: the same whenever it is asked. Raises as `choose` does."""
    return choose_fixed(task.spec(), call, named=task.named_database, shard=shard_of(task, call)) or task.database


def insert_many(task: "Task[Any, Any]", calls: Sequence[EncodedCall]) -> DeferredJobs:
    """Insert a job for each call, in one statement for each database concerned.

    If one of them refuses, the jobs in those before it are there.
    """
    spec = task.spec()
    is_placed = task.options.of_part(Place) is not None
    shards = [shard_of(task, call) if is_placed else None for call in calls]
    with explained(task.database):
        chosen = choose_many(spec, calls, named=task.named_database, shards=shards)
    parts: dict[str, list[int]] = {}
    for position, alias in enumerate(chosen):
        parts.setdefault(alias, []).append(position)
    deferred: dict[str, tuple[Sequence[int], DeferredJobs]] = {}
    for alias, positions in parts.items():
        share = calls if len(positions) == len(calls) else [calls[each] for each in positions]
        with explained(alias):
            inserted = Store(alias).enqueue_many(spec, share)
        deferred[alias] = positions, inserted
    return inserted if len(deferred) == 1 else DeferredJobs.merged(deferred)

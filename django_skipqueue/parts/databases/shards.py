"""Where the jobs of a task go if several databases hold queues: the shard key of a call, the insert of many calls.

Invariant: equal values of the arguments of `shard_by`, and an equal `shard_key`, choose one database for all tasks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from ...exceptions import InvalidArguments, InvalidOption
from ...jobs.advice import explained
from ...jobs.calls import arguments_by_name
from ...queue.store import Store
from ...values.codec import decode
from ...values.records import DeferredJobs, EncodedCall, JobSpec
from ..limits.options import names_of
from .choose import check_shard_key, choose, choose_fixed, choose_many, shard_text

if TYPE_CHECKING:
    from ...jobs.task import Task


def check_shard(shard_by: Any, shard_key: Any) -> None:
    """Raise `InvalidOption` for values that these options cannot have."""
    if shard_by is not None and not names_of("shard_by", shard_by):
        raise InvalidOption('shard_by takes the name of at least one argument: shard_by="account_id".')
    check_shard_key(shard_key)


def check_database(alias: Any) -> None:
    """Raise `InvalidOption` unless the settings have a database of this alias."""
    if alias not in connections:
        known = ", ".join(sorted(connections))
        raise InvalidOption(f"database must be one of {known}, not {alias!r}: DATABASES has no other.")


def shard_of(task: "Task[Any, Any]", call: EncodedCall) -> str | None:
    """The text of the shard key of a call; `None`: its unique key or its limit decides, or it may go anywhere.

    Raises `InvalidArguments` if the call has no argument that `shard_by` names.
    """
    options = task.options
    if options.shard_key is not None:
        return shard_text([options.shard_key])
    if options.shard_by is None:
        return None
    given = arguments_by_name(task, decode(call.args), decode(call.kwargs))
    names = names_of("shard_by", options.shard_by)
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
    shards = [shard_of(task, call) for call in calls] if task.options.has_shard else [None] * len(calls)
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

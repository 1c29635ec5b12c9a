"""Choose the database of a job: its options name it, or the settings do, unless a part chooses.

`insert_many` inserts the jobs of several calls, each in its database.

Invariant: equal values of the arguments of `shard_by`, and an equal `shard_key`, choose one database for all tasks.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..conf import settings
from ..exceptions import InvalidArguments
from ..queue.store import Store
from ..values.codec import decode
from ..values.part import placements_of_parts
from ..values.records import DeferredJobs, EncodedCall, JobSpec
from .advice import explained

if TYPE_CHECKING:
    from .task import Task


class Placement:
    """Chooses the database of each job; a part may have a subclass.

    named: the alias that the options of the job name. shard: the text by which the options choose among several
    databases. Each method returns an alias, and raises `InvalidOption` for a job that no database may hold.
    """

    def choose(self, spec: JobSpec, call: EncodedCall, *, named: str | None = None, shard: str | None = None) -> str:
        """The database for one job."""
        return named or settings.database

    def choose_many(
        self, spec: JobSpec, calls: Sequence[EncodedCall], *, named: str | None = None, shards: Sequence[str | None]
    ) -> list[str]:
        """The database for each of these calls."""
        return [named or settings.database] * len(calls)

    def choose_fixed(self, spec: JobSpec, call: EncodedCall, *, named: str | None, shard: str | None) -> str | None:
        """The database for all jobs of a schedule; `None`: they may be in any database."""
        return named

    def bound_to(self, spec: JobSpec, call: EncodedCall, *, shard: str | None = None) -> str | None:
        """The database that the key of a job belongs to; `None`: the job may be in any database."""
        return None

    def for_batch(self, named: str | None, shard_key: Any, homes: Iterable[str | None]) -> str:
        """The database for a batch. `homes`: the database that each of its calls belongs to, or `None`."""
        return named or settings.database


ONE_DATABASE = Placement()


def placement() -> Placement:
    """The placement of this process."""
    return placements_of_parts[-1] if placements_of_parts else ONE_DATABASE


def shard_of(task: "Task[Any, Any]", call: EncodedCall) -> str | None:
    """The text by which the options choose the database of a call; `None`: its keys decide, or any database will do.

    Raises `InvalidArguments` if the call has no argument that `shard_by` names.
    """
    of_parts = task.options.of_parts
    placed = next((part for part in of_parts if part.has_shard), None) if of_parts else None
    return None if placed is None else placed.shard(partial(_stored_arguments, task, call))


def _stored_arguments(task: "Task[Any, Any]", call: EncodedCall, names: Sequence[str]) -> list[Any]:
    """The values of these arguments as the job stores them."""
    args, kwargs = decode(call.args), decode(call.kwargs)
    given = {name: place(args, kwargs) for name, place in task.places(len(args), tuple(kwargs)).items()}
    for name in names:
        if name not in given:
            raise InvalidArguments(f"the call has no argument {name!r}, which chooses its database.")
        parameter = task.signature.parameters.get(name)
        if parameter is not None and given[name] is parameter.default:  # the other arguments are encoded already
            given[name] = task.encoded_argument(name, given[name])
    return [given[name] for name in names]


def database_of_schedule(task: "Task[Any, Any]", call: EncodedCall) -> str:
    """The alias of the database for a schedule and all its jobs. Raises as `choose` does."""
    chosen = placement().choose_fixed(task.spec(), call, named=task.named_database, shard=shard_of(task, call))
    return chosen or task.database


def database_of_key(spec: JobSpec, call: EncodedCall, task: "Task[Any, Any] | None") -> str:
    """The alias of the database that the key of a call belongs to; of the current database if the call has no key.

    task: `None` if this process does not know it. Raises `InvalidOption` and `InvalidArguments` as `.defer()` does.
    """
    if not settings.is_spread:
        return settings.database
    shard = None if task is None else shard_of(task, call)
    return placement().bound_to(spec, call, shard=shard) or settings.database


def insert_many(task: "Task[Any, Any]", calls: Sequence[EncodedCall]) -> DeferredJobs:
    """Insert a job for each call, with one statement for each database.

    If a database refuses, the jobs in the databases before it have been inserted.
    """
    spec = task.spec()
    has_shard = any(part.has_shard for part in task.options.of_parts)
    shards = [shard_of(task, call) if has_shard else None for call in calls]
    with explained(task.database):
        chosen = placement().choose_many(spec, calls, named=task.named_database, shards=shards)
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

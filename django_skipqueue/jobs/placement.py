"""Choose the database of each new job. Its options may name the database; otherwise the settings or a part choose it.

`insert_many` inserts the jobs of several calls, each into its database.

Equal values of the arguments in `shard_by`, or an equal `shard_key`, always choose the same database, in all tasks.
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
    """Chooses the database of each new job. A part may have a subclass, which chooses among several databases.

    Each method returns the alias of a database, and raises `InvalidOption` if no database may hold the job.
    named: the database that the options of the job name. shard: a string whose hash chooses the database.
    """

    def choose(self, spec: JobSpec, call: EncodedCall, *, named: str | None = None, shard: str | None = None) -> str:
        """The alias of the database for one job: the alias that the caller named, or else the default."""
        return named or settings.database

    def choose_many(
        self, spec: JobSpec, calls: Sequence[EncodedCall], *, named: str | None = None, shards: Sequence[str | None]
    ) -> list[str]:
        """The alias of the database for the job of each call."""
        return [named or settings.database] * len(calls)

    def choose_fixed(self, spec: JobSpec, call: EncodedCall, *, named: str | None, shard: str | None) -> str | None:
        """The alias of the database for all jobs of a schedule; `None` if they may be in any database."""
        return named

    def bound_to(self, spec: JobSpec, call: EncodedCall, *, shard: str | None = None) -> str | None:
        """The alias of the database that a job must be in because of its key; `None` if it may be in any database."""
        return None

    def for_batch(self, named: str | None, shard_key: Any, homes: Iterable[str | None]) -> str:
        """The database for a batch. `homes`: for each call of the batch, the database that it must be in, or `None`."""
        return named or settings.database


ONE_DATABASE = Placement()


def placement() -> Placement:
    """The object that chooses databases in this process."""
    return placements_of_parts[-1] if placements_of_parts else ONE_DATABASE


def shard_of(task: "Task[Any, Any]", call: EncodedCall) -> str | None:
    """The string whose hash chooses the database of a call. `None` if the options do not choose the database.

    Raises `InvalidArguments` if `shard_by` names an argument that the call does not have.
    """
    of_parts = task.options.of_parts
    shard_options = next((part for part in of_parts if part.has_shard), None) if of_parts else None
    return None if shard_options is None else shard_options.shard(partial(_stored_arguments, task, call))


def _stored_arguments(task: "Task[Any, Any]", call: EncodedCall, names: Sequence[str]) -> list[Any]:
    """The values of these arguments as the job stores them."""
    args, kwargs = decode(call.args), decode(call.kwargs)
    values = {
        name: get_value(args, kwargs) for name, get_value in task.argument_getters(len(args), tuple(kwargs)).items()
    }
    for name in names:
        if name not in values:
            raise InvalidArguments(f"the call has no argument {name!r}, which chooses its database.")
        parameter = task.signature.parameters.get(name)
        if parameter is not None and values[name] is parameter.default:  # all other arguments are already encoded
            values[name] = task.encoded_argument(name, values[name])
    return [values[name] for name in names]


def database_of_schedule(task: "Task[Any, Any]", call: EncodedCall) -> str:
    """The alias of the database for a schedule and its jobs. Raises `InvalidOption` if no database may hold them."""
    fixed_alias = placement().choose_fixed(task.spec(), call, named=task.named_database, shard=shard_of(task, call))
    return fixed_alias or task.database


def database_of_key(spec: JobSpec, call: EncodedCall, task: "Task[Any, Any] | None") -> str:
    """The alias of the database to which the key of a call belongs; if it has no key, the current database.

    task: `None` if the task is not registered in this process. Raises `InvalidOption` and `InvalidArguments`, as
    `.defer()` does.
    """
    if not settings.is_spread:
        return settings.database
    shard = None if task is None else shard_of(task, call)
    return placement().bound_to(spec, call, shard=shard) or settings.database


def insert_many(task: "Task[Any, Any]", calls: Sequence[EncodedCall]) -> DeferredJobs:
    """Insert a job for each call, with one statement for each database.

    If a database refuses its statement, the jobs for the previous databases stay inserted.
    """
    spec = task.spec()
    has_shard = any(part.has_shard for part in task.options.of_parts)
    shards = [shard_of(task, call) if has_shard else None for call in calls]
    with explained(task.database):
        aliases = placement().choose_many(spec, calls, named=task.named_database, shards=shards)
    positions_by_alias: dict[str, list[int]] = {}
    for position, alias in enumerate(aliases):
        positions_by_alias.setdefault(alias, []).append(position)
    deferred: dict[str, tuple[Sequence[int], DeferredJobs]] = {}
    for alias, positions in positions_by_alias.items():
        calls_there = calls if len(positions) == len(calls) else [calls[position] for position in positions]
        with explained(alias):
            inserted = Store(alias).enqueue_many(spec, calls_there)
        deferred[alias] = positions, inserted
    return inserted if len(deferred) == 1 else DeferredJobs.merged(deferred)

"""Choose the database of a job: by `.using(database=…)` or `@job(database=…)`, otherwise by `SKIPQUEUE["PLACEMENT"]`.

All processes with the same `DATABASES` put all jobs of a key into the same database. This module writes nothing, and
raises for a database that is not in `DATABASES`.

Jobs without a key go to each database in turn, except databases that cannot be reached. A database in which the caller
has an open transaction always counts as reachable, because it contains the caller's data.

A database in `RETIRING` gets no new jobs, except calls whose unique key is held by one of its jobs.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from django.db import connections, router
from django.utils.module_loading import import_string

from ...conf import settings
from ...exceptions import InvalidOption
from ...jobs.placement import Placement
from ...queue.fragments import CALL_KEYS
from ...queue.silence import can_be_reached
from ...queue.unique_keys import unique_keys
from ...values.codec import decode
from ...values.part import installed_parts
from ...values.records import EncodedCall, JobSpec
from .options import check_shard_key, shard_text
from .settings import ROUTER, SPREAD


class CallToPlace(NamedTuple):
    """A call that needs a database: the argument of a function in `SKIPQUEUE["PLACEMENT"]`."""

    task: str
    queue_name: str
    args: list[Any]
    """The arguments as plain JSON values."""
    kwargs: dict[str, Any]


class SeveralDatabases(Placement):
    """Chooses by `SKIPQUEUE["PLACEMENT"]`, unless the options of a job name a database.

    The methods raise `InvalidOption` for a job whose keys belong to different databases.
    """

    def choose(self, spec: JobSpec, call: EncodedCall, *, named: str | None = None, shard: str | None = None) -> str:
        """Return the alias of the database for one job."""
        keys = [call.unique_key] if call.unique_key is not None else []
        for alias in settings.retiring if keys else ():
            if unique_keys().held(alias, keys):
                return alias
        return _choose(spec, call, named, shard)

    def choose_many(
        self, spec: JobSpec, calls: Sequence[EncodedCall], *, named: str | None = None, shards: Sequence[str | None]
    ) -> list[str]:
        """Return the alias for each call. Under `spread`, the databases get equal shares of calls without a key."""
        if settings.placement == SPREAD and not named:
            aliases = _spread(spec, calls, shards)
        elif settings.placement is None or named:
            aliases = [_choose(spec, calls[0], named, None)] * len(calls) if calls else []
        else:
            aliases = [_choose(spec, call, None, None) for call in calls]
        keys = [call.unique_key for call in calls if call.unique_key is not None]
        for retiring in settings.retiring if keys else ():
            held_keys = unique_keys().held(retiring, keys)
            aliases = [
                retiring if call.unique_key in held_keys else alias for call, alias in zip(calls, aliases, strict=True)
            ]
        return aliases

    def choose_fixed(self, spec: JobSpec, call: EncodedCall, *, named: str | None, shard: str | None) -> str | None:
        """Return the alias for the jobs of a schedule; `None`, only under `spread`, if they have no key."""
        if settings.placement == SPREAD and not named:
            return _bound_to(spec, call, shard)
        return _choose(spec, call, named, None)

    def bound_to(self, spec: JobSpec, call: EncodedCall, *, shard: str | None = None) -> str | None:
        """Return the alias of the database to which the job's key belongs; `None` if the job may go anywhere."""
        return _bound_to(spec, call, shard)

    def for_batch(self, named: str | None, shard_key: Any, homes: Iterable[str | None]) -> str:
        """Return the alias for a batch. Raises `InvalidOption` if the `shard_key` is not valid."""
        check_shard_key(shard_key)
        if named:
            return named
        if settings.placement is None:
            return settings.database
        if settings.placement == SPREAD and shard_key is not None:
            return _database_of_key(shard_text([shard_key]))
        if batch_database := _joined_database():
            return batch_database
        if settings.placement == SPREAD:
            return next(filter(None, homes), None) or in_turn(settings.queue_databases)
        return _routed_database() if settings.placement == ROUTER else settings.database


def _spread(spec: JobSpec, calls: Sequence[EncodedCall], shards: Sequence[str | None]) -> list[str]:
    aliases = [_bound_to(spec, call, shard) for call, shard in zip(calls, shards, strict=True)]
    number_without_key = aliases.count(None)
    candidates: list[str]
    if not number_without_key:
        candidates = []
    elif related_database := _database_of_related_jobs(spec):
        candidates = [related_database]
    else:
        candidates = reachable_in_turn(settings.queue_databases)
    equal_shares = itertools.islice(itertools.cycle(candidates), number_without_key)
    without_key = iter(sorted(equal_shares, key=candidates.index))  # neighbouring calls go to the same database
    return [alias or next(without_key) for alias in aliases]


def _bound_to(spec: JobSpec, call: EncodedCall, shard: str | None) -> str | None:
    key = _placing_key(spec, call, shard) if settings.placement == SPREAD else None
    return None if key is None else _database_of_key(key)


def import_placement(path: str | Callable[[CallToPlace], str]) -> Callable[[CallToPlace], str]:
    """Return the function of `SKIPQUEUE["PLACEMENT"]`. Raises `ImportError` if the path cannot be imported."""
    function: Callable[[CallToPlace], str] = import_string(path) if isinstance(path, str) else path
    return function


def _choose(spec: JobSpec, call: EncodedCall, named: str | None, shard: str | None) -> str:
    if named:
        if settings.may_hold_jobs(named):
            return named
        served = ", ".join(settings.served_databases)
        raise InvalidOption(f"database must be one of {served}, not {named!r}: {NOT_LISTED}")
    placement = settings.placement
    if placement is None:
        return settings.database
    if placement == SPREAD:
        return _bound_to(spec, call, shard) or _database_of_related_jobs(spec) or in_turn(settings.queue_databases)
    if placement == ROUTER:
        return _routed_database(task=spec.task, queue_name=spec.queue_name)
    call_to_place = CallToPlace(spec.task, spec.queue_name, decode(call.args), decode(call.kwargs))
    return _require_listed(import_placement(placement)(call_to_place))


def _placing_key(spec: JobSpec, call: EncodedCall, shard: str | None) -> str | None:
    """Return the key that decides a job's database under `spread`; `None` if the job has no key."""
    if shard is not None:
        return shard
    # Only keys that count within one database matter. Fair shares are computed in each database separately.
    columns = dict(call.columns)
    if columns.get("limit_kind") == "fair" or columns.get("limit_key") == f"rerun:{call.unique_key}":
        del columns["limit_key"]
    keys = {columns[name] for name in CALL_KEYS if columns.get(name) is not None}
    if len(keys) > 1:
        raise InvalidOption(
            f"{spec.task} has a unique key and limits with different keys, which SKIPQUEUE['PLACEMENT'] = 'spread' "
            "would put into different databases. Say which arguments decide: @job(shard_by=…). Each key then counts "
            "within one database."
        )
    return next(iter(keys), None)


def _database_of_key(key: str) -> str:
    """Return the database for which the hash of alias and key is highest ("rendezvous hashing").

    If a database is added, it takes its share of the keys, and all other keys stay where they are.
    """
    text = f"\0{key}".encode()
    return max(settings.queue_databases, key=lambda alias: blake2b(alias.encode() + text, digest_size=8).digest())


def _database_of_related_jobs(spec: JobSpec) -> str | None:
    """Return the database of the batch that the job joins, or of the jobs that it waits for, if there are any."""
    return _joined_database() or next((job.database for job in spec.after if job.database), None)


def _joined_database() -> str | None:
    return next(
        (alias for part in installed_parts() if part.joined_database and (alias := part.joined_database())), None
    )


def _routed_database(**hints: str) -> str:
    from ...models import Job  # not at the top, because tasks are made before Django's models are loaded

    return _require_listed(router.db_for_write(Job, **hints))


def _require_listed(alias: Any) -> str:
    if alias in settings.queue_databases:
        return str(alias)
    raise InvalidOption(
        f"SKIPQUEUE['PLACEMENT'] chose the database {alias!r}, but jobs may only be put into "
        f"{', '.join(settings.queue_databases)}: {NOT_LISTED}"
    )


NOT_LISTED = "SKIPQUEUE['DATABASES'] has no other."


_turns = itertools.count(random.randrange(1_000_000))  # noqa: S311 (processes start with different databases)


def in_turn(aliases: Sequence[str]) -> str:
    """Return the next of these databases that can be reached. If none can, return any: its use raises an error.

    If the caller has an open transaction in exactly one database, return this database, so that the job commits with
    the transaction.
    """
    if caller_database := _database_with_transaction(aliases):
        return caller_database
    candidates = _rotated(aliases)
    return next((alias for alias in candidates if can_be_reached(alias)), candidates[0])


def reachable_in_turn(aliases: Sequence[str]) -> list[str]:
    """Return the databases that can be reached, the next first; only one if the caller has a transaction in one."""
    if caller_database := _database_with_transaction(aliases):
        return [caller_database]
    candidates = _rotated(aliases)
    return [alias for alias in candidates if can_be_reached(alias)] or candidates[:1]


def _database_with_transaction(aliases: Sequence[str]) -> str | None:
    in_transaction = [alias for alias in aliases if connections[alias].in_atomic_block]
    return in_transaction[0] if len(in_transaction) == 1 else None


def _rotated(aliases: Sequence[str]) -> list[str]:
    """Return the next alias, then all other aliases in random order, so that they share the jobs of a dead database."""
    turn = next(_turns) % len(aliases)
    others = [*aliases[:turn], *aliases[turn + 1 :]]
    return [aliases[turn], *random.sample(others, len(others))]

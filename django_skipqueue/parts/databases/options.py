"""The options that say in which database a job is: `database`, `shard_by` and `shard_key`. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Signature
from typing import Any, TypedDict

from django.db import connections

from ...exceptions import InvalidOption
from ...values.keys import names_of, require_arguments
from ...values.part import PartOptions


class DatabaseOptions(TypedDict, total=False):
    """The options of `@job` alone."""

    database: str | None


class ShardOptions(TypedDict, total=False):
    """The options of `@job` and `with_options`."""

    shard_by: str | tuple[str, ...] | None


class UsingDatabase(TypedDict, total=False):
    """The options of `.using()`."""

    database: str | None
    shard_key: str | int | None


@dataclass(frozen=True, kw_only=True)
class Place(PartOptions):
    """Where the jobs of a task are."""

    database: str | None = None
    """`None`: as `SKIPQUEUE["PLACEMENT"]` chooses, or `SKIPQUEUE["DATABASE"]`."""
    shard_by: str | tuple[str, ...] | None = None
    """The arguments that choose the database under the placement `spread`."""
    shard_key: str | int | None = None
    """In place of their values."""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that cannot be used."""
        if self.database is not None and self.database not in connections:
            known = ", ".join(sorted(connections))
            raise InvalidOption(f"database must be one of {known}, not {self.database!r}: DATABASES has no other.")
        if self.shard_by is not None and not names_of("shard_by", self.shard_by):
            raise InvalidOption('shard_by takes the name of at least one argument: shard_by="account_id".')
        check_shard_key(self.shard_key)

    @property
    def has_shard(self) -> bool:
        return self.shard_key is not None or self.shard_by is not None

    def shard(self, stored: Callable[[Sequence[str]], list[Any]]) -> str:
        if self.shard_key is not None:
            return shard_text([self.shard_key])
        return shard_text(stored(names_of("shard_by", self.shard_by or ())))

    def check_signature(self, signature: Signature) -> None:
        if self.shard_by is not None:
            require_arguments("shard_by", names_of("shard_by", self.shard_by), signature)


def shard_text(values: Sequence[Any]) -> str:
    """The text of a shard key: equal for equal values, however they are given."""
    return json.dumps(list(values), ensure_ascii=False, sort_keys=True)


def check_shard_key(shard_key: Any) -> None:
    """Raise `InvalidOption` for a value that `shard_key` cannot have."""
    if isinstance(shard_key, bool) or not isinstance(shard_key, str | int | None):
        raise InvalidOption(f"shard_key must be a str or an integer, not {shard_key!r}.")


def needs_shard(of_parts: Sequence[PartOptions]) -> bool:
    """Whether jobs have several keys that hold within one database, and no option says which database that is."""
    is_placed = any(isinstance(part, Place) and part != Place() for part in of_parts)
    return sum(part.has_key for part in of_parts) > 1 and not is_placed

"""The options `shard_by` and `shard_key`, which decide in which of several databases a job is put. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Signature
from typing import Any, TypedDict

from ...exceptions import InvalidOption
from ...values.keys import names_of, require_arguments
from ...values.part import PartOptions


class ShardOptions(TypedDict, total=False):
    """The options of `@job` and `with_options`."""

    shard_by: str | tuple[str, ...] | None


class ShardKey(TypedDict, total=False):
    """The option of `.using()`."""

    shard_key: str | int | None


@dataclass(frozen=True, kw_only=True)
class Shard(PartOptions):
    """The options that decide the database of a task's jobs, unless an option of the task names a database."""

    shard_by: str | tuple[str, ...] | None = None
    """The arguments whose values decide the database, under the placement `spread`."""
    shard_key: str | int | None = None
    """A value that decides the database instead of the arguments."""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that cannot be used."""
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


OPTIONS = Shard


def shard_text(values: Sequence[Any]) -> str:
    """Turn the values of a shard key into a text. Equal values give equal texts."""
    return json.dumps(list(values), ensure_ascii=False, sort_keys=True)


def check_shard_key(shard_key: Any) -> None:
    """Raise `InvalidOption` unless the value is a string, an integer or `None`."""
    if isinstance(shard_key, bool) or not isinstance(shard_key, str | int | None):
        raise InvalidOption(f"shard_key must be a str or an integer, not {shard_key!r}.")

"""What pages and commands read of a key with waiting jobs, be it of a limit or of a rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ...values.codec import decode_shown

if TYPE_CHECKING:
    from ...queue.store import Store

MOST_COUNTED = 500
"""Jobs of a key that are counted: of those that hold something, and of those that wait for it."""


@dataclass(frozen=True)
class KeyNow:
    key: str
    next_id: int
    """The job that is admitted next; its task and its arguments say which part of the key is to be masked."""
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    waiting: int
    """Jobs that wait for a permit or a token; above `MOST_COUNTED`: more than that."""
    oldest: float
    """Seconds since the first of the counted jobs was due."""


Now = TypeVar("Now", bound=KeyNow)


def read_keys(
    store: "Store", statement: str, keys: Sequence[str], record: Callable[..., Now], *columns: str
) -> list[Now]:
    """The records of these keys. The statement returns the key and its next job, and then these columns."""
    names = ("key", "next_id", "task", "args", "kwargs", *columns)
    rows = store.rows(statement, {"keys": list(keys), "limit": MOST_COUNTED + 1}) if keys else []
    return [record(**dict(zip(names, (*row[:3], *map(decode_shown, row[3:5]), *row[5:]), strict=True))) for row in rows]

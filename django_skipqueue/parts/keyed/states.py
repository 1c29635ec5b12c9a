"""What operators see of a key with waiting jobs.

Each key costs a few index lookups, however many jobs and keys there are. A secret in a key is masked, just as in the
argument that it comes from, and no search finds it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from ...console.arguments import redacted
from ...console.counts import MOST_JOBS_OF_KEY_COUNTED, Count
from ...models import Job
from ...queue.store import Store
from ...values.codec import decode_shown, shorten


@dataclass(frozen=True)
class KeyNow:
    key: str
    next_id: int
    """The job that is admitted next. Its task and arguments show which part of the key is a secret."""
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    waiting: int
    """The number of jobs that wait for a permit or a token. It is counted up to `MOST_JOBS_OF_KEY_COUNTED` + 1."""
    oldest: float
    """Seconds since the first of the counted jobs was due."""


Now = TypeVar("Now", bound=KeyNow)


def read_keys(
    store: Store, statement: str, keys: Iterable[str], record: Callable[..., Now], *columns: str
) -> list[Now]:
    """Read these keys by `statement`, which returns the key, its next job and `columns`, and make a record of each."""
    names = ("key", "next_id", "task", "args", "kwargs", *columns)
    wanted = list(keys)
    rows = store.rows(statement, {"keys": wanted, "limit": MOST_JOBS_OF_KEY_COUNTED + 1}) if wanted else []
    records = []
    for key, next_id, task, args, kwargs, *values in rows:
        all_values = (key, next_id, task, decode_shown(args), decode_shown(kwargs), *values)
        records.append(record(**dict(zip(names, all_values, strict=True))))
    return records


LONGEST_SHOWN_KEY = 200
"""A longer key is cut to this number of characters."""


@dataclass(frozen=True)
class KeyState(Generic[Now]):
    current: Now

    @cached_property
    def key(self) -> str:
        return shorten(self.masked, LONGEST_SHOWN_KEY)

    @property
    def is_masked(self) -> bool:
        return self.masked != self.current.key

    @property
    def waiting(self) -> Count:
        return counted(self.current.waiting)

    @property
    def oldest(self) -> float:
        """How many seconds the first waiting job has waited."""
        return max(self.current.oldest, 0.0)

    @cached_property
    def masked(self) -> str:
        return redacted(self.current.task, self.current.args, self.current.kwargs).text(self.current.key)


def counted(number: int) -> Count:
    return Count(number, cap=MOST_JOBS_OF_KEY_COUNTED)


def key_of_job(job: Job, key: str) -> str:
    """Return this key of the job, with secrets masked, and shortened."""
    return shorten(redacted(job.task, job.args, job.kwargs).text(key), LONGEST_SHOWN_KEY)

"""What operators see of a key with waiting jobs.

Invariant: a few probes of indexes for each shown key, whatever the number of jobs and of keys. The secrets in a key are
masked like those in the arguments it is made of, and a search never finds them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...console.arguments import redacted
from ...console.counts import MOST_JOBS_OF_KEY, Count
from ...models import Job
from ...values.codec import decode_shown, shorten

if TYPE_CHECKING:
    from ...queue.store import Store


@dataclass(frozen=True)
class KeyNow:
    key: str
    next_id: int
    """The job that is admitted next; its task and its arguments say which part of the key is to be masked."""
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    waiting: int
    """Jobs that wait for a permit or a token; above `MOST_JOBS_OF_KEY`: more than that."""
    oldest: float
    """Seconds since the first of the counted jobs was due."""


Now = TypeVar("Now", bound=KeyNow)


def read_keys(
    store: "Store", statement: str, keys: Sequence[str], record: Callable[..., Now], *columns: str
) -> list[Now]:
    """The records of these keys. The statement returns the key and its next job, and then these columns."""
    names = ("key", "next_id", "task", "args", "kwargs", *columns)
    rows = store.rows(statement, {"keys": list(keys), "limit": MOST_JOBS_OF_KEY + 1}) if keys else []
    return [record(**dict(zip(names, (*row[:3], *map(decode_shown, row[3:5]), *row[5:]), strict=True))) for row in rows]


KEY_LIMIT = 200
"""Characters of a key that are shown."""


@dataclass(frozen=True)
class KeyState(Generic[Now]):
    now: Now

    @cached_property
    def key(self) -> str:
        return shorten(self.masked, KEY_LIMIT)

    @property
    def is_masked(self) -> bool:
        return self.masked != self.now.key

    @property
    def waiting(self) -> Count:
        return counted(self.now.waiting)

    @property
    def oldest(self) -> float:
        """Seconds for which the first of them has waited."""
        return max(self.now.oldest, 0.0)

    @cached_property
    def masked(self) -> str:
        return redacted(self.now.task, self.now.args, self.now.kwargs).text(self.now.key)


def counted(number: int) -> Count:
    return Count(number, cap=MOST_JOBS_OF_KEY)


def key_of_job(job: Job, key: str) -> str:
    """This key of the job, masked and shortened."""
    return shorten(redacted(job.task, job.args, job.kwargs).text(key), KEY_LIMIT)

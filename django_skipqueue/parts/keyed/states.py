"""What operators see of a key with waiting jobs.

Invariant: a few probes of indexes for each shown key, whatever the number of jobs and of keys. The secrets in a key are
masked like those in the arguments it is made of, and a search never finds them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from ...console.arguments import redacted
from ...console.counts import Count
from ...models import Job
from ...values.codec import shorten
from .now import MOST_COUNTED, Now

T = TypeVar("T")

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
    return Count(number, cap=MOST_COUNTED)


def key_of_job(job: Job, key: str) -> str:
    """This key of the job, masked and shortened."""
    return shorten(redacted(job.task, job.args, job.kwargs).text(key), KEY_LIMIT)

"""The keys of rates as operators see them: the rate, the tokens that are there now, and how many jobs wait.

Invariant: a few probes of indexes for each shown key, whatever the number of jobs and of keys. The secrets in a key are
masked like those in the arguments it is made of, and a search never finds them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import Q, QuerySet

from ..models import Job
from ..models.expressions import MINUS_PRIORITY
from ..store import Store
from ..store.limits_now import MOST_COUNTED, RateKeyNow
from ..values.codec import shorten
from ..values.rates import rate_text
from .arguments import redacted
from .counts import Count
from .limit_states import KEY_LIMIT


@dataclass(frozen=True)
class RateState:
    now: RateKeyNow

    @cached_property
    def key(self) -> str:
        return shorten(self.masked, KEY_LIMIT)

    @property
    def is_masked(self) -> bool:
        return self.masked != self.now.key

    @property
    def rate(self) -> str | None:
        """The rate, such as "50/s"; `None`: any number of jobs."""
        return None if self.now.interval is None else rate_text(self.now.interval)

    @property
    def waiting(self) -> Count:
        return Count(self.now.waiting, cap=MOST_COUNTED)

    @property
    def oldest(self) -> float:
        """Seconds for which the first of them has waited."""
        return max(self.now.oldest, 0.0)

    @cached_property
    def masked(self) -> str:
        return redacted(self.now.task, self.now.args, self.now.kwargs).text(self.now.key)

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.masked,
            "kind": "rate",
            "rate": self.rate,
            "burst": self.now.burst,
            "tokens": self.now.tokens,
            "waiting": {"count": self.waiting.shown, "or_more": self.waiting.is_capped},
            "due_in_seconds": self.now.due_in,
            "oldest_seconds": self.oldest,
            "next_job": self.now.next_id,
        }


def rate_states(store: Store, *, most: int) -> list[RateState]:
    """At most `most` keys of rates with waiting jobs, in alphabetical order."""
    return rate_states_of(store, store.blocked_rates(limit=most))


def rate_states_of(store: Store, keys: Iterable[str]) -> list[RateState]:
    """These keys in their order, as far as they have waiting jobs."""
    return [RateState(each) for each in store.rate_keys_now(list(keys))]


def waiting_for_a_token(key: str) -> "QuerySet[Job]":
    """The jobs that wait for a token of this key, the next one first. Index: rate_waiting."""
    has_permit = Q(limit_key=None) | Q(has_permit=True)
    return Job.objects.filter(has_permit, status="blocked", awaits_jobs=None, rate_key=key).order_by(
        MINUS_PRIORITY, "run_after", "id"
    )

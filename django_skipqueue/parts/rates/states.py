"""Rates as operators see them: the rate of a key, the tokens that are there now, and the rates of queues."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from ...models import Job
from ...models.expressions import MINUS_PRIORITY
from ...queue.store import Store
from ...values.settings import burst_of, rate_text
from ..keyed.queues import key_of
from ..keyed.states import KeyState
from .admit import blocked_rates
from .form import RATES
from .now import RateNow, rate_keys_now


@dataclass(frozen=True)
class RateState(KeyState[RateNow]):
    @property
    def rate(self) -> str | None:
        """The rate, such as "50/s"; `None`: any number of jobs."""
        return None if self.now.interval is None else rate_text(self.now.interval)

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
    return rate_states_of(store, waiting_rate_keys(store, limit=most))


def waiting_rate_keys(store: Store, *, after: str = "", limit: int) -> list[str]:
    """Keys of rates with waiting jobs, alphabetically after `after`."""
    return list(blocked_rates(store, after=after, limit=limit))


def rate_states_of(store: Store, keys: Iterable[str]) -> list[RateState]:
    """These keys in their order, as far as they have waiting jobs."""
    return [RateState(each) for each in rate_keys_now(store, list(keys))]


def waiting_for_a_token(key: str) -> "QuerySet[Job]":
    """The jobs that wait for a token of this key, the next one first. Index: rate_waiting."""
    return Job.objects.filter(gate="rate", rate_key=key).order_by(MINUS_PRIORITY, "run_after", "id")


def pace_of(rate_key: str, interval: float | None, burst: int | None) -> tuple[float, int] | None:
    """The interval and the burst of a key, by the columns of one of its jobs; `None`: any number of jobs."""
    name = rate_key.removeprefix(key_of(""))
    changed = None if name == rate_key else RATES.changed_in_row(name)
    if changed is not None:
        return (changed, burst_of(None, changed)) if changed else None
    return None if interval is None else (interval, burst or 1)

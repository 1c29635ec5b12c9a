"""Rates as operators see them: the rate of a key, the tokens that are there now, how many jobs wait, queues' rates.

Invariant: a few probes of indexes for each shown key, whatever the number of jobs and of keys. The secrets in a key are
masked like those in the arguments it is made of, and a search never finds them.

The rate of a queue is the one that holds now, and whether somebody has changed it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import Q, QuerySet

from ...console.arguments import redacted
from ...console.counts import Count
from ...models import Job, Queue
from ...models.expressions import MINUS_PRIORITY
from ...queue.store import Store
from ...values.codec import shorten
from ...values.rates import burst_of, rate_text
from ..limits.now import MOST_COUNTED, RateKeyNow, rate_keys_now
from ..limits.queues import key_of, rate_columns_of, rated_queues
from ..limits.states import KEY_LIMIT
from .admit import blocked_rates


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
    return rate_states_of(store, waiting_rate_keys(store, limit=most))


def waiting_rate_keys(store: Store, *, after: str = "", limit: int) -> list[str]:
    """Keys of rates with waiting jobs, alphabetically after `after`."""
    return list(blocked_rates(store, after=after, limit=limit))


def rate_states_of(store: Store, keys: Iterable[str]) -> list[RateState]:
    """These keys in their order, as far as they have waiting jobs."""
    return [RateState(each) for each in rate_keys_now(store, list(keys))]


def waiting_for_a_token(key: str) -> "QuerySet[Job]":
    """The jobs that wait for a token of this key, the next one first. Index: rate_waiting."""
    has_permit = Q(limit_key=None) | Q(has_permit=True)
    return Job.objects.filter(has_permit, status="blocked", awaits_jobs=None, rate_key=key).order_by(
        MINUS_PRIORITY, "run_after", "id"
    )


@dataclass(frozen=True)
class StartRate:
    """How many jobs of a queue may start in a time. An interval is the seconds for each job."""

    by_settings: float | None
    """The interval of the settings; `None`: any number of jobs."""
    changed: float | None = None
    """The interval of the queue's row; 0: any number of jobs; `None`: nobody has changed it."""

    @property
    def is_changed(self) -> bool:
        return self.changed is not None

    @property
    def interval(self) -> float | None:
        """The interval that holds; `None`: any number of jobs."""
        return self.by_settings if self.changed is None else self.changed or None

    @property
    def text(self) -> str | None:
        """The rate that holds, such as "50/s"; `None`: any number of jobs."""
        return None if self.interval is None else rate_text(self.interval)


def queue_rates() -> dict[str, StartRate]:
    """The rates of the queues that have one, by the name of the queue, `None` in the settings included."""
    changed = dict(Queue.objects.filter(rate_interval__isnull=False).values_list("name", "rate_interval"))
    names: Iterable[str] = {*rated_queues(), *changed}
    return {name: StartRate(rate_columns_of(name).rate_interval, changed.get(name)) for name in sorted(names)}


def rate_of(queue_name: str) -> StartRate | None:
    """The rate of this queue; `None`: its jobs have no key, so that a rate would hold for none of them."""
    changed = _changed(queue_name)
    if changed is None and rate_columns_of(queue_name).rate_key is None:
        return None
    return StartRate(rate_columns_of(queue_name).rate_interval, changed)


def pace_of(rate_key: str, interval: float | None, burst: int | None) -> tuple[float, int] | None:
    """The interval and the burst of a key, by the columns of one of its jobs; `None`: any number of jobs."""
    name = rate_key.removeprefix(key_of(""))
    changed = None if name == rate_key else _changed(name)
    if changed is not None:
        return (changed, burst_of(None, changed)) if changed else None
    return None if interval is None else (interval, burst or 1)


def _changed(queue_name: str) -> float | None:
    return Queue.objects.filter(name=queue_name).values_list("rate_interval", flat=True).first()

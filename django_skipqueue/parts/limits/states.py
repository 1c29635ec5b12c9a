"""Limits as operators see them: how many jobs of a key hold a permit, how many wait, what has halted, queues' limits.

Invariant: a few probes of indexes for each shown key, whatever the number of jobs and of keys. The secrets in a key are
masked like those in the arguments it is made of, and a search never finds them.

The limit of a queue is the number that holds now, and whether somebody has changed it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from ...console.arguments import redacted
from ...console.counts import Count
from ...models import Job, Queue
from ...models.expressions import HAS_BEGUN
from ...queue.store import Store
from ...values.codec import shorten
from .now import MOST_COUNTED, HaltedKey, KeyNow, first_blocked_keys, halted_keys, keys_now, waiting_keys
from .queues import columns_of, key_of, limited_queues

KEY_LIMIT = 200
"""Characters of a key that are shown."""

KINDS = {"concurrency": _("limit"), "sequence": _("sequence"), "halting": _("sequence"), "fair": _("fair order")}

NEXT_KEYS = 20
"""Keys that are looked at beside the halted ones, of the longest waiting jobs, for those that are shown first."""


@dataclass(frozen=True)
class LimitState:
    now: KeyNow
    halted: HaltedKey | None
    """The failed job for which the sequence has halted."""

    @cached_property
    def key(self) -> str:
        return shorten(self.masked, KEY_LIMIT)

    @property
    def is_masked(self) -> bool:
        return self.masked != self.now.key

    @property
    def kind(self) -> str:
        return str(KINDS.get(self.now.kind, self.now.kind))

    @property
    def held(self) -> Count:
        return Count(self.now.held, cap=MOST_COUNTED)

    @property
    def waiting(self) -> Count:
        return Count(self.now.waiting, cap=MOST_COUNTED)

    @property
    def oldest(self) -> float:
        """Seconds for which the first of them has waited."""
        return max(self.now.oldest, 0.0)

    @property
    def seconds(self) -> float:
        """For how long it has been halted; of every other key, for how long its first job has waited."""
        return self.oldest if self.halted is None else self.halted.seconds

    @cached_property
    def masked(self) -> str:
        return redacted(self.now.task, self.now.args, self.now.kwargs).text(self.now.key)


def halted_by_key(store: Store) -> dict[str, HaltedKey]:
    """The sequences that have halted and keep jobs waiting, the longest first, with the job that failed first."""
    firsts: dict[str, HaltedKey] = {}
    for each in halted_keys(store):
        firsts.setdefault(each.key, each)
    return firsts


def halted_states(store: Store, *, most: int) -> list[LimitState]:
    halted = halted_by_key(store)
    return limit_states(store, list(halted)[:most], halted)


def first_states(store: Store, *, most: int) -> list[LimitState]:
    """The keys that an operator has to look at: the halted ones, then those whose jobs have waited for the longest.

    Of many keys, those are chosen whose jobs were enqueued first.
    """
    halted = halted_by_key(store)
    keys = [*list(halted)[:most], *first_blocked_keys(store, most=NEXT_KEYS), *waiting_keys(store, limit=NEXT_KEYS)]
    found = limit_states(store, dict.fromkeys(keys), halted)
    return sorted(found, key=lambda each: (each.halted is None, -each.seconds))[:most]


def limit_states(store: Store, keys: Iterable[str], halted: Mapping[str, HaltedKey]) -> list[LimitState]:
    """These keys in their order, as far as they have waiting jobs."""
    return [LimitState(each, halted.get(each.key)) for each in keys_now(store, list(keys))]


def holders_of(key: str) -> "QuerySet[Job]":
    """The jobs that hold a permit of this key. Index: limit_held."""
    held = (
        (Q(status__in=["queued", "running"]) & ~Q(has_permit=False))
        | Q(HAS_BEGUN, status="scheduled", limit_kind__in=["sequence", "halting"])
        | Q(limit_kind="halting", status="failed")
        | Q(status="blocked", has_permit=True)
    )
    return Job.objects.filter(held, limit_key=key)


@dataclass(frozen=True)
class QueueLimit:
    by_settings: int | None
    """The number of the settings; `None`: any number."""
    changed: int | None = None
    """The number of the queue's row; 0: any number; `None`: nobody has changed it."""

    @property
    def is_changed(self) -> bool:
        return self.changed is not None

    @property
    def number(self) -> int | None:
        """The number that holds; `None`: any number."""
        return self.by_settings if self.changed is None else self.changed or None


def queue_limits() -> dict[str, QueueLimit]:
    """The limits of the queues that have one, by the name of the queue, `None` in the settings included."""
    changed = dict(Queue.objects.filter(concurrency__isnull=False).values_list("name", "concurrency"))
    names: Iterable[str] = {*limited_queues(), *changed}
    return {name: QueueLimit(columns_of(name).capacity, changed.get(name)) for name in sorted(names)}


def limit_of(queue_name: str) -> QueueLimit | None:
    """The limit of this queue; `None`: its jobs have no key, so that a limit would hold for none of them."""
    changed = Queue.objects.filter(name=queue_name).values_list("concurrency", flat=True).first()
    if changed is None and columns_of(queue_name).limit_key is None:
        return None
    return QueueLimit(columns_of(queue_name).capacity, changed)


def permits(limit_key: str, capacity: int | None) -> int | None:
    """How many jobs of a key may be queued or running, by the column of one of them; `None`: any number."""
    name = limit_key.removeprefix(key_of(""))
    if name == limit_key:
        return capacity
    changed = Queue.objects.filter(name=name).values_list("concurrency", flat=True).first()
    return QueueLimit(capacity, changed).number

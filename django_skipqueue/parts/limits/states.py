"""Limits as operators see them: how many jobs of a key hold a permit, what has halted, and the limits of queues."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from ...console.counts import Count
from ...console.job_states import Key, Order
from ...console.parts import QueueSetting
from ...models import Job
from ...queue.store import Store
from ..keyed.queues import key_of
from ..keyed.states import KeyState, counted
from .form import LIMITS
from .models import HAS_BEGUN, LIMIT_RANK
from .now import HaltedKey, LimitNow, first_blocked_keys, halted_keys, keys_now, waiting_keys

KINDS = {"concurrency": _("limit"), "sequence": _("sequence"), "halting": _("sequence"), "fair": _("fair order")}

NEXT_ADMITTED = Order((LIMIT_RANK,), False, _("next admitted first"))

NEXT_KEYS = 20
"""Keys that are looked at beside the halted ones, of the longest waiting jobs, for those that are shown first."""


@dataclass(frozen=True)
class LimitState(KeyState[LimitNow]):
    halted: HaltedKey | None
    """The failed job for which the sequence has halted."""

    @property
    def kind(self) -> str:
        return str(KINDS.get(self.now.kind, self.now.kind))

    @property
    def held(self) -> Count:
        return counted(self.now.held)

    @property
    def seconds(self) -> float:
        """For how long it has been halted; of every other key, for how long its first job has waited."""
        return self.oldest if self.halted is None else self.halted.seconds


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


def key_of_limit(key: str) -> Key:
    """The jobs of this key. The jobs that wait for a permit have the index limit_waiting."""
    return Key("limit_key", key, "limit", NEXT_ADMITTED)


def holders_of(key: str) -> "QuerySet[Job]":
    """The jobs that hold a permit of this key. Index: limit_held."""
    held = (
        (Q(status__in=["queued", "running"]) & (Q(gate=None) | ~Q(gate="ahead")))
        | Q(HAS_BEGUN, status="scheduled", limit_kind__in=["sequence", "halting"])
        | Q(limit_kind="halting", status="failed")
        | Q(gate="rate")
    )
    return Job.objects.filter(held, limit_key=key)


def permits(limit_key: str, capacity: int | None) -> int | None:
    """How many jobs of a key may be queued or running, by the column of one of them; `None`: any number."""
    name = limit_key.removeprefix(key_of(""))
    if name == limit_key:
        return capacity
    return QueueSetting(capacity, LIMITS.changed_in_row(name)).value

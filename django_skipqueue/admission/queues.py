"""The limits of whole queues: which queues have one, and the columns by which their jobs are limited.

Invariant: a job that has a key of its own keeps it. A queue's limit is for the jobs that name none, and its rate is
for those that name no rate.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from ..conf import settings
from ..values.rates import burst_of, interval_of
from ..values.records import EncodedCall

PREFIX = "queue:"
"""The beginning of the keys of queues. The statements that admit know them by it; no other key begins so."""


DECLARED: set[str] = set()
"""The queues that tasks name in `@job`. The registry of tasks adds them."""


class LimitColumns(NamedTuple):
    """The columns of a job that its queue limits; all `None` if it limits none."""

    limit_key: str | None = None
    limit_kind: str | None = None
    capacity: int | None = None


class RateColumns(NamedTuple):
    """The columns of a job whose queue limits how many start in a time; all `None` if any number may."""

    rate_key: str | None = None
    rate_interval: float | None = None
    """`None` with a key: any number, until somebody sets a rate."""
    rate_burst: int | None = None


def limited_queues() -> Collection[str]:
    """The queues whose jobs have the key of their queue as that of a limit, by `SKIPQUEUE["QUEUES"]`."""
    return [name for name, limits in settings.queues.items() if "concurrency" in limits]


def rated_queues() -> Collection[str]:
    return [name for name, limits in settings.queues.items() if "rate" in limits]


def columns_of(queue_name: str) -> LimitColumns:
    limits = settings.queues.get(queue_name)
    if limits is None or "concurrency" not in limits:
        return LimitColumns()
    return LimitColumns(key_of(queue_name), "concurrency", limits["concurrency"])


def rate_columns_of(queue_name: str) -> RateColumns:
    limits = settings.queues.get(queue_name)
    if limits is None or "rate" not in limits:
        return RateColumns()
    if limits["rate"] is None:
        return RateColumns(key_of(queue_name))
    interval = interval_of(limits["rate"])
    return RateColumns(key_of(queue_name), interval, burst_of(None, interval))


def key_of(queue_name: str) -> str:
    return PREFIX + queue_name


def limited_by_queue(queue_name: str, call: EncodedCall) -> EncodedCall:
    """The call, with the keys of its queue if the queue has a limit or a rate, and the call has no key of that kind."""
    if queue_name not in settings.queues:  # of nearly all: this must cost nothing
        return call
    return all_limited_by_queue(queue_name, [call])[0]


def all_limited_by_queue(queue_name: str, calls: Sequence[EncodedCall]) -> Sequence[EncodedCall]:
    """The calls of one task with the keys of the queue: either all have a key of their own of a kind, or none has."""
    if queue_name not in settings.queues:
        return calls
    columns: dict[str, Any] = {}
    if not any(call.limit_key is not None for call in calls):
        columns |= columns_of(queue_name)._asdict()
    if not any(call.rate_key is not None for call in calls):
        columns |= rate_columns_of(queue_name)._asdict()
    return [call._replace(**columns) for call in calls]

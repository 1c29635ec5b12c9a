"""The limits of queues: the number that holds now, and whether somebody has changed it."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..admission.queues import columns_of, key_of, limited_queues
from ..models import Queue


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

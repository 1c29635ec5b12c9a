"""The rates of queues: the one that holds now, and whether somebody has changed it."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..admission.queues import key_of, rate_columns_of, rated_queues
from ..models import Queue
from ..values.rates import burst_of, rate_text


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

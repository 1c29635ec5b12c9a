"""The queues as operators see them: what waits and runs, which workers serve them, and whether they are paused.

A queue is a name: there is no table of all of them. Those that are known have jobs, tasks, workers, a limit or a pause.
Invariant: a few probes of indexes, whatever the number of jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext

from ..jobs.registry import registry
from ..models import Queue
from ..queue.observe import QueueNow, queues_now
from ..queue.store import Store
from ..values.codec import shorten
from ..values.counting import empty
from .blocked_jobs import MOST_BLOCKED, blocked_now
from .counts import Count
from .parts import consoles, queue_options
from .queue_options import QueueSetting
from .worker_health import WorkerHealth, Workforce

MOST = 500
"""The maximum of queues in a list."""

MOST_PAUSED = 1_000
"""Paused queues that are read."""


class QueueRate(NamedTuple):
    per_minute: float
    """Jobs that ended: completed, failed or discarded."""
    waited: list[int]
    """The histogram of the times from the due time to the start of an attempt."""


def has_rates() -> bool:
    """Whether a part knows the rates of queues."""
    return any(part.queue_rates for part in consoles())


def rates_now(store: Store) -> dict[str, QueueRate]:
    """The rates of the queues in which jobs have ended lately, by name; an empty name: of all queues together."""
    return {name: rate for part in consoles() if part.queue_rates for name, rate in part.queue_rates(store).items()}


@dataclass(frozen=True)
class QueueState:
    now: QueueNow
    """Its queued and running jobs."""
    workers: list[WorkerHealth]
    """The workers that serve it and do not count as dead."""
    pause: Queue | None
    """Its row, if it is paused."""
    rate: QueueRate | None
    """Of the last minutes; `None` if no part knows rates."""
    blocked: Count
    """Its jobs that wait for other jobs, or for a permit."""
    settings: Mapping[str, QueueSetting[Any]] = field(default_factory=dict)
    """By the name of the option. Of an option that it does not have, no value could be changed."""

    @property
    def name(self) -> str:
        return self.now.name


def queue_states(rates: Mapping[str, QueueRate] | None = None, workforce: Workforce | None = None) -> list[QueueState]:
    """The known queues, at most `MOST`: the paused ones, then those that have jobs, and then all others by name.

    `rates`: what `rates_now` returns. Queries them, and the `workforce`, unless they are given.
    """
    workforce = Workforce.now() if workforce is None else workforce
    options = {option.name: option.of_all() for option in queue_options()}
    others = {task.options.queue_name for task in registry}.union(*options.values())
    others.update(*(worker.queues for worker in workforce.not_dead))
    return [
        replace(queue, settings={name: of[queue.name] for name, of in options.items() if queue.name in of})
        for queue in active_queues(rates, workforce, others=others, most=MOST)
    ]


def active_queues(
    rates: Mapping[str, QueueRate] | None, workforce: Workforce, *, others: Iterable[str] = (), most: int | None = None
) -> list[QueueState]:
    """The paused queues, those that have jobs, and those that have a rate or are among the others, without settings."""
    rates = rates_now(Store.default()) if rates is None else rates
    busy = {queue.name: queue for queue in queues_now(Store.default())}
    paused = {queue.name: queue for queue in Queue.objects.paused().order_by("name")[:MOST_PAUSED]}
    blocked, is_least = blocked_now(Store.default())
    unrated = QueueRate(0.0, empty()) if has_rates() else None
    names = dict.fromkeys([*paused, *busy, *sorted(blocked), *sorted({*rates, *others} - {""})])
    return [
        QueueState(
            busy.get(name, QueueNow(name)),
            workforce.serving(name),
            pause=paused.get(name),
            rate=rates.get(name, unrated),
            blocked=Count(blocked.get(name, 0), is_least, MOST_BLOCKED),
        )
        for name in list(names)[:most]
    ]


NAME_LIMIT = 200


def pause_of(queue_name: str) -> Queue | None:
    return Queue.objects.paused().filter(name=queue_name).first()


def sentence(queue: Queue) -> str:
    values = {"queue": shorten(queue.name, NAME_LIMIT), "by": shorten(queue.paused_by, NAME_LIMIT)}
    if queue.paused_until:
        values["time"] = moment(queue.paused_until)
        text = gettext("The queue “%(queue)s” is paused until %(time)s")
        if queue.paused_by:
            text = gettext("The queue “%(queue)s” is paused by %(by)s until %(time)s")
    else:
        text = gettext("The queue “%(queue)s” is paused until it is resumed")
        if queue.paused_by:
            text = gettext("The queue “%(queue)s” is paused by %(by)s until it is resumed")
    return f"{text % values}: {queue.reason}" if queue.reason else f"{text % values}."


def moment(time: datetime) -> str:
    """The end of a pause, to the minute, in the time zone of the site."""
    return date_format(localtime(time), "Y-m-d H:i T")

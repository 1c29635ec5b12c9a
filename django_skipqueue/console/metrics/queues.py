"""The metrics of the queues and workers as they are now."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from ...queue.observe import QueueNow, queues_now
from ...queue.queues import paused_queues
from ...queue.store import Store
from ...values.exposition import Family, Metric
from ..blocked_jobs import estimated_blocked
from ..parts import consoles
from ..worker_health import Workforce
from . import catalogue
from .catalogue import MOST, bounded

MOST_COUNTED, LEAST_COUNTED, MOST_TOGETHER = 1_000, 50, 10_000
"""Queued jobs of one queue that are counted, fewer where there are many queues; of more, the planner's estimate is
shown."""

MOST_RUNNING = 2_000
"""Running jobs that are counted, the longest ones first."""

MOST_BLOCKED = 2_000
"""Blocked jobs that are counted, those first that were enqueued first; of more, the planner's estimate is shown."""


METRICS: tuple[tuple[Metric, Callable[[list[QueueNow]], float]], ...] = (
    (catalogue.QUEUED, lambda queues: sum(queue.queued for queue in queues)),
    (catalogue.OLDEST, lambda queues: max(queue.oldest or 0.0 for queue in queues)),
    (catalogue.RUNNING, lambda queues: sum(queue.running for queue in queues)),
    (catalogue.LONGEST, lambda queues: max(queue.longest or 0.0 for queue in queues)),
)
"""Each metric of a queue, and its value for one queue, or for all others together."""


def queues(store: Store) -> Iterator[Family]:
    """The depth of each queue, and how long its jobs have waited and run. One without jobs has zeros."""
    busy = queues_now(store, most=MOST_COUNTED, least=LEAST_COUNTED, together=MOST_TOGETHER, most_running=MOST_RUNNING)
    now = {queue.name: queue for queue in busy}
    for name in (name for part in consoles() if part.known_queues for name in part.known_queues(store, MOST)):
        now.setdefault(name, QueueNow(name))
    busiest = sorted(now.values(), key=lambda queue: -queue.queued - queue.running)
    labelled: dict[tuple[str, ...], list[QueueNow]] = defaultdict(list)
    for labels, queue in bounded(((queue.name,), queue) for queue in busiest):
        labelled[labels].append(queue)
    for metric, value in METRICS:
        yield Family(metric, {labels: value(queues) for labels, queues in labelled.items()})


def blocked(store: Store) -> Iterator[Family]:
    busiest = sorted(estimated_blocked(store, most=MOST_BLOCKED).items(), key=lambda item: (-item[1], item[0]))
    family = Family(catalogue.BLOCKED)
    for labels, number in bounded(((name,), number) for name, number in busiest):
        before = family.values.get(labels, 0)
        family.values[labels] = number + (before if isinstance(before, int) else 0)
    yield family


def paused(store: Store) -> Iterator[Family]:
    yield Family(catalogue.PAUSED, {(name,): 1 for name in paused_queues(store, limit=MOST)})


def workers(store: Store) -> Iterator[Family]:
    numbers = Workforce.now(using=store.alias).by_state
    yield Family(catalogue.WORKERS, {(state,): number for state, number in numbers.items()})

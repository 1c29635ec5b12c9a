"""The dashboard: cards, charts and tables that show within a minute whether all is well.

A `Situation` reads the data that several cards and sections share, and reads it only once. A card is a number with a
link to the list of its jobs. To add a card, write a function and add it to `CARDS`. The sections are below the cards.
To add a section, write a function of a `Situation` and a template, and add a line to `SECTIONS`. A part declares its
cards and sections in its console.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal

from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...models import Job, Status
from ...queue.observe import QueueNow
from ...queue.store import Store
from ..counts import grouped
from ..durations import roughly, span
from ..facts import NOTHING
from ..job_states import RETRYING, Indexed, ScheduledCounts
from ..parts import PartSection, consoles
from ..queues_and_workers import (
    MAX_LINKED_NAME_LENGTH,
    QueueRate,
    QueueState,
    Workforce,
    not_external,
    queue_states,
    rates_now,
)
from .charts import LocalTimes, TimeAxis
from .queue_columns import columns_for, slots_in_words
from .ui.addresses import address_of, carrying
from .ui.cells import rows

HOUR_SECONDS = 3_600


@dataclass(frozen=True)
class Range:
    """A period of time that the dashboard can show."""

    slug: str
    label: Any
    bucket_seconds: int
    """The length of a bucket."""
    bucket_count: int
    mark_every: timedelta
    """The time between two labels of the time axis."""
    bucket_label: Any
    """The length of a bucket, as text."""


RANGES = (
    Range(
        "1h", _("1 hour"), bucket_seconds=60, bucket_count=60, mark_every=timedelta(minutes=10), bucket_label=_("1 min")
    ),
    Range(
        "6h",
        _("6 hours"),
        bucket_seconds=5 * 60,
        bucket_count=72,
        mark_every=timedelta(hours=1),
        bucket_label=_("5 min"),
    ),
    Range(
        "24h",
        _("24 hours"),
        bucket_seconds=15 * 60,
        bucket_count=96,
        mark_every=timedelta(hours=4),
        bucket_label=_("15 min"),
    ),
    Range(
        "7d",
        _("7 days"),
        bucket_seconds=2 * HOUR_SECONDS,
        bucket_count=84,
        mark_every=timedelta(days=1),
        bucket_label=_("2 h"),
    ),
)


# Sent by the dashboard. Returns the current time on the database's clock, in seconds since the epoch.
NOW = "SELECT date_part('epoch', statement_timestamp())"


@dataclass(frozen=True)
class Situation:
    store: Store
    range: Range
    queue_name: str
    """Show only this queue; if empty, show all queues."""
    now: float
    """The time on the database's clock, in seconds since the epoch."""

    @classmethod
    def of(cls, store: Store, range: Range, queue_name: str) -> "Situation":
        ((now,),) = store.rows(NOW)
        return cls(store, range, queue_name, now)

    @property
    def axis(self) -> TimeAxis:
        return TimeAxis.up_to(self.now, width=self.range.bucket_seconds, bucket_count=self.range.bucket_count)

    @cached_property
    def times(self) -> LocalTimes:
        """The time axis in the current time zone: the project's, or the user's if the project has activated it."""
        return LocalTimes(self.axis, timezone.get_current_timezone(), self.range.mark_every)

    @cached_property
    def all_queues(self) -> list[QueueState]:
        return queue_states(self.rates, self.workforce)

    @property
    def queues(self) -> Sequence[QueueState]:
        return [queue for queue in self.all_queues if self.queue_name in ("", queue.name)]

    @property
    def queue(self) -> QueueState:
        """The only queue that is shown."""
        empty = QueueState(QueueNow(self.queue_name), self.workforce.serving(self.queue_name))
        return next(iter(self.queues), empty)

    @cached_property
    def workforce(self) -> Workforce:
        return Workforce.now()

    @cached_property
    def rates(self) -> dict[str, QueueRate]:
        """The rates of the last minutes by queue. The empty name stands for all queues together."""
        return rates_now(self.store)


LONG_WAIT_SECONDS = 60.0
"""The card of the oldest waiting job is a warning if the job has waited for this long."""

VERY_LONG_WAIT_SECONDS = 900.0
"""The card is an alarm if the job has waited for this long."""

Level = Literal["", "warning", "alarm"]


@dataclass(frozen=True)
class Card:
    label: Any
    value: str
    detail: str
    """A few words that explain the number."""
    address: str
    """The URL of the list that the number counts."""
    level: Level = ""
    permission: str = "django_skipqueue.view_job"
    """The permission that the user needs to follow the link."""


def queued(situation: Situation) -> Card:
    waiting_queues = [queue.now for queue in situation.queues if queue.now.queued]
    number = grouped(sum(queue.queued for queue in waiting_queues))
    value = (
        gettext("about %(number)s") % {"number": number}
        if any(queue.is_estimate for queue in waiting_queues)
        else number
    )
    detail = ngettext("in %(number)s queue", "in %(number)s queues", len(waiting_queues)) % {
        "number": grouped(len(waiting_queues))
    }
    return Card(
        _("queued"),
        value,
        detail if waiting_queues and not situation.queue_name else "",
        list_of(situation, status=Status.QUEUED),
    )


def oldest(situation: Situation) -> Card:
    """Show how long the oldest job has waited. A paused queue raises no alarm, because its jobs wait on purpose."""
    waits = (
        (queue.pause is None, queue.now.oldest or 0.0, queue.name)
        for queue in situation.queues
        if (queue.now.oldest or 0.0) > 0
    )
    # Any queue that is not paused comes before the paused queues, however long their jobs have waited.
    is_not_paused, seconds, name = max(waits, default=(True, 0.0, ""))
    if seconds <= 0:
        return Card(_("oldest waiting"), NOTHING, gettext("no job waits"), list_of(situation, status=Status.QUEUED))
    level: Level = "alarm" if seconds >= VERY_LONG_WAIT_SECONDS else "warning" if seconds >= LONG_WAIT_SECONDS else ""
    detail = gettext("in %(queue)s") if is_not_paused else gettext("in %(queue)s, paused")
    address = list_of(situation, status=Status.QUEUED, queue=name)
    level = level if is_not_paused else ""
    return Card(_("oldest waiting"), roughly(seconds), detail % {"queue": name}, address, level)


def running(situation: Situation) -> Card:
    busy_queues = [queue.now for queue in situation.queues if queue.now.running]
    carried_queues = [queue for queue in busy_queues if queue.name in settings.external_queues]
    longest = max((queue.longest or 0.0 for queue in busy_queues if queue not in carried_queues), default=0.0)
    detail = gettext("the longest for %(span)s") % {"span": roughly(max(longest, 0.0))} if busy_queues else ""
    if carried_queues:  # another system runs the jobs of carried queues; the database does not know since when
        detail = gettext("%(number)s in carried queues") % {
            "number": grouped(sum(queue.running for queue in carried_queues))
        }
    number = grouped(sum(queue.running for queue in busy_queues))
    return Card(_("running"), number, detail, list_of(situation, status=Status.RUNNING))


def retrying(situation: Situation) -> Card:
    if situation.queue_name:
        return Card(_("retrying"), NOTHING, gettext("not counted by queue"), list_of(situation, status=RETRYING))
    number = ScheduledCounts.now().retrying
    detail = gettext("wait for another attempt") if number.found else ""
    return Card(_("retrying"), str(number), detail, list_of(situation, status=RETRYING))


def failed(situation: Situation) -> Card:
    indexed = Indexed.covering(Status.FAILED, situation.queue_name or None)
    in_last_day, in_last_hour = (indexed.count(Q(finished_at__gte=Now() - timedelta(hours=hours))) for hours in (24, 1))
    level: Level = "warning" if in_last_hour.found else ""  # whether it is an alarm, the verdict says
    detail = gettext("%(number)s in the last hour") % {"number": in_last_hour} if in_last_day.found else ""
    return Card(
        _("failed in 24 h"), str(in_last_day), detail, list_of(situation, status=Status.FAILED, time="day"), level
    )


def workers(situation: Situation) -> Card:
    workforce = situation.workforce
    processes = workforce.serving(situation.queue_name) if situation.queue_name else workforce.not_dead
    late_workers = [worker for worker in workforce.late_or_stale if not situation.queue_name or worker in processes]
    detail = slots_in_words(processes)
    if late_workers:
        detail = ngettext("%(number)s is late or dead", "%(number)s are late or dead", len(late_workers)) % {
            "number": grouped(len(late_workers))
        }
    elif not processes:
        detail = gettext("none is alive")
    level: Level = "alarm" if not processes else "warning" if late_workers else ""
    address = address_of("worker_changelist")
    alive_text = grouped(sum(worker.slots > 0 for worker in processes))
    return Card(_("workers alive"), alive_text, detail, address, level, "django_skipqueue.view_worker")


CARDS = (queued, oldest, running, retrying, failed, workers)


def cards(situation: Situation) -> Iterator[Card]:
    """Yield the cards. Each is followed by the parts' cards that belong after it."""
    cards_of_parts = [card for part in consoles() for card in part.cards]
    for make_card in CARDS:
        yield make_card(situation)
        yield from (card.make(situation) for card in cards_of_parts if card.after == make_card.__name__)


def list_of(situation: Situation, **query: str) -> str:
    """Return the URL of the job list with this query. If the dashboard shows one queue, the list shows its jobs."""
    if situation.queue_name:
        query["queue"] = situation.queue_name
    return address_of("job_changelist", query=query)


MOST_LONG_JOBS_SHOWN = 5


def _longest_jobs(situation: Situation) -> list[dict[str, Any]]:
    """Query the jobs that workers have run longest, except jobs that another system runs. Index: recover."""
    running: Any = not_external(Job.objects.running()).annotate(now=Now()).order_by("locked_at")
    if situation.queue_name:
        running = running.filter(queue_name=situation.queue_name)
    columns = ("id", "task", "queue_name", "locked_at", "locked_by", "now")
    return [
        {
            "id": id,
            "address": address_of("job_change", id),
            "task": task,
            "queue_name": queue_name,
            "ran": span(now - locked_at),
            "worker_id": locked_by or "",
        }
        for id, task, queue_name, locked_at, locked_by, now in running.values_list(*columns)[:MOST_LONG_JOBS_SHOWN]
    ]


MOST_QUEUES_SHOWN = 10


def _queues(situation: Situation) -> dict[str, Any]:
    shown_queues = situation.queues[:MOST_QUEUES_SHOWN]
    columns = columns_for(shown_queues)
    return {
        "columns": columns,
        "rows": rows(columns, shown_queues),
        "hidden": len(situation.queues) - len(shown_queues),
    }


SECTIONS: tuple[PartSection[Situation], ...] = tuple(
    PartSection(
        name=name, template=f"admin/django_skipqueue/dashboard/{name}.html", content=content, is_of_queue=is_of_queue
    )
    for name, content, is_of_queue in (("queues", _queues, False), ("longest_jobs", _longest_jobs, True))
)
"""The sections in the order of the page."""


def sections() -> Iterator[PartSection[Situation]]:
    """Yield the sections. Each is followed by the parts' sections that belong after it."""
    sections_of_parts = [section for part in consoles() for section in part.sections]
    yield from (section for section in sections_of_parts if not section.after)
    for section in SECTIONS:
        yield section
        yield from (part_section for part_section in sections_of_parts if part_section.after == section.name)


@dataclass(frozen=True)
class Dashboard:
    situation: Situation
    cards: list[tuple[Card, bool]]
    """Each card, and whether the user may follow its link."""
    sections: list[tuple[PartSection[Situation], Any]]
    took: str
    """How long it took to read the data, as text."""

    @classmethod
    def of(cls, query: Mapping[str, str], may: Callable[[str], bool], *, of_queue: bool = False) -> "Dashboard":
        """Read the data for the URL's query, such as `range=6h` and `queue=emails`.

        `may` returns whether the user has a permission. `of_queue`: only read the sections that a queue's page shows.
        """
        started = time.perf_counter()
        queue_name = query.get("queue", "").replace("\0", "")[:MAX_LINKED_NAME_LENGTH]
        range = next((range for range in RANGES if range.slug == query.get("range")), RANGES[0])
        situation = Situation.of(Store.default(), range, queue_name)
        shown_cards = [(card, may(card.permission)) for card in (() if of_queue else cards(situation))]
        chosen_sections = (section for section in sections() if section.is_of_queue or not of_queue)
        sections_with_content = [(section, section.content(situation)) for section in chosen_sections]
        return cls(situation, shown_cards, sections_with_content, span(time.perf_counter() - started))

    @property
    def ranges(self) -> list[tuple[Range, str, bool]]:
        return [
            (range, self._address(range=range.slug, queue=self.queue_name), range is self.situation.range)
            for range in RANGES
        ]

    @property
    def queue_name(self) -> str:
        """The only queue that is shown, or empty if all queues are."""
        return self.situation.queue_name

    @property
    def queue_names(self) -> list[str]:
        names = {queue.name for queue in self.situation.all_queues if len(queue.name) <= MAX_LINKED_NAME_LENGTH}
        return sorted(names | ({self.queue_name} if self.queue_name else set()))

    @property
    def all_queues_address(self) -> str:
        return self._address(range=self.situation.range.slug)

    def _address(self, **query: str) -> str:
        return carrying(f"?{urlencode({name: value for name, value in query.items() if value})}")

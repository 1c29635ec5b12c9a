"""The cards: one number each, with a link to the list behind it. A further one is a function, and a line in `CARDS`.

Those of a part are in its console.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from django.db.models import Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ....conf import settings
from ....models import Status
from ...counts import grouped
from ...durations import roughly
from ...job_states import RETRYING, Indexed, ScheduledCounts
from ...parts import consoles, processes_in_words
from .situation import Situation

LONG_WAIT = 60.0
"""Seconds after which a job that waits deserves a look."""

VERY_LONG_WAIT = 900.0

NOTHING = "\N{EN DASH}"

Level = Literal["", "warning", "alarm"]


@dataclass(frozen=True)
class Card:
    label: Any
    value: str
    detail: str
    """What belongs to the number, in a few words."""
    address: str
    """The list behind the number."""
    level: Level = ""
    permission: str = "django_skipqueue.view_job"
    """Who has it can follow the link."""


def queued(situation: Situation) -> Card:
    waiting = [queue.now for queue in situation.queues if queue.now.queued]
    number = grouped(sum(queue.queued for queue in waiting))
    value = gettext("about %(number)s") % {"number": number} if any(q.is_estimate for q in waiting) else number
    detail = ngettext("in %(number)s queue", "in %(number)s queues", len(waiting)) % {"number": grouped(len(waiting))}
    return Card(
        _("queued"),
        value,
        detail if waiting and not situation.queue_name else "",
        list_of(situation, status=Status.QUEUED),
    )


def oldest(situation: Situation) -> Card:
    """The job that has waited for the longest time. Those of paused queues wait on purpose, and alarm nobody."""
    waits = ((queue.pause is None, queue.now.oldest or 0.0, queue.name) for queue in situation.queues)
    runs, seconds, name = max((each for each in waits if each[1] > 0), default=(True, 0.0, ""))
    if seconds <= 0:
        return Card(_("oldest waiting"), NOTHING, gettext("no job waits"), list_of(situation, status=Status.QUEUED))
    level: Level = "alarm" if seconds >= VERY_LONG_WAIT else "warning" if seconds >= LONG_WAIT else ""
    detail = gettext("in %(queue)s") if runs else gettext("in %(queue)s, paused")
    address = list_of(situation, status=Status.QUEUED, queue=name)
    return Card(_("oldest waiting"), roughly(seconds), detail % {"queue": name}, address, level if runs else "")


def running(situation: Situation) -> Card:
    held = [queue.now for queue in situation.queues if queue.now.running]
    external = [queue for queue in held if queue.name in settings.external_queues]
    longest = max((queue.longest or 0.0 for queue in held if queue not in external), default=0.0)
    detail = gettext("the longest for %(span)s") % {"span": roughly(max(longest, 0.0))} if held else ""
    if external:  # how long one has run there, and not waited, nobody here knows
        detail = gettext("%(number)s in carried queues") % {"number": grouped(sum(queue.running for queue in external))}
    number = grouped(sum(queue.running for queue in held))
    return Card(_("running"), number, detail, list_of(situation, status=Status.RUNNING))


def retrying(situation: Situation) -> Card:
    if situation.queue_name:
        return Card(_("retrying"), NOTHING, gettext("not counted by queue"), list_of(situation, status=RETRYING))
    number = ScheduledCounts.now().retrying
    detail = gettext("wait for another attempt") if number.found else ""
    return Card(_("retrying"), str(number), detail, list_of(situation, status=RETRYING))


def failed(situation: Situation) -> Card:
    indexed = Indexed.covering(Status.FAILED, situation.queue_name or None)
    of_day, of_hour = (indexed.count(Q(finished_at__gte=Now() - timedelta(hours=hours))) for hours in (24, 1))
    level: Level = "alarm" if of_hour.found else "warning" if of_day.found else ""
    detail = gettext("%(number)s in the last hour") % {"number": of_hour} if of_day.found else ""
    return Card(_("failed in 24 h"), str(of_day), detail, list_of(situation, status=Status.FAILED, time="day"), level)


def workers(situation: Situation) -> Card:
    force = situation.workforce
    processes = force.serving(situation.queue_name) if situation.queue_name else force.not_dead
    alive = [worker for worker in processes if worker.slots]
    late = [worker for worker in force.late_or_stale if not situation.queue_name or worker in processes]
    slots = sum(worker.slots for worker in alive)
    detail = ngettext("%(number)s slot", "%(number)s slots", slots) % {"number": grouped(slots)} if alive else ""
    if others := len(processes) - len(alive):
        detail = " · ".join(filter(None, [detail, processes_in_words(others)]))
    if late:
        detail = ngettext("%(number)s is late or dead", "%(number)s are late or dead", len(late)) % {
            "number": grouped(len(late))
        }
    elif not processes:
        detail = gettext("none is alive")
    level: Level = "alarm" if not processes else "warning" if late else ""
    address = reverse("admin:django_skipqueue_worker_changelist")
    return Card(_("workers alive"), grouped(len(alive)), detail, address, level, "django_skipqueue.view_worker")


CARDS = (queued, oldest, running, retrying, failed, workers)


def cards(situation: Situation) -> Iterator[Card]:
    """The cards, each with those of parts that stand after it."""
    of_parts = [card for part in consoles() for card in part.cards]
    for make in CARDS:
        yield make(situation)
        yield from (each.make(situation) for each in of_parts if each.after == make.__name__)


def list_of(situation: Situation, **query: str) -> str:
    if situation.queue_name:
        query["queue"] = situation.queue_name
    return f"{reverse('admin:django_skipqueue_job_changelist')}?{urlencode(query)}"

"""The open incidents of the setting `ALERTS`, as a notice over every page of the admin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

from ...console.admin import notices
from ...console.durations import span
from ...console.parts import PartNotice
from ...events.log_format import printable
from ...models import Incident
from ...values.codec import shorten
from ...values.columns import MAX_KEY_BYTES
from .settings import RULES

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

MOST = 20
"""The maximum of incidents that are shown, the oldest first."""

SENTENCES: dict[str, tuple["_StrPromise", "_StrPromise"]] = {
    "oldest_waiting": (
        _("A job has waited for %(value)s (limit: %(limit)s)."),
        _("A job in queue %(queue)s has waited for %(value)s (limit: %(limit)s)."),
    ),
    "no_worker": (
        _("No worker has been alive for %(value)s (limit: %(limit)s)."),
        _("No worker has served queue %(queue)s for %(value)s (limit: %(limit)s)."),
    ),
    "failed_share": (
        _("%(value)s of the attempts of the last ten minutes have failed (limit: %(limit)s)."),
        _("%(value)s of the attempts of the last ten minutes in queue %(queue)s have failed (limit: %(limit)s)."),
    ),
    "recoveries": (
        _("Jobs recovered from dead workers in the last ten minutes: %(value)s (limit: %(limit)s)."),
        _("Jobs of queue %(queue)s recovered from dead workers in the last ten minutes: %(value)s (limit: %(limit)s)."),
    ),
    "schedule_missed": (
        _("A schedule should have fired %(value)s ago (limit: %(limit)s)."),
        _("A schedule should have fired %(value)s ago (limit: %(limit)s)."),
    ),
    "sequence_halted": (
        _("A sequence has halted %(value)s ago (limit: %(limit)s)."),
        _("A sequence has halted %(value)s ago (limit: %(limit)s)."),
    ),
}
"""For each rule the sentence about all queues, and the one about a queue."""


@dataclass(frozen=True)
class OpenIncident:
    rule: str
    queue_name: str
    value: float
    limit: float
    since: datetime
    worst_queue: str = ""
    """Of an incident of all queues, the queue that it is about now, if it is about one."""

    @property
    def sentence(self) -> str:
        of_all, of_queue = SENTENCES[self.rule]
        queue_name = self.queue_name or self.worst_queue
        return (of_queue if queue_name else of_all) % {
            "queue": printable(shorten(queue_name, MAX_KEY_BYTES)),
            "value": self._amount(self.value),
            "limit": self._amount(self.limit),
        }

    def _amount(self, value: float) -> str:
        unit = RULES[self.rule].unit
        return span(value) if unit == "seconds" else f"{value:.0f}" if unit == "jobs" else f"{value * 100:.0f} %"


def open_incidents() -> tuple[OpenIncident, ...]:
    """All of them, the oldest first. The table has a row for each limit at most."""
    found = Incident.objects.open().filter(rule__in=SENTENCES).order_by("since")
    return tuple(
        OpenIncident(*row) for row in found.values_list("rule", "queue_name", "value", "threshold", "since")[:MOST]
    )


def notice(waiting: Sequence[str]) -> Iterator[PartNotice]:
    """Nothing if there is no open incident. `waiting`: the names of the queues with jobs that wait."""
    if incidents := tuple(_with_queues(waiting)):
        yield PartNotice(template="admin/django_skipqueue/alerts/notice.html", about=incidents)


def _with_queues(waiting: Sequence[str]) -> Iterator[OpenIncident]:
    """The open incidents. That of a job that waits names its queue: then one query for each queue that waits."""
    for incident in open_incidents():
        if incident.rule == "oldest_waiting" and not incident.queue_name:
            waits = {name: notices.wait_of(name) or timedelta(0) for name in waiting[: notices.MOST]}
            yield replace(incident, worst_queue=max(waits, key=waits.__getitem__, default=""))
        else:
            yield incident

"""Alerts, for operators: the open incidents as a notice over every page of the admin, and a subcommand."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.admin import notices
from ...console.cli.subcommand import Exit, Watchable
from ...console.cli.terminal import Console, shown_time
from ...console.durations import span
from ...console.parts import PartConsole, PartNotice
from ...events.log_format import printable
from ...models import Incident
from ...queue.store import Store
from ...values.bounds import MAX_KEY_BYTES
from ...values.codec import shorten
from .events import amount
from .settings import OTHERS, RULES, limits
from .watch import check, confirm

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


def notice(waiting: Sequence[str]) -> Iterator[PartNotice]:
    """The open incidents, the oldest first. `waiting`: the names of the queues with jobs that wait."""
    found = Incident.objects.open().filter(rule__in=SENTENCES).order_by("since")[:MOST]
    if about := [{"since": incident.since, "sentence": _sentence(incident, waiting)} for incident in found]:
        yield PartNotice(template="admin/django_skipqueue/alerts/notice.html", about=about)


def _sentence(incident: Incident, waiting: Sequence[str]) -> str:
    """The sentence of a job that waits in any queue names its queue: that costs a query for each queue that waits."""
    queue_name, unit = incident.queue_name, RULES[incident.rule].unit
    if incident.rule == "oldest_waiting" and not queue_name:
        waits = {name: notices.wait_of(name) or timedelta(0) for name in waiting[: notices.MOST]}
        queue_name = max(waits, key=waits.__getitem__, default="")

    def shown(value: float) -> str:
        return span(value) if unit == "seconds" else f"{value:.0f}" if unit == "jobs" else f"{value * 100:.0f} %"

    return SENTENCES[incident.rule][bool(queue_name)] % {
        "queue": printable(shorten(queue_name, MAX_KEY_BYTES)),
        "value": shown(incident.value),
        "limit": shown(incident.threshold),
    }


class Alerts(Watchable):
    """Announces incidents as a supervisor does: by log lines, signals and the webhook."""

    name = "alerts"
    help = "Check the limits of ALERTS, announce incidents that begin or end, and list those that are open"
    needs_all = True

    def run(self, console: Console, **options: Any) -> Exit:
        wanted = limits(settings.alerts)
        if not wanted:
            raise CommandError("SKIPQUEUE['ALERTS'] has no limit: there is nothing to check.")
        store = Store.default()
        for alert in check(store, wanted):
            store.send(alert)
            confirm(store, alert)
        incidents = list(Incident.objects.open().order_by("since"))
        if options["json"]:
            columns = ("rule", "queue_name", "value", "threshold", "since", "raised_at")
            console.json({"incidents": [{name: getattr(each, name) for name in columns} for each in incidents]})
        elif incidents:
            console.table(("RULE", "QUEUE", "VALUE", "LIMIT", "SINCE"), map(_row, incidents), right=("VALUE", "LIMIT"))
        console.say(f"Limits: {len(wanted)}. Open incidents: {len(incidents)}.")
        return Exit.NEGATIVE if incidents else Exit.DONE


def _row(incident: Incident) -> tuple[str, ...]:
    return (
        incident.rule,
        printable(incident.queue_name) or OTHERS,
        amount(incident.rule, incident.value),
        amount(incident.rule, incident.threshold),
        shown_time(incident.since),
    )


CONSOLE = PartConsole(subcommands=(Alerts(),), notices=notice)

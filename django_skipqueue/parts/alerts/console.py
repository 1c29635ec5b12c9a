"""Alerts, for operators: a subcommand, and a notice in the admin."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...conf import settings
from ...console.cli.subcommand import Exit, Subcommand
from ...console.cli.terminal import Console, shown_time
from ...console.parts import PartConsole
from ...events.log_format import printable
from ...models import Incident
from ...queue.store import Store
from .admin import notice
from .events import amount
from .settings import OTHERS, limits
from .watch import check, confirm


class Alerts(Subcommand):
    """Announces incidents as a supervisor does: by log lines, signals and the webhook."""

    name = "alerts"
    help = "Check the limits of ALERTS, announce incidents that begin or end, and list those that are open"
    needs_all = True

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print a JSON object")

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

"""What operators see of alerts: the subcommand `alerts`, and since when a problem has been known."""

from typing import Any

from ...console.cli.subcommand import Exit, Watchable
from ...console.cli.terminal import Console, shown_time
from ...console.parts import PartConsole
from ...models import Incident
from ...queue.store import Store
from .watch import check, confirm, known_since

INCIDENT_COLUMNS = ("severity", "rule", "subject", "since", "raised_at", "title")


class Alerts(Watchable):
    """Announces incidents in the same way as a supervisor: by log lines, signals and the webhook."""

    name = "alerts"
    help = "Check the queue, announce problems that begin or end, and list the open incidents"
    needs_yes_from_all_databases = True

    def run(self, console: Console, **options: Any) -> Exit:
        store = Store.default()
        for alert in check(store):
            store.send(alert)
            confirm(store, alert)
        incidents = list(Incident.objects.open().order_by("severity", "since"))
        if options["json"]:
            console.json(
                {"incidents": [{name: getattr(incident, name) for name in INCIDENT_COLUMNS} for incident in incidents]}
            )
        elif incidents:
            console.table([name.replace("_", " ") for name in INCIDENT_COLUMNS], map(_row, incidents))
        console.say(f"Open incidents: {len(incidents)}.")
        return Exit.NEGATIVE if incidents else Exit.DONE


def _row(incident: Incident) -> tuple[str, ...]:
    since, raised_at = (shown_time(time) if time else "" for time in (incident.since, incident.raised_at))
    return (incident.severity, incident.rule, incident.subject, since, raised_at, incident.title)


CONSOLE = PartConsole(subcommands=(Alerts(),), known_since=known_since)

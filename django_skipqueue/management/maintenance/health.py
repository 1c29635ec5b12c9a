"""`skipqueue health`: for the probe of a container, whether a worker of this host is alive.

Invariant: the command ends within its timeout, whatever the network does.
"""

import os
import socket
import sys
import threading
from typing import Any, NoReturn

from django.core.management.base import CommandParser
from django.db.models import F, Q
from django.db.models.functions import Now

from ...events.log_format import printable
from ...models import Worker
from ...operators.durations import span
from ..terminal import option_types
from ..terminal.console import Console
from ..terminal.subcommand import Exit, Subcommand

MOST = 1_000
"""How many workers are read, the youngest heartbeats first."""


class Health(Subcommand):
    """Reads a few rows, and ends the process itself if the database does not answer in time."""

    name = "health"
    help = "For probes: exit with 0 if a worker of this host has written a heartbeat"
    needs_all = True

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        duration = option_types.duration
        parser.add_argument(
            "--max-age",
            type=duration,
            default=duration("60s"),
            metavar="DURATION",
            help="how old the heartbeat may be; default: 60s",
        )
        parser.add_argument("--queue", metavar="QUEUE", help="of a worker that serves this queue")
        parser.add_argument(
            "--name",
            default=os.environ.get("SKIPQUEUE_NAME"),
            help="of the workers of the runworker with this name, on any host; default: those of this host "
            "[SKIPQUEUE_NAME]",
        )
        parser.add_argument(
            "--timeout",
            type=duration,
            default=duration("5s"),
            metavar="DURATION",
            help="how long the database may take; default: 5s",
        )

    def execute(self, console: Console, **options: Any) -> Exit:
        """Run it on a connection of its own, for no longer than the timeout."""
        seconds = options["timeout"].total_seconds()
        timer = threading.Timer(seconds, _give_up, [f"unhealthy: no answer from the database within {seconds:g} s"])
        timer.daemon = True
        timer.start()
        try:
            return super().execute(console, **options)
        finally:
            timer.cancel()

    def run(self, console: Console, **options: Any) -> Exit:
        """Find the youngest heartbeat, and compare its age."""
        name, queue, max_age = options["name"], options["queue"], options["max_age"]
        chosen = Q(name=name) | Q(name__startswith=f"{name}/") if name else Q(hostname=socket.gethostname())
        workers = Worker.objects.filter(chosen).annotate(age=Now() - F("heartbeat_at")).order_by("-heartbeat_at")
        serving = (each for each in workers[:MOST] if queue is None or not each.queues or queue in each.queues)
        youngest: Any = next(serving, None)
        if youngest is None:
            place = f"named {name}" if name else f"on {socket.gethostname()}"
            console.say(f"unhealthy: no worker {place}{f' serves the queue {queue}' if queue else ''}")
            return Exit.NEGATIVE
        heartbeat = f"{printable(youngest.name)} wrote its last heartbeat {span(youngest.age)} ago"
        if youngest.age > max_age:
            console.say(f"unhealthy: {heartbeat}, more than {span(max_age)}")
            return Exit.NEGATIVE
        console.line(f"healthy: {heartbeat}")
        return Exit.DONE


def _give_up(message: str) -> NoReturn:
    """End this process although another thread of it waits for the network: only the kernel can end that wait."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    os._exit(Exit.ERROR)

"""`skipqueue health`: tell a container's probe whether a worker on this host is alive.

The command always ends within its timeout, whatever the network does.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q
from django.utils import translation

from ...conf import chosen_or_all
from ...events.log_format import printable
from ...queue.session import short_transaction
from ...queue.store import Store
from ...worker.preflight import engine_problem
from ..at_once import read_at_once
from ..durations import duration, span
from ..queues_and_workers import Workforce
from ..rules.examination import VERDICT_SECONDS
from ..rules.verdict import Verdict
from .subcommand import Exit, Subcommand
from .terminal import Console
from .verdict import in_a_sentence


class Health(Subcommand):
    name = "health"
    help = "For probes: exit with 0 if a worker on this host has recently written a heartbeat"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--max-age",
            type=duration,
            default=duration("60s"),
            metavar="DURATION",
            help="the maximum age of the heartbeat; default: 60s",
        )
        parser.add_argument("--queue", metavar="QUEUE", help="only accept workers that serve this queue")
        parser.add_argument(
            "--name",
            default=os.environ.get("SKIPQUEUE_NAME"),
            help="only accept workers of the runworker with this name, on any host; default: workers on this host "
            "[SKIPQUEUE_NAME]",
        )
        parser.add_argument(
            "--timeout",
            type=duration,
            default=duration("5s"),
            metavar="DURATION",
            help="how long to wait for the database; default: 5s",
        )

    def execute(self, console: Console, **options: Any) -> Exit:
        """Check one database, or several at the same time, and end within the timeout."""
        seconds = options["timeout"].total_seconds()
        aliases = (options["database"],) if options["database"] else chosen_or_all()
        if len(aliases) > 1:
            return _check_several(console, aliases, seconds, options)
        self._code: Exit | None = None
        self._ends_at = time.monotonic() + seconds
        timer = threading.Timer(seconds, self._give_up, [f"no answer from the database within {seconds:g} s"])
        timer.daemon = True
        timer.start()
        try:
            return super().execute(console, **options)
        finally:
            timer.cancel()

    def run(self, console: Console, **options: Any) -> Exit:
        health = _Health.now(**options)
        health.show(console)
        console.flush()
        self._code = Exit.DONE if health.is_well else Exit.NEGATIVE
        _show_verdict(console, _verdict(Store.default(), self._ends_at - time.monotonic()))
        return self._code

    def _give_up(self, message: str) -> NoReturn:
        """End this process immediately, because its main thread may be waiting for the network."""
        sys.stderr.write(f"{'unhealthy' if self._code is None else 'verdict'}: {message}\n")
        sys.stderr.flush()
        os._exit(Exit.ERROR if self._code is None else self._code)


@dataclass(frozen=True)
class _Health:
    is_well: bool
    sentence: str

    @classmethod
    def now(cls, *, name: str | None, queue: str | None, max_age: timedelta, **_: Any) -> "_Health":
        """Check the workers with this name, or on this host, in this thread's database."""
        has_name = Q(name=name) | Q(name__startswith=f"{name}/")  # the name of a runworker, or of one of its workers
        condition = has_name if name else Q(hostname=socket.gethostname())
        workers = Workforce.now(condition).workers
        latest = next((worker for worker in workers if queue is None or worker.serves(queue)), None)
        if latest is None:
            worker_description = f"named {name}" if name else f"on {socket.gethostname()}"
            queue_text = f" serves the queue {queue}" if queue else ""
            return cls(is_well=False, sentence=f"no worker {worker_description}{queue_text}")
        heartbeat = f"{printable(latest.name)} wrote its last heartbeat {span(latest.age)} ago"
        if latest.age > max_age:
            return cls(is_well=False, sentence=f"{heartbeat}, more than {span(max_age)}")
        return cls(is_well=True, sentence=heartbeat)

    def show(self, console: Console, prefix: str = "") -> None:
        if self.is_well:
            console.line(f"{prefix}healthy: {self.sentence}")
        else:
            console.say(f"{prefix}unhealthy: {self.sentence}")


def _check_several(console: Console, aliases: Sequence[str], seconds: float, options: dict[str, Any]) -> Exit:
    """Check all databases at the same time. If one does not answer, the workers of the rest still count as healthy."""
    for alias in aliases:
        if problem := engine_problem(alias):
            raise CommandError(" ".join(problem))

    health_by_alias: dict[str, _Health] = {}

    def read(store: Store) -> Verdict:
        with short_transaction(store, seconds):
            health_by_alias[store.alias] = _Health.now(**options)
        return _verdict(store, seconds)

    verdicts = read_at_once(aliases, read, connect_seconds=seconds, seconds=seconds)
    for alias in aliases:
        if alias in health_by_alias:
            health_by_alias[alias].show(console, prefix=f"{alias}: ")
        else:
            console.say(f"{alias}: cannot be used, or no answer from the database within {seconds:g} s")
    for alias, verdict in verdicts.items():
        if verdict is not None:
            _show_verdict(console, verdict, prefix=f"{alias}: ")
    health_answers = [health.is_well for health in health_by_alias.values()]
    if not health_answers:
        return Exit.ERROR
    return Exit.DONE if all(health_answers) else Exit.NEGATIVE


def _show_verdict(console: Console, verdict: Verdict, prefix: str = "") -> None:
    """Print the verdict in one line, because a container's probe keeps little output."""
    problems = "; ".join(in_a_sentence(problem) for problem in verdict.problems)
    console.line(f"{prefix}verdict: {problems or verdict}")


def _verdict(store: Store, seconds: float) -> Verdict:
    with translation.override(None):
        return Verdict.now(store, seconds=min(VERDICT_SECONDS, seconds / 2))

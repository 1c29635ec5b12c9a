"""`manage.py runworker`: run jobs until told to stop."""

import argparse
import math
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from django.conf import settings as django_settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ... import __version__, conf, logs
from ...exceptions import QueueUnavailable
from ...log_format import configure, counted, printable
from ...preflight import check_database
from ...registry import tasks
from ...worker.options import WorkerOptions
from ...worker.supervisor import Supervisor
from ..reloader import Reloader, report_modules

SHOWN = 10
"""How many tasks a worker names when it introduces itself."""


class Command(BaseCommand):
    """Claims jobs, runs them, retries them. Needs nothing but the project's PostgreSQL."""

    help = "Run jobs: claim them, run them, retry them. Every option can also be set in the environment."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add = _Options(parser)
        settings = conf.load_or_default()
        add("-q", "--queues", help="queues to serve, separated by commas, in this order; default: all that have jobs")
        add("-c", "--concurrency", type=_at_least(1), default=4, help="threads of one process, and as many coroutines")
        add("--processes", type=_at_least(1), default=1, help="worker processes")
        add.flag("--drain", help="stop when nothing is runnable")
        add("--max-jobs", type=_at_least(1), help="stop each process after this many jobs")
        add("--max-jobs-per-worker", type=_at_least(1), help="replace each process after this many jobs")
        add("--max-memory-mb", type=_at_least(1), help="replace each process that has more MiB of memory in use")
        add(
            "--poll-interval",
            type=_seconds(0.01),
            default=settings.poll_interval,
            help="seconds between two looks for jobs when nothing wakes the worker",
        )
        add.flag("--no-listen", help="poll only; do not wait for PostgreSQL's notifications")
        add(
            "--shutdown-timeout",
            type=_seconds(0),
            default=settings.shutdown_timeout,
            help="seconds for running jobs to finish in after the first signal; then they are given back",
        )
        add(
            "--lease",
            type=_seconds(1),
            default=settings.lease,
            help="seconds without a heartbeat after which a worker is taken for dead",
        )
        add("--name", default=f"{socket.gethostname()}:{os.getpid()}", help="the worker's name in logs and admin")
        add("--database", default=settings.database, help="the alias of the database that holds the queue")
        add.switch("--reload", help="restart when code changes; default: when DEBUG is on and this is a terminal")

    def handle(self, **options: Any) -> None:
        """Run until stopped."""
        configure(options["verbosity"], colour=_colour(options), tracebacks=django_settings.DEBUG)
        if options["reload"] or (options["reload"] is None and django_settings.DEBUG and sys.stderr.isatty()):
            sys.exit(Reloader([sys.executable, *sys.orig_argv[1:], "--no-reload"]).run_child())
        lifeline = report_modules(os.environ)
        worker = self._options(options)
        try:
            check_database(worker.database)
        except QueueUnavailable as error:
            raise CommandError(str(error)) from None
        logs.connect()
        logs.starting(_introduction(worker, reloads=lifeline is not None))
        Supervisor(worker, lifeline=lifeline).run()

    def _options(self, options: dict[str, Any]) -> WorkerOptions:
        queue_names = tuple(
            dict.fromkeys(name.strip() for name in (options["queues"] or "").split(",") if name.strip())
        )
        if options["queues"] and not queue_names:
            raise CommandError("--queues names no queue.")
        return WorkerOptions(
            name=options["name"],
            database=options["database"],
            queue_names=queue_names,
            concurrency=options["concurrency"],
            processes=options["processes"],
            drain=options["drain"],
            max_jobs=options["max_jobs"],
            max_jobs_per_worker=options["max_jobs_per_worker"],
            max_memory_mb=options["max_memory_mb"],
            listen=not options["no_listen"],
            poll_interval=options["poll_interval"],
            shutdown_timeout=options["shutdown_timeout"],
            lease=options["lease"],
            heartbeat_interval=conf.settings.heartbeat_interval,
        )


class _Options:
    """Adds options to a parser, each with its environment variable as the default, named in its help."""

    def __init__(self, parser: CommandParser) -> None:
        self._parser = parser

    def __call__(self, *flags: str, help: str, default: Any = None, **options: Any) -> None:
        variable = _variable(flags[-1])
        shown = "" if default is None else f"; default: {default}"
        # argparse checks a default that is a text as if it had been typed.
        given = os.environ.get(variable) or default
        self._parser.add_argument(*flags, default=given, help=_escaped(f"{help}{shown} [{variable}]"), **options)

    def flag(self, flag: str, *, help: str) -> None:
        variable = _variable(flag)
        given = os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")
        self._parser.add_argument(flag, action="store_true", default=given, help=_escaped(f"{help} [{variable}]"))

    def switch(self, flag: str, *, help: str) -> None:
        variable = _variable(flag)
        given = {"1": True, "true": True, "0": False, "false": False}.get(os.environ.get(variable, "").lower())
        self._parser.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=given, help=_escaped(f"{help} [{variable}]")
        )


def _variable(flag: str) -> str:
    return f"SKIPQUEUE_{flag.lstrip('-').upper().replace('-', '_')}"


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
        return int(text)

    return number


def _seconds(least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} up")
        return value

    return number


def _colour(options: dict[str, Any]) -> bool | None:
    """What Django's `--no-color` and `--force-color` say; `None`: neither was given."""
    return False if options.get("no_color") else True if options.get("force_color") else None


def _introduction(worker: WorkerOptions, *, reloads: bool) -> list[str]:
    """What a person who has just started a worker wants to know."""
    queues = f"queues {', '.join(worker.queue_names)}" if worker.queue_names else "every queue that has jobs"
    processes = counted(worker.processes, "process", "processes")
    names = sorted(task.name for task in tasks)
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(names[:SHOWN]) + more or "is your jobs module in an installed app?"
    interval = f"every {worker.poll_interval:g} s"
    woken = f"woken by NOTIFY, and {interval}" if worker.listen else f"polling {interval}"
    reloaded = "restarts when code changes; " if reloads else ""
    return [
        f"django_skipqueue {__version__}: {printable(worker.name)} serves {queues}",
        f"{processes}, each running {worker.concurrency} at once, on database {worker.database!r}",
        f"{counted(len(names), 'task')}: {shown}",
        f"{woken}; {reloaded}stop with Ctrl-C or SIGTERM",
    ]

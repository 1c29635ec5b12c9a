"""`manage.py runworker`: run jobs until a signal stops the command."""

import argparse
import math
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.conf import settings as django_settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from ... import __version__, conf
from ...events import liveness_logs, logs
from ...events.log_format import counted, printable
from ...exceptions import QueueUnavailable
from ...runtime.own_connections import dedicated_connection
from ...runtime.preflight import QueueUnreachable, answers_required, check_database, check_databases
from ...runtime.worker_options import WorkerOptions
from ...steward.steward import Steward
from ...store import Store
from ...supervisor.health_port import open_port
from ...supervisor.supervisor import Supervisor
from ...tasks.registry import registry
from ...values.limits import LIMITS
from ..log_setup import JSON, TEXT, configure
from ..reloader import Reloader, report_modules

SHOWN = 10
"""Number of tasks that the first log lines name, at most."""

ON, OFF = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
"""The values allowed in the environment variable of a flag."""


class Command(BaseCommand):
    """Claims jobs, runs them, retries them. Needs nothing but the project's PostgreSQL."""

    help = "Run jobs: claim them, run them, retry them. Every option can also be set in the environment."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add = _Options(parser)
        settings = conf.load_or_default()
        _add_what_it_runs(add)
        _add_times(add, settings)
        add("--name", default=f"{socket.gethostname()}:{os.getpid()}", help="the worker's name in logs and admin")
        add(
            "--database",
            default=",".join(settings.served_databases),
            help="the alias of the database that holds the queue; of several, separated by commas",
        )
        _add_health(add)
        add("--log-format", type=_log_format, help="text or json: one JSON object a line; default: text")
        add.switch("--reload", help="restart when code changes; default: when DEBUG is on and this is a terminal")
        self._wrong_variables = add.wrong_variables

    def handle(self, **options: Any) -> None:
        """Run until stopped."""
        if self._wrong_variables:
            raise CommandError(" ".join(self._wrong_variables))
        configure(
            options["verbosity"],
            colour=_colour(options),
            tracebacks=django_settings.DEBUG,
            log_format=options["log_format"],
            shows_django=not django_settings.DEBUG,
        )
        if options["reload"] or (options["reload"] is None and django_settings.DEBUG and sys.stderr.isatty()):
            sys.exit(Reloader([sys.executable, *sys.orig_argv[1:], "--no-reload"]).run_child())
        lifeline = report_modules(os.environ)
        workers = self._options(options)
        unreachable = _check([each.database for each in workers])
        listener = _open_port(options["health_host"], options["health_port"])
        logs.starting(_introduction(workers, reloads=lifeline is not None))
        for error in unreachable:
            liveness_logs.database_unreachable(error.alias, error.reason)
        _name_unknown_queues(workers)
        if len(workers) == 1:
            Supervisor(workers[0], lifeline=lifeline, health_listener=listener).run()
        else:
            sys.exit(Steward(workers, lifeline=lifeline, health_listener=listener).run())

    def _options(self, options: dict[str, Any]) -> list[WorkerOptions]:
        """The options of the supervisor of each database."""
        databases = _names(options["database"])
        if not databases:
            raise CommandError("--database (SKIPQUEUE_DATABASE) names no database.")
        queue_names = _names(options["queues"] or "")
        if options["queues"] and not queue_names:
            raise CommandError("--queues (SKIPQUEUE_QUEUES) names no queue.")
        chosen = WorkerOptions(
            name=options["name"],
            database=databases[0],
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
            worker_timeout=options["worker_timeout"],
            heartbeat_interval=conf.settings.heartbeat_interval,
        )
        if len(databases) == 1:
            return [chosen]
        return [replace(chosen, database=alias, name=f"{chosen.name}@{alias}") for alias in databases]


def _add_what_it_runs(add: "_Options") -> None:
    add("-q", "--queues", help="queues to serve, separated by commas, in this order; default: all that have jobs")
    add(
        "-c",
        "--concurrency",
        type=_within("concurrency"),
        default=4,
        help="`def` tasks that one process runs at once, in threads, and as many `async def` tasks beside them",
    )
    add("--processes", type=_within("processes"), default=1, help="worker processes")
    add.flag("--drain", help="stop when nothing is runnable")
    add(
        "--max-jobs",
        type=_within("max_jobs"),
        help="end each process after so many attempts, and the command with them",
    )
    add(
        "--max-jobs-per-worker",
        type=_within("max_jobs_per_worker"),
        help="replace each process by a fresh one after so many attempts",
    )
    add(
        "--max-memory-mb",
        type=_within("max_memory_mb"),
        help="replace each process by a fresh one that uses more MiB of memory",
    )


def _add_times(add: "_Options", settings: conf.Settings) -> None:
    add(
        "--poll-interval",
        type=_within("poll_interval"),
        default=settings.poll_interval,
        help="seconds between two looks for jobs when nothing wakes the worker",
    )
    add.flag("--no-listen", help="poll only; do not wait for PostgreSQL's notifications")
    add(
        "--shutdown-timeout",
        type=_within("shutdown_timeout"),
        default=settings.shutdown_timeout,
        help="seconds for running jobs to finish in after the first signal; then they are released",
    )
    add(
        "--worker-timeout",
        type=_within("worker_timeout"),
        default=settings.worker_timeout,
        help="seconds without a heartbeat after which a worker counts as dead; must be the same for every runworker on "
        "one database, or one with a lower timeout takes the jobs of live workers",
    )


def _add_health(add: "_Options") -> None:
    add(
        "--health-port",
        type=_within("health_port"),
        help="answer HTTP probes on this port: /healthz, /readyz and /metrics",
    )
    add(
        "--health-host",
        default="127.0.0.1",
        help="the address of that port; a container that is probed from outside needs 0.0.0.0",
    )


class _Options:
    """Adds options to a parser, each with its environment variable as the default, named in its help."""

    def __init__(self, parser: CommandParser) -> None:
        self._parser = parser
        self.wrong_variables: list[str] = []
        """A message for each flag whose variable has an invalid value."""

    def __call__(self, *flags: str, help: str, default: Any = None, **options: Any) -> None:
        variable = _variable(flags[-1])
        shown = "" if default is None else f"; default: {default}"
        # argparse checks a default that is a str as if it had been typed.
        given = _Variable(value, variable) if (value := os.environ.get(variable)) else default
        self._parser.add_argument(*flags, default=given, help=_escaped(f"{help}{shown} [{variable}]"), **options)

    def flag(self, flag: str, *, help: str) -> None:
        variable = _variable(flag)
        given = self._is_on(variable)
        self._parser.add_argument(flag, action="store_true", default=bool(given), help=_escaped(f"{help} [{variable}]"))

    def switch(self, flag: str, *, help: str) -> None:
        variable = _variable(flag)
        given = self._is_on(variable)
        self._parser.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=given, help=_escaped(f"{help} [{variable}]")
        )

    def _is_on(self, variable: str) -> bool | None:
        """Whether the variable of a flag is on; `None`: it is not set."""
        value = os.environ.get(variable, "")
        if value.lower() in ON | OFF | {""}:
            return value.lower() in ON if value else None
        words = ", ".join(sorted(ON)), ", ".join(sorted(OFF))
        self.wrong_variables.append(f"{variable} must be one of {words[0]}, or of {words[1]}, not {value!r}.")
        return None


class _Variable(str):
    """A value from the environment, with the name of its variable."""

    def __new__(cls, value: str, name: str) -> "_Variable":
        made = super().__new__(cls, value)
        made.name = name
        return made

    name: str


def _wrong(text: str, allowed: str) -> argparse.ArgumentTypeError:
    variable = f"{text.name} = " if isinstance(text, _Variable) else ""
    return argparse.ArgumentTypeError(f"{variable}{str(text)!r} is not {allowed}")


def _log_format(text: str) -> str:
    if text not in (TEXT, JSON):
        raise _wrong(text, f"{TEXT} or {JSON}")
    return str(text)


def _variable(flag: str) -> str:
    return f"SKIPQUEUE_{flag.lstrip('-').upper().replace('-', '_')}"


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _within(option: str) -> Callable[[str], float]:
    """Read a number within the limit of this option."""
    limit = LIMITS[option]

    def number(text: str) -> float:
        try:
            value = int(text) if limit.is_whole else float(text)
        except ValueError:
            value = math.nan
        if not limit.allows(value):
            raise _wrong(text, str(limit))
        return value

    return number


def _names(text: str) -> tuple[str, ...]:
    """The names in a text, in which commas separate them: each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _check(databases: list[str]) -> list[QueueUnreachable]:
    """Raise `CommandError` if a database cannot hold the queue. Returns an error for each that cannot be reached.

    The only database must be reached; one of several keeps the others from nothing.
    """
    try:
        if len(databases) > 1:
            return check_databases(databases)
        check_database(databases[0])
    except QueueUnavailable as error:
        raise CommandError(str(error)) from None
    return []


def _name_unknown_queues(workers: list[WorkerOptions]) -> None:
    """Log each queue given by --queues that no task and no unfinished job uses: it may be mistyped."""
    queue_names = workers[0].queue_names
    known = {task.options.queue_name for task in registry}
    try:
        for worker in workers if queue_names else ():
            with answers_required(), dedicated_connection(worker.database):
                known.update(Store(worker.database).queues_with_jobs(with_paused=True))
    except Error:  # nobody can tell which queues this database has
        return
    for name in queue_names:
        if name not in known:
            logs.unknown_queue(name, sorted(known))


def _open_port(host: str, port: int | None) -> socket.socket | None:
    """Listen for probes. Raises `CommandError` if the address cannot be used."""
    if port is None:
        return None
    try:
        return open_port(host, port)
    except OSError as error:
        raise CommandError(f"--health-port: cannot listen on {host}, port {port}: {error.strerror or error}.") from None


def _colour(options: dict[str, Any]) -> bool | None:
    """The choice by Django's `--no-color` and `--force-color`; `None`: neither was given."""
    return False if options.get("no_color") else True if options.get("force_color") else None


OF_THE_PACKAGE = "django_skipqueue."
"""The start of the names of tasks that are no project's own."""


def _introduction(workers: list[WorkerOptions], *, reloads: bool) -> list[str]:
    """The first log lines: queues, processes, databases, tasks, and how to stop."""
    worker = workers[0]
    queues = f"queues {', '.join(worker.queue_names)}" if worker.queue_names else "every queue that has jobs"
    processes = counted(worker.processes, "process", "processes")
    in_each = " in each" if worker.processes > 1 else ""
    aliases = ", ".join(repr(each.database) for each in workers)
    databases = f"on database {aliases}" if len(workers) == 1 else f"on each of the databases {aliases}"
    name = worker.name.removesuffix(f"@{worker.database}") if len(workers) > 1 else worker.name
    names = sorted(task.name for task in registry if not task.name.startswith(OF_THE_PACKAGE))
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(names[:SHOWN]) + more or "is your jobs module in an installed app?"
    interval = f"every {worker.poll_interval:g} s"
    woken = f"woken by NOTIFY, and {interval}" if worker.listen else f"polling {interval}"
    reloaded = "restarts when code changes; " if reloads else ""
    return [
        f"django_skipqueue {__version__}: {printable(name)} serves {queues}",
        f"{processes}, {counted(worker.concurrency, 'job')} at once{in_each}, {databases}",
        f"{counted(len(names), 'task')}: {shown}",
        f"{woken}; {reloaded}stop with Ctrl-C or SIGTERM",
    ]

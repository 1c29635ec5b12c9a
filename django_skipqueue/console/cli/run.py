"""Code that `runworker` and `runrelay` share: their options, their log and its first lines, and running supervisors.

Each option can also be set by an environment variable. The commands configure logging if the project does not.
"""

import argparse
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from django.conf import settings as django_settings
from django.core.management.base import CommandError, CommandParser

from ... import conf
from ...events import liveness_logs, logs
from ...events.log_format import LineFormatter, counted, printable, wants_colour
from ...events.logging import JobContextFilter, JsonFormatter
from ...exceptions import QueueUnavailable
from ...supervisor.health import open_port
from ...supervisor.supervisor import Supervisor
from ...values.bounds import NUMBER_RANGES
from ...values.part import installed_parts
from ...values.version import VERSION
from ...worker.options import WorkerOptions
from ...worker.preflight import QueueUnreachable, check_database, check_databases

TEXT, JSON = "text", "json"
"""The values of `--log-format`."""


def configure(
    verbosity: int,
    *,
    colour: bool | None = None,
    tracebacks: bool = False,
    log_format: str | None = None,
    shows_django: bool = True,
) -> None:
    """Log to standard error if the project has not configured logging. `verbosity`: as in Django's commands.

    This shows the lines of this package's loggers, and of all loggers for which the project has no handler, such as
    loggers in tasks. The log lines of tasks name their job.

    colour: `None` means only on a terminal. tracebacks: log tracebacks even if standard error is not a terminal.
    log_format: `text` or `json`; `None` means text. If it has no effect, a log line says so.
    shows_django: whether to write the lines of Django's loggers. Under `DEBUG` Django writes them itself.
    """
    package = logging.getLogger("django_skipqueue")
    if package.hasHandlers():
        if log_format:
            logs.log_format_ignored(log_format)
    else:
        handler = logging.StreamHandler(sys.stderr)
        if log_format == JSON:
            handler.setFormatter(JsonFormatter())
        else:
            colour = wants_colour(sys.stderr) if colour is None else colour
            handler.setFormatter(LineFormatter(colour=colour, tracebacks=tracebacks or sys.stderr.isatty()))
        handler.addFilter(JobContextFilter())
        handler.addFilter(lambda record: shows_django or record.name.partition(".")[0] != "django")
        logging.getLogger().addHandler(handler)
    if package.level == logging.NOTSET:
        package.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))


ON, OFF = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
"""The allowed values of a flag's environment variable."""


class RunworkerOptions:
    """Adds options to a parser. Each option's default comes from an environment variable, which its help text names."""

    def __init__(self, parser: CommandParser) -> None:
        self._parser = parser
        self.wrong_variables: list[str] = []
        """A message for each flag whose environment variable has an invalid value."""

    def __call__(self, *flags: str, help: str, default: Any = None, **options: Any) -> None:
        variable = _variable_name(flags[-1])
        default_text = "" if default is None else f"; default: {default}"
        value = os.environ.get(variable)
        # If a default is a string, argparse checks it as if the user had typed it.
        default_or_variable = _FromEnvironment(value, variable) if value else default
        self._parser.add_argument(
            *flags, default=default_or_variable, help=_escaped(f"{help}{default_text} [{variable}]"), **options
        )

    def flag(self, flag: str, *, help: str) -> None:
        variable = _variable_name(flag)
        is_on = self._is_on(variable)
        self._parser.add_argument(flag, action="store_true", default=bool(is_on), help=_escaped(f"{help} [{variable}]"))

    def switch(self, flag: str, *, help: str) -> None:
        """Add an option without a value, and its opposite `--no-…`."""
        variable = _variable_name(flag)
        is_on = self._is_on(variable)
        self._parser.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=is_on, help=_escaped(f"{help} [{variable}]")
        )

    def _is_on(self, variable: str) -> bool | None:
        value = os.environ.get(variable, "")
        if value.lower() in ON | OFF | {""}:
            return (value.lower() in ON) if value else None
        on, off = ", ".join(sorted(ON)), ", ".join(sorted(OFF))
        self.wrong_variables.append(f"{variable} must be one of {on} (on) or {off} (off), not {value!r}.")
        return None


class _FromEnvironment(str):
    """An option's value that remembers which environment variable it came from."""

    def __new__(cls, value: str, name: str) -> "_FromEnvironment":
        named_value = super().__new__(cls, value)
        named_value.name = name
        return named_value

    name: str
    """The name of the environment variable."""


def wrong(text: str, allowed: str) -> argparse.ArgumentTypeError:
    """Return the error for a value that is not `allowed`. It names the environment variable that held the value."""
    variable = f"{text.name} = " if isinstance(text, _FromEnvironment) else ""
    return argparse.ArgumentTypeError(f"{variable}{str(text)!r} is not {allowed}")


def log_format(text: str) -> str:
    if text not in (TEXT, JSON):
        raise wrong(text, f"{TEXT} or {JSON}")
    return str(text)


def _variable_name(flag: str) -> str:
    return f"SKIPQUEUE_{flag.lstrip('-').upper().replace('-', '_')}"


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def within(option: str) -> Callable[[str], float]:
    """Return a function that parses a number, and checks that it is in the range of this option."""
    limit = NUMBER_RANGES[option]

    def number(text: str) -> float:
        try:
            value = int(text) if limit.is_whole else float(text)
        except ValueError:
            value = math.nan
        if not limit.allows(value):
            raise wrong(text, str(limit))
        return value

    return number


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text, without duplicates."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def add_times(add: RunworkerOptions, settings: conf.Settings) -> None:
    add(
        "--poll-interval",
        type=within("poll_interval"),
        default=settings.poll_interval,
        help="seconds between two checks for jobs when nothing wakes the worker",
    )
    add.flag("--no-listen", help="only poll; do not listen for PostgreSQL's notifications")
    add(
        "--shutdown-timeout",
        type=within("shutdown_timeout"),
        default=settings.shutdown_timeout,
        help="seconds that running jobs have to finish after the first signal, before they are released",
    )
    add(
        "--worker-timeout",
        type=within("worker_timeout"),
        default=settings.worker_timeout,
        help="seconds without a heartbeat after which a worker counts as dead; must be the same for all runworkers on "
        "a database, because one with a lower timeout takes the jobs of live workers",
    )


def add_place(add: RunworkerOptions, settings: conf.Settings) -> None:
    add("--name", default=f"{socket.gethostname()}:{os.getpid()}", help="the worker's name in logs and admin")
    add(
        "--database",
        default=",".join(settings.served_databases),
        help="the alias of the queue's database; several aliases are separated by commas",
    )
    add(
        "--health-port",
        type=within("health_port"),
        help="answer HTTP probes on this port: /healthz, /readyz and /metrics",
    )
    add(
        "--health-host",
        default="127.0.0.1",
        help="the address to listen on; a container that is probed from outside needs 0.0.0.0",
    )
    add("--log-format", type=log_format, help="text, or json for one JSON object per line; default: text")


def set_up(add: RunworkerOptions, options: dict[str, Any]) -> None:
    """Configure logging. Raises `CommandError` if an environment variable of a flag has an invalid value."""
    if add.wrong_variables:
        raise CommandError(" ".join(add.wrong_variables))
    configure(
        options["verbosity"],
        colour=False if options.get("no_color") else (True if options.get("force_color") else None),
        tracebacks=django_settings.DEBUG,
        log_format=options["log_format"],
        shows_django=not django_settings.DEBUG,
    )


def databases_of(options: dict[str, Any]) -> tuple[str, ...]:
    """Return the aliases in `--database`. Raises `CommandError` if there are none."""
    aliases_text = options["database"]
    can_serve_several = bool(_runners())
    aliases_in_one_text = (aliases_text,) if aliases_text else ()
    databases = names_in(aliases_text) if can_serve_several else aliases_in_one_text
    if not databases:
        raise CommandError("--database (SKIPQUEUE_DATABASE) names no database.")
    return databases


def for_each_database(
    options: dict[str, Any], kind: type[WorkerOptions] = WorkerOptions, **own_options: Any
) -> list[WorkerOptions]:
    """Return the options of a supervisor for each database. `own_options`: options that only the class `kind` has."""
    databases = databases_of(options)
    worker_options = kind(
        name=options["name"],
        database=databases[0],
        processes=options["processes"],
        listen=not options["no_listen"],
        poll_interval=options["poll_interval"],
        shutdown_timeout=options["shutdown_timeout"],
        worker_timeout=options["worker_timeout"],
        heartbeat_interval=conf.settings.heartbeat_interval,
        **own_options,
    )
    if len(databases) == 1:
        return [worker_options]
    return [replace(worker_options, database=alias, name=f"{worker_options.name}@{alias}") for alias in databases]


def introduce(workers: Sequence[WorkerOptions], *, does: str, at_once: str, what: str, reloads: bool = False) -> None:
    """Log the first lines: what the command `does`, its processes, its databases, `what` it runs, and how to stop it.

    at_once: how many jobs it runs or hands over at a time.
    """
    worker = workers[0]
    processes = counted(worker.processes, "process", "processes")
    aliases = ", ".join(repr(worker_options.database) for worker_options in workers)
    databases = f"on database {aliases}" if len(workers) == 1 else f"on each of the databases {aliases}"
    name = worker.name.removesuffix(f"@{worker.database}") if len(workers) > 1 else worker.name
    interval = f"every {worker.poll_interval:g} s"
    waking_text = f"woken by NOTIFY, and {interval}" if worker.listen else f"polling {interval}"
    reload_text = "restarts when code changes; " if reloads else ""
    logs.starting(
        [
            f"django_skipqueue {VERSION}: {printable(name)} {does}",
            f"{processes}, {at_once}, {databases}",
            what,
            f"{waking_text}; {reload_text}stop with Ctrl-C or SIGTERM",
        ]
    )


def name_unreachable(unreachable: Sequence[QueueUnreachable]) -> None:
    for error in unreachable:
        liveness_logs.database_unreachable(error.alias, error.reason)


def run(workers: Sequence[WorkerOptions], *, lifeline: int | None, listener: socket.socket | None) -> None:
    """Run a supervisor until it is stopped; for several databases, let a part run them and exit with its exit code."""
    if len(workers) == 1:
        Supervisor(workers[0], lifeline=lifeline, health_listener=listener).run()
        return
    run_all = _runners()[0]
    sys.exit(run_all(workers, lifeline=lifeline, health_listener=listener))


def _runners() -> list[Callable[..., int]]:
    """Return the functions of parts that run supervisors for several databases."""
    return [part.run_supervisors for part in installed_parts() if part.run_supervisors]


def check(workers: Sequence[WorkerOptions]) -> list[QueueUnreachable]:
    """Raise `CommandError` if a database cannot hold a queue. Returns an error for each unreachable database.

    A single database must be reachable. Of several databases, the worker serves the reachable ones.
    """
    try:
        if len(workers) > 1:
            return check_databases([worker.database for worker in workers])
        check_database(workers[0].database)
    except QueueUnavailable as error:
        raise CommandError(str(error)) from None
    return []


def listen_for_probes(options: dict[str, Any]) -> socket.socket | None:
    """Listen on `--health-port` if it is given. Raises `CommandError` if the address cannot be used."""
    host, port = options["health_host"], options["health_port"]
    if port is None:
        return None
    try:
        return open_port(host, port)
    except OSError as error:
        raise CommandError(f"--health-port: cannot listen on {host}, port {port}: {error.strerror or error}.") from None

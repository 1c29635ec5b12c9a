"""`Subcommand`, the base class of everything that `manage.py skipqueue` can do, and the command that runs one.

To add one, write a class in a module of `console/cli/`, and add it to `CORE` of `management/commands/skipqueue.py`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from time import sleep
from typing import Any

import django
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, Error

from ...conf import chosen_or_all, settings, using_database
from ...events.log_format import printable
from ...exceptions import QueueUnavailable, SkipQueueError
from ...values.records import handle_of
from ...worker.own_connections import dedicated_connection, guard
from ...worker.preflight import check_database, engine_problem
from ..durations import duration
from .terminal import Console


class Exit(IntEnum):
    DONE = 0
    ERROR = 1
    """The database cannot be used, an id does not exist, a name is unknown."""
    USAGE = 2
    """The options are wrong. `argparse` uses the same code."""
    NEGATIVE = 3
    """No job matched, nothing was changed, or the queue is not healthy: the answer is no."""
    PARTIAL = 4
    """Only a part of the jobs was read."""
    INTERRUPTED = 130
    """By Ctrl-C, as in a shell."""
    UNREAD = 141
    """The reader of the output ended first, as `head` does. A shell uses the same code."""


class Subcommand:
    """One subcommand. It writes data to standard output, and everything else to standard error."""

    name: str
    help: str
    """One sentence, without its full stop."""
    needs_all = False
    """Whether the answer is no as soon as it is no for one of several databases."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    def run(self, console: Console, **options: Any) -> Exit:
        """Do it; return the exit code. Raise `CommandError` for an error, with its `returncode` if that is not 1."""
        raise NotImplementedError

    def add_common_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database", metavar="ALIAS", help="the alias of the database that holds the queue (default: DATABASE)"
        )

    def goes_over_all(self, options: Mapping[str, Any]) -> bool:
        """Whether it goes over all databases that hold queues if the options name none."""
        return True

    def execute(self, console: Console, **options: Any) -> Exit:
        """Run it in the named database, in the databases of the ids, or in all. Returns the worst exit code."""
        parts = self._parts(options)
        if len(parts) == 1:
            return self._execute(parts[0][0], console, **parts[0][1])
        codes: list[int] = []
        for alias, part in parts:
            console.database = alias
            if not options.get("json"):
                console.line(f"{'' if alias == parts[0][0] else chr(10)}Database {printable(alias)}")
            try:
                codes.append(self._execute(alias, console, **part))
            except CommandError as error:
                console.say(f"{alias}: {error}")
                codes.append(error.returncode)
            if codes[-1] == Exit.INTERRUPTED:
                break
        for code in (Exit.INTERRUPTED, Exit.USAGE, Exit.ERROR, Exit.PARTIAL):
            if code in codes:
                return code
        is_no = (any if self.needs_all else all)(code == Exit.NEGATIVE for code in codes)
        return Exit.NEGATIVE if is_no else Exit.DONE

    def _parts(self, options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """The databases, each with its options: without the ids of the jobs of other databases."""
        home, ids = chosen_database(options), options.get("ids") or []
        if ids:
            unnamed = [id for id in ids if getattr(id, "database", None) is None]
            if unnamed and options["database"] is None and len(served := chosen_or_all()) > 1:
                handles = " or ".join(handle_of(alias, unnamed[0]) for alias in served)  # a verb is for one of them
                raise CommandError(
                    f"Several databases hold queues: say {handles}, or give --database.", returncode=Exit.USAGE
                )
            aliases = dict.fromkeys(getattr(id, "database", None) or home for id in ids)
            return [
                (alias, options | {"ids": [id for id in ids if (getattr(id, "database", None) or home) == alias]})
                for alias in aliases
            ]
        is_for_all = options["database"] is None and self.goes_over_all(options)
        return [(alias, options) for alias in (chosen_or_all() if is_for_all else (home,))]

    def _execute(self, alias: str, console: Console, **options: Any) -> Exit:
        """Run it on a connection of its own. An error of the database becomes a `CommandError` with one sentence."""
        try:
            if problem := engine_problem(alias):
                raise QueueUnavailable(" ".join(problem))
            with using_database(alias), dedicated_connection(alias) as connection:
                guard(connection, alias, timeouts=False)
                return self.run(console, **options)
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
        except Error as error:
            raise CommandError(_explained(error, alias)) from error
        except UnicodeEncodeError as error:  # an argument with bytes that are not UTF-8
            raise CommandError(str(error), returncode=Exit.USAGE) from error
        except SkipQueueError as error:
            raise CommandError(str(error)) from error


class Watchable(Subcommand):
    """A subcommand that shows something, as text or as JSON, once or again and again. The last exit code counts."""

    json_help = "print a JSON object"

    def add_common_arguments(self, parser: CommandParser) -> None:
        super().add_common_arguments(parser)
        parser.add_argument("--json", action="store_true", help=self.json_help)
        parser.add_argument(
            "--watch",
            type=duration,
            nargs="?",
            const=duration("2s"),
            metavar="DURATION",
            help="again and again, until Ctrl-C; without a duration, every 2s",
        )

    def execute(self, console: Console, **options: Any) -> Exit:
        interval = options["watch"]
        if interval is None:
            return super().execute(console, **options)
        if options.get("verb"):
            raise CommandError("--watch shows a list again and again: it takes no verb.", returncode=Exit.USAGE)
        code = Exit.DONE
        with suppress(KeyboardInterrupt):  # the way to end it
            while (shown := super().execute(console, **options)) != Exit.INTERRUPTED:
                code = shown
                console.flush()
                sleep(interval.total_seconds())
                if not options["json"]:
                    console.clear()
        return code


def chosen_database(options: Mapping[str, Any]) -> str:
    """The alias of the database that the option names, or else the setting."""
    return options["database"] or settings.database


def _explained(error: Error, alias: str) -> str:
    """What is wrong with the database: it cannot be reached, lacks the tables, or refuses a statement."""
    try:
        check_database(alias)
    except QueueUnavailable as problem:
        return str(problem)
    kind = "refused a statement" if isinstance(error, DatabaseError) else "failed"
    return f"The database {alias!r} {kind}: {' '.join(str(error).split())}"


class Dispatcher(BaseCommand):
    """Needs a subcommand. Exits with its code, unless it is done."""

    help = "See and change the job queue from a terminal. `skipqueue SUBCOMMAND --help` explains a subcommand."
    requires_system_checks = ()
    """None: a command for a bad night works even if a check of another app fails."""

    subcommands: Sequence[Subcommand] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        _add_skip_checks(parser)
        added = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND")
        for subcommand in sorted(self.subcommands, key=lambda each: each.name):
            text = subcommand.help
            own: Any = added.add_parser(subcommand.name, help=text, description=f"{text}.".replace("..", "."))
            subcommand.add_arguments(own)
            subcommand.add_common_arguments(own)
            _add_djangos(own)

    def handle(self, *args: Any, subcommand: str | None, **options: Any) -> None:
        if subcommand is None:
            names = ", ".join(sorted(each.name for each in self.subcommands))
            raise CommandError(f"Give a subcommand: {names}.", returncode=Exit.USAGE)
        chosen = next(each for each in self.subcommands if each.name == subcommand)
        colour = False if options["no_color"] else True if options["force_color"] else None
        console = Console(self, colour=colour)
        try:
            code = chosen.execute(console, **options)
            console.flush()
        except BrokenPipeError:  # as of `skipqueue list | head`
            console.drop()
            code = Exit.UNREAD
        if code:
            sys.exit(code)


class Alias(Subcommand):
    """Another command of this package, with its options, as a subcommand: no command of another app can shadow it."""

    def __init__(self, name: str, command: type[BaseCommand]) -> None:
        self.name = name
        self.help = command.help
        self._command = command()

    def add_arguments(self, parser: CommandParser) -> None:
        self._command.add_arguments(parser)

    def add_common_arguments(self, parser: CommandParser) -> None:
        """Declare none: the command has its own."""

    def execute(self, console: Console, **options: Any) -> Exit:
        self._command.execute(**{"skip_checks": False} | options)
        return Exit.DONE


def _add_djangos(parser: CommandParser) -> None:
    """Let Django's options follow the subcommand. They have no default, which would replace an option before it."""
    add, absent = parser.add_argument, argparse.SUPPRESS
    add("--version", action="version", version=django.get_version(), help="show the version of Django")
    add("-v", "--verbosity", type=int, choices=range(4), default=absent, help="0: less, 2 and 3: more")
    add("--settings", default=absent, metavar="MODULE", help="the settings module, in place of DJANGO_SETTINGS_MODULE")
    add("--pythonpath", default=absent, metavar="DIRECTORY", help="a directory to import from first")
    add("--traceback", action="store_true", default=absent, help="show the traceback of an error")
    add("--no-color", action="store_true", default=absent, help="no colours, even on a terminal")
    add("--force-color", action="store_true", default=absent, help="colours, even if this is no terminal")
    _add_skip_checks(parser)


def _add_skip_checks(parser: CommandParser) -> None:
    """Add Django's option, which Django gives to commands with system checks alone: `worker` has them."""
    help = "run no system checks; only worker runs them"
    parser.add_argument("--skip-checks", action="store_true", default=argparse.SUPPRESS, help=help)

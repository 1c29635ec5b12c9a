"""`Subcommand`, the base class of all subcommands of `manage.py skipqueue`, and the command that runs them.

To add a subcommand, write a class in a module of `console/cli/`, and add it to `CORE` of
`management/commands/skipqueue.py`.
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
    """The database cannot be used, an id does not exist, or a name is unknown."""
    USAGE = 2
    """The options are wrong. `argparse` uses the same code."""
    NEGATIVE = 3
    """The answer is no: no job matched, nothing was changed, or the queue is not healthy."""
    PARTIAL = 4
    """Only some of the jobs were searched."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C. A shell uses the same code."""
    UNREAD = 141
    """The program that reads the output has ended, as in `skipqueue list | head`. A shell uses the same code."""


class Subcommand:
    """A subcommand. It writes data to standard output, and all other messages to standard error."""

    name: str
    help: str
    """One sentence, without a full stop."""
    needs_yes_from_all_databases = False
    """Whether, with several databases, every database must answer yes. Otherwise, one yes is enough."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    def run(self, console: Console, **options: Any) -> Exit:
        """Run the subcommand and return the exit code. For an error, raise `CommandError` with its `returncode`."""
        raise NotImplementedError

    def add_common_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="the alias of the queue's database (default: DATABASE)")

    def runs_in_all_databases(self, options: Mapping[str, Any]) -> bool:
        """Return whether the subcommand runs in every queue database if the options name no database."""
        return True

    def execute(self, console: Console, **options: Any) -> Exit:
        """Run in the chosen database, in the databases of the ids, or in all of them. Return the worst exit code."""
        options_by_database = self._options_by_database(options)
        first_alias, first_options = options_by_database[0]
        if len(options_by_database) == 1:
            return self._execute(first_alias, console, **first_options)
        codes: list[int] = []
        for alias, options_of_database in options_by_database:
            console.database = alias
            if not options.get("json"):
                blank_line = "" if alias == first_alias else "\n"
                console.line(f"{blank_line}Database {printable(alias)}")
            try:
                codes.append(self._execute(alias, console, **options_of_database))
            except CommandError as error:
                console.say(f"{alias}: {error}")
                codes.append(error.returncode)
            if codes[-1] == Exit.INTERRUPTED:
                break
        for code in (Exit.INTERRUPTED, Exit.USAGE, Exit.ERROR, Exit.PARTIAL):
            if code in codes:
                return code
        negative_answers = [code == Exit.NEGATIVE for code in codes]
        is_negative = any(negative_answers) if self.needs_yes_from_all_databases else all(negative_answers)
        return Exit.NEGATIVE if is_negative else Exit.DONE

    def _options_by_database(self, options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Return the databases, each with its options. Every database only gets the ids of its own jobs."""
        default_alias, ids = chosen_database(options), options.get("ids") or []
        if ids:
            ids_without_database = [id for id in ids if getattr(id, "database", None) is None]
            # Ids are only unique within a database, so an id without a database is ambiguous.
            if ids_without_database and options["database"] is None and len(aliases_served := chosen_or_all()) > 1:
                handles = " or ".join(handle_of(alias, ids_without_database[0]) for alias in aliases_served)
                raise CommandError(
                    f"There are several queue databases. Use {handles}, or --database.", returncode=Exit.USAGE
                )
            ids_by_alias: dict[str, list[Any]] = {}
            for id in ids:
                ids_by_alias.setdefault(getattr(id, "database", None) or default_alias, []).append(id)
            return [(alias, options | {"ids": ids_of_alias}) for alias, ids_of_alias in ids_by_alias.items()]
        is_for_all_databases = options["database"] is None and self.runs_in_all_databases(options)
        return [(alias, options) for alias in (chosen_or_all() if is_for_all_databases else (default_alias,))]

    def _execute(self, alias: str, console: Console, **options: Any) -> Exit:
        """Run on a separate connection. Turn a database error into a `CommandError` with one sentence."""
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
        except UnicodeEncodeError as error:  # an argument contains bytes that are not UTF-8
            raise CommandError(str(error), returncode=Exit.USAGE) from error
        except SkipQueueError as error:
            raise CommandError(str(error)) from error


class Watchable(Subcommand):
    """A subcommand that prints text or JSON, once or repeatedly. The last run decides the exit code."""

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
            help="repeat until Ctrl-C, at this interval (2s if none is given)",
        )

    def execute(self, console: Console, **options: Any) -> Exit:
        interval = options["watch"]
        if interval is None:
            return super().execute(console, **options)
        if options.get("verb"):
            raise CommandError("--watch only shows a list, so it cannot be used with a verb.", returncode=Exit.USAGE)
        code = Exit.DONE
        with suppress(KeyboardInterrupt):  # Ctrl-C ends the loop
            while (new_code := super().execute(console, **options)) != Exit.INTERRUPTED:
                code = new_code
                console.flush()
                sleep(interval.total_seconds())
                if not options["json"]:
                    console.clear()
        return code


def chosen_database(options: Mapping[str, Any]) -> str:
    """Return the database alias from the option, otherwise from the setting."""
    return options["database"] or settings.database


def _explained(error: Error, alias: str) -> str:
    """Explain what is wrong: the database cannot be reached, lacks the tables, or refused a statement."""
    try:
        check_database(alias)
    except QueueUnavailable as problem:
        return str(problem)
    kind = "refused a statement" if isinstance(error, DatabaseError) else "failed"
    return f"The database {alias!r} {kind}: {' '.join(str(error).split())}"


class Dispatcher(BaseCommand):
    """The `skipqueue` command. It runs a subcommand, and exits with the subcommand's exit code."""

    help = "Inspect and change the job queue from a terminal. `skipqueue SUBCOMMAND --help` explains a subcommand."
    requires_system_checks = ()
    """Run no checks, so that the command works in an emergency even if another app's check fails."""

    subcommands: Sequence[Subcommand] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        _add_skip_checks(parser)
        subparsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND")
        for subcommand in sorted(self.subcommands, key=lambda subcommand: subcommand.name):
            text = subcommand.help
            subparser: Any = subparsers.add_parser(
                subcommand.name, help=text, description=f"{text}.".replace("..", ".")
            )
            subcommand.add_arguments(subparser)
            subcommand.add_common_arguments(subparser)
            _add_django_options(subparser)

    def handle(self, *args: Any, subcommand: str | None, **options: Any) -> None:
        if subcommand is None:
            names = ", ".join(sorted(subcommand.name for subcommand in self.subcommands))
            raise CommandError(f"Give a subcommand: {names}.", returncode=Exit.USAGE)
        chosen_subcommand = next(candidate for candidate in self.subcommands if candidate.name == subcommand)
        colour = False if options["no_color"] else (True if options["force_color"] else None)
        console = Console(self, colour=colour)
        try:
            code = chosen_subcommand.execute(console, **options)
            console.flush()
        except BrokenPipeError:  # as in `skipqueue list | head`
            console.drop()
            code = Exit.UNREAD
        if code:
            sys.exit(code)


class Alias(Subcommand):
    """Offers another command of this package as a subcommand, because another app's command may have the same name."""

    def __init__(self, name: str, command: type[BaseCommand]) -> None:
        self.name = name
        self.help = command.help
        self._command = command()

    def add_arguments(self, parser: CommandParser) -> None:
        self._command.add_arguments(parser)

    def add_common_arguments(self, parser: CommandParser) -> None:
        """Add nothing, because the command has its own options."""

    def execute(self, console: Console, **options: Any) -> Exit:
        self._command.execute(**{"skip_checks": False} | options)
        return Exit.DONE


def _add_django_options(parser: CommandParser) -> None:
    """Also accept Django's options after the subcommand. A default would overwrite an option given before it."""
    add, absent = parser.add_argument, argparse.SUPPRESS
    add("--version", action="version", version=django.get_version(), help="show the version of Django")
    add("-v", "--verbosity", type=int, choices=range(4), default=absent, help="0 prints less, 2 and 3 print more")
    add("--settings", default=absent, metavar="MODULE", help="the settings module, instead of DJANGO_SETTINGS_MODULE")
    add("--pythonpath", default=absent, metavar="DIRECTORY", help="a directory to add to the import path")
    add("--traceback", action="store_true", default=absent, help="show the traceback of an error")
    add("--no-color", action="store_true", default=absent, help="do not use colours, even on a terminal")
    add("--force-color", action="store_true", default=absent, help="use colours even if the output is not a terminal")
    _add_skip_checks(parser)


def _add_skip_checks(parser: CommandParser) -> None:
    """Add Django's option. Django itself only adds it to commands that run system checks; here, only `worker` does."""
    help = "skip the system checks, which only worker runs"
    parser.add_argument("--skip-checks", action="store_true", default=argparse.SUPPRESS, help=help)

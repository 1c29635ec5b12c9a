"""`Subcommand`: the base class of everything that `manage.py skipqueue` can do.

To add one, write a class in a module of `console/cli/`, and add it to `SUBCOMMANDS` of `subcommands.py` there.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, Error

from ...conf import chosen_or_all, settings, using_database
from ...events.log_format import printable
from ...exceptions import QueueUnavailable, SkipQueueError
from ...values.records import handle_of
from ...worker.own_connections import dedicated_connection, guard
from ...worker.preflight import check_database, engine_problem
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
    """Only a part of the jobs was looked at."""
    INTERRUPTED = 130
    """By Ctrl-C, as in a shell."""
    UNREAD = 141
    """The reader of the output ended first, as `head` does. A shell uses the same code."""


class Subcommand:
    """One subcommand. It writes data to standard output, and everything else to standard error."""

    name: str
    help: str
    """One sentence, without its full stop."""

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
        """Whether it is about all databases that hold queues, if none is named."""
        return True

    def execute(self, console: Console, **options: Any) -> Exit:
        """Run it in the database that is named, in those of the ids, or in all of them. Returns the worst exit code."""
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
        return self._worst(codes)

    def _parts(self, options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """The databases, each with the options for it: the ids of its own jobs among them."""
        home, ids = chosen_database(options), options.get("ids") or []
        if ids:
            _check_named(ids, options)
            aliases = dict.fromkeys(getattr(id, "database", None) or home for id in ids)
            return [
                (alias, options | {"ids": [id for id in ids if (getattr(id, "database", None) or home) == alias]})
                for alias in aliases
            ]
        is_for_all = options["database"] is None and self.goes_over_all(options)
        return [(alias, options) for alias in (chosen_or_all() if is_for_all else (home,))]

    needs_all = False
    """Whether the answer is no as soon as it is no for one of several databases."""

    def _worst(self, codes: Sequence[int]) -> Exit:
        for code in (Exit.INTERRUPTED, Exit.USAGE, Exit.ERROR, Exit.PARTIAL):
            if code in codes:
                return code
        is_no = (any if self.needs_all else all)(code == Exit.NEGATIVE for code in codes)
        return Exit.NEGATIVE if is_no else Exit.DONE

    def _execute(self, alias: str, console: Console, **options: Any) -> Exit:
        """Run it on a connection of its own. An error of the database becomes one sentence."""
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


def _check_named(ids: Sequence[int], options: Mapping[str, Any]) -> None:
    """Raise `CommandError` for an id alone that several databases may have: a verb must not change the wrong job."""
    unnamed = [id for id in ids if getattr(id, "database", None) is None]
    if unnamed and options["database"] is None and len(aliases := chosen_or_all()) > 1:
        handles = " or ".join(handle_of(alias, unnamed[0]) for alias in aliases)
        raise CommandError(f"Several databases hold queues: say {handles}, or give --database.", returncode=Exit.USAGE)


def chosen_database(options: Mapping[str, Any]) -> str:
    """The alias of the database that the command is about: of the option, or of the setting."""
    return options["database"] or settings.database


def _explained(error: Error, alias: str) -> str:
    """What is wrong with the database: it cannot be reached, lacks the tables, or refuses a statement."""
    try:
        check_database(alias)
    except QueueUnavailable as problem:
        return str(problem)
    kind = "refused a statement" if isinstance(error, DatabaseError) else "failed"
    return f"The database {alias!r} {kind}: {' '.join(str(error).split())}"

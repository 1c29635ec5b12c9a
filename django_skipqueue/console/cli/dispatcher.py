"""The dispatcher: parses the command line, and runs one subcommand."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import django
from django.core.management.base import BaseCommand, CommandError, CommandParser

from .subcommand import Exit, Subcommand
from .terminal import Console


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
    """Another command of this package, with all its options, under a name that no other app's command shadows."""

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
    """Let Django's options follow the subcommand. Without a default none replaces an option before the subcommand."""
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

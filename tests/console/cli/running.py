"""Runs `manage.py skipqueue …` in this process."""

import json
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any

from django.conf import settings
from django.core.management import CommandError, CommandParser, call_command

from django_skipqueue.management.commands.skipqueue import Command


class CommandWithParser(Command):
    """The command. It keeps its parser for the next call: to make a parser takes longer than most subcommands."""

    __module__ = Command.__module__  # whose last part is the command's name

    def create_parser(self, *names: str, **options: Any) -> CommandParser:
        return _parser(repr(getattr(settings, "SKIPQUEUE", None)), *names)


@cache
def _parser(_: str, *names: str) -> CommandParser:
    return Command().create_parser(*names)


@dataclass
class Result:
    """What a subcommand wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects that the subcommand wrote, one on each line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table that the subcommand wrote, without the headings. No cell may contain a blank."""
        return [line.split() for line in self.out.splitlines()[1:]]


def skipqueue(*arguments: Any) -> Result:
    """Run a subcommand, and return its output and exit code."""
    out, err = StringIO(), StringIO()
    try:
        call_command(CommandWithParser(), *map(str, arguments), stdout=out, stderr=err)
    except SystemExit as end:
        code = end.code
    except CommandError as error:
        code = error.returncode
        err.write(f"{error}\n")
    else:
        code = 0
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())

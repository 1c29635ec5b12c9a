"""Runs `manage.py skipqueue …` in this process."""

import json
from dataclasses import dataclass
from io import StringIO
from typing import Any

from django.core.management import CommandError, call_command


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
        call_command("skipqueue", *map(str, arguments), stdout=out, stderr=err)
    except SystemExit as end:
        code = end.code
    except CommandError as error:
        code = error.returncode
        err.write(f"{error}\n")
    else:
        code = 0
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())

"""Options of commands that can be set in the environment as well, each by a variable of its own."""

import argparse
import math
import os
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from ..values.limits import LIMITS
from .log_setup import JSON, TEXT

ON, OFF = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
"""The values allowed in the environment variable of a flag."""


class Options:
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
        """Add an option without a value, and another one, `--no-…`, for the opposite."""
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
    def __new__(cls, value: str, name: str) -> "_Variable":
        made = super().__new__(cls, value)
        made.name = name
        return made

    name: str


def wrong(text: str, allowed: str) -> argparse.ArgumentTypeError:
    """The error for a value that is not `allowed`. It names the variable that the value came from."""
    variable = f"{text.name} = " if isinstance(text, _Variable) else ""
    return argparse.ArgumentTypeError(f"{variable}{str(text)!r} is not {allowed}")


def log_format(text: str) -> str:
    if text not in (TEXT, JSON):
        raise wrong(text, f"{TEXT} or {JSON}")
    return str(text)


def _variable(flag: str) -> str:
    return f"SKIPQUEUE_{flag.lstrip('-').upper().replace('-', '_')}"


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def within(option: str) -> Callable[[str], float]:
    limit = LIMITS[option]

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
    """The names in a text, in which commas separate them: each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))

"""Lists the commands. They are read from their parsers, because Python versions print `--help` differently."""

import argparse
import os
import socket
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from django.core.management import find_commands, load_command_class
from django.core.management.base import BaseCommand
from django.test import override_settings

from .adapter import EXIT_CODES

APPS = ("django_skipqueue", "django_skipqueue.contrib.celery")
HOST = f"{socket.gethostname()}:{os.getpid()}"
DEFAULT_TEXT = " (default: %(default)s)"
"""The text that `BooleanOptionalAction` adds to the help of an option before Python 3.13."""


def commands() -> Iterator[str]:
    """Yield a line for each command, for each option and argument that Django does not add, and for each exit code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SKIPQUEUE_")}
    with override_settings(SKIPQUEUE={}), patch.dict(os.environ, environment, clear=True):
        for name, app in _apps_of_commands().items():
            command = load_command_class(app, name)
            yield from _command(name, command.help, command.create_parser("manage.py", name))
    yield from (f"skipqueue exits with {code}: {name}" for name, code in EXIT_CODES.items())


def _apps_of_commands() -> dict[str, str]:
    folders = {app: Path(import_module(app).__file__ or "").parent / "management" for app in APPS}
    return {name: app for app, folder in folders.items() for name in find_commands(str(folder))}


def _command(name: str, help_text: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"{name}: {help_text}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            help_texts = {choice.dest: str(choice.help) for choice in action._choices_actions}
            for subcommand, parser_of_subcommand in action.choices.items():
                yield from _command(f"{name} {subcommand}", help_texts[subcommand], parser_of_subcommand)
        elif not DJANGO_OPTIONS.intersection(action.option_strings):
            yield f"{name} {_usage(action)}: {_help(action)}"


def _usage(action: argparse.Action) -> str:
    """The option with its value, or the argument, such as `--status STATUS` or `[ID …]`."""
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    usage = ", ".join(action.option_strings) + f" {value}{' …' if action.nargs in ('*', '+') else ''}"
    is_needed = action.required if action.option_strings else action.nargs not in ("*", "?")
    return usage.strip() if is_needed else f"[{usage.strip()}]"


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace(DEFAULT_TEXT, "").replace("%%", "%").replace(HOST, "HOST:PID")
    choices = f"; one of {', '.join(map(str, action.choices))}" if action.choices else ""
    default = f"; default {action.default!r}" if action.default and "default" not in text else ""
    return f"{text}{choices}{default}"


DJANGO_OPTIONS = {option for action in BaseCommand().create_parser("", "")._actions for option in action.option_strings}

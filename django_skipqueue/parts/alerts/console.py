"""Alerts, for operators: a subcommand."""

from ...console.parts import PartConsole
from .cli import Alerts

CONSOLE = PartConsole(subcommands=(Alerts(),))

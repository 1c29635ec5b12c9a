"""Alerts, as the core sees them."""

from typing import TYPE_CHECKING

from ...values.part import Part
from .logs import LINES, SIGNALS

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(name="alerts", lines=LINES, signals=SIGNALS, console=console)

"""Schedules, as the core sees them."""

from typing import TYPE_CHECKING

from ...values.part import Part
from .events import LINES
from .fire import FireSchedules

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(name="schedules", services=(FireSchedules,), lines=LINES, console=console)

"""Unique keys, as the core sees them."""

from typing import TYPE_CHECKING

from ...values.part import Part
from . import enqueue

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="unique",
    depends=("limits",),  # on_conflict="rerun" makes a sequence of the jobs of a key
    unique_keys=enqueue,
    console=console,
)

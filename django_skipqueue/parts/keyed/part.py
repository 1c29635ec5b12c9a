"""What parts share whose jobs have keys, such as limits and rates, as the core sees it."""

from typing import TYPE_CHECKING

from ...values.part import Part

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(name="keyed", console=console)

"""Rates, as the core sees them."""

from typing import TYPE_CHECKING

from ...values.part import Part
from .services import PruneRates, block_unrated_service, pass_tokens_on

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="rates", depends=("keyed",), services=(block_unrated_service, pass_tokens_on, PruneRates), console=console
)

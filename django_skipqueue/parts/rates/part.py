"""Rates, as the core sees them."""

from typing import TYPE_CHECKING

from ...values.part import Part
from .admit import RateGate
from .queues import of_queue
from .services import PruneRates, block_unrated_service, pass_tokens_on

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="rates",
    depends=("keyed",),
    gate=RateGate(),
    of_queue=of_queue,
    services=(block_unrated_service, pass_tokens_on, PruneRates),
    console=console,
)

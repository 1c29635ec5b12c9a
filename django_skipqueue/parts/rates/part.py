"""Rates, as the core sees them."""

from typing import TYPE_CHECKING, Any

from ...values.part import Part
from .admit import RateGate
from .queues import of_queue
from .services import PruneRates, block_unrated_service, pass_tokens_on

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


def clock(alias: str) -> Any:
    from .clock import Tokens  # only tests use it

    return Tokens(alias)


PART = Part(
    name="rates",
    depends=("keyed",),
    gate=RateGate(),
    of_queue=of_queue,
    services=(block_unrated_service, pass_tokens_on, PruneRates),
    clock=clock,
    console=console,
)

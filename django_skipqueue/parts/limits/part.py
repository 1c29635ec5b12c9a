"""Concurrency limits, sequences and fair shares, as the core sees them."""

from typing import TYPE_CHECKING

from ...values.part import Part
from .admit import LimitGate
from .checks import check_halting
from .exchange import LimitsInExchange
from .now import longest_halt
from .queues import of_queue
from .services import block_surplus_service, pass_permits_on

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="limits",
    depends=("keyed",),
    gate=LimitGate(),
    of_queue=of_queue,
    in_exchange=LimitsInExchange,
    services=(
        block_surplus_service,
        pass_permits_on,
    ),
    checks=(check_halting,),
    measures={"sequence_halted": longest_halt},
    console=console,
)

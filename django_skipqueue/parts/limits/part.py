"""Concurrency limits, sequences and fair shares, as the core sees them."""

from ...values.part import Part, console_of
from .admit import LimitGate
from .checks import check_halting
from .exchange import LimitsInExchange
from .now import longest_halt
from .queues import of_queue
from .services import block_surplus_service, pass_permits_on

PART = Part(
    name="limits",
    depends=("keyed",),
    gate=LimitGate(),
    of_queue=of_queue,
    in_exchange=LimitsInExchange,
    services=(block_surplus_service, pass_permits_on),
    checks=(check_halting,),
    measures={"sequence_halted": longest_halt},
    console=console_of(__package__),
)

"""The part `rates` for the core: its gate and its services."""

from ...values.part import Part, console_of
from .admit import RateGate
from .models import Tokens
from .queues import of_queue
from .services import PruneRates, block_unrated_service, pass_tokens_on

PART = Part(
    name="rates",
    depends=("keyed",),
    gate=RateGate(),
    of_queue=of_queue,
    services=(block_unrated_service, pass_tokens_on, PruneRates),
    clock=Tokens,
    console=console_of(__package__),
)

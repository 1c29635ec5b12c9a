"""The history, as the core sees it."""

from typing import TYPE_CHECKING

from ...values.part import Part
from .services import PruneRollUps, SampleDepths, WriteRollUps
from .tally import GRACE, CountEnqueued, Tally

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="history",
    services=(CountEnqueued, SampleDepths, PruneRollUps),
    observers=((Tally, WriteRollUps),),
    prune_grace=GRACE,
    console=console,
)

"""Several databases that hold queues, as the core sees them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...values.part import Part
from .checks import check_placement, check_retiring
from .choose import AmongSeveral

if TYPE_CHECKING:
    from ...console.parts import PartConsole
    from ...worker.options import WorkerOptions


def run_supervisors(workers: "Sequence[WorkerOptions]", **options: Any) -> int:
    from .steward import Steward

    return Steward(workers, **options).run()


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="databases",
    placement=AmongSeveral(),
    run_supervisors=run_supervisors,
    checks=(check_placement,),
    database_checks=(check_retiring,),
    console=console,
)

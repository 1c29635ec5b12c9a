"""Several databases that hold queues, as the core sees them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...values.part import Part, console_of
from .checks import check_placement, check_retiring
from .choose import AmongSeveral

if TYPE_CHECKING:
    from ...worker.options import WorkerOptions


def run_supervisors(workers: "Sequence[WorkerOptions]", **options: Any) -> int:
    from .steward import Steward

    return Steward(workers, **options).run()


PART = Part(
    name="databases",
    placement=AmongSeveral(),
    run_supervisors=run_supervisors,
    checks=(check_placement,),
    database_checks=(check_retiring,),
    console=console_of(__package__),
)

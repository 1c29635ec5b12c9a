"""The part `batches` for the core: batches, chains, and jobs that wait for other jobs."""

from ...values.part import Part, console_of
from .batch import in_current_batch, joined_database
from .dependencies import DependencyGate, hold
from .finish import after_settle, finish_all_batches
from .services import BatchCheck, FinishBatches, PruneBatches

PART = Part(
    name="batches",
    gate=DependencyGate(),
    in_spec=in_current_batch,
    hold=hold,
    after_settle=after_settle,
    services=(FinishBatches, PruneBatches),
    settle_services=(BatchCheck,),
    before_drained=finish_all_batches,
    joined_database=joined_database,
    console=console_of(__package__),
)

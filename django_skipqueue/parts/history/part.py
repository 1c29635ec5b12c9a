"""The part `history` for the core: its services, and the observer that counts."""

from ...values.part import Part, console_of
from .deployments import NoteDeployment
from .rollups import PRUNE_GRACE_SECONDS, CountEnqueued, PruneRollUps, RollUpTally, SampleDepths, WriteRollUps

PART = Part(
    name="history",
    services=(NoteDeployment, CountEnqueued, SampleDepths, PruneRollUps),
    observers=((RollUpTally, WriteRollUps),),
    prune_grace=PRUNE_GRACE_SECONDS,
    console=console_of(__package__),
)

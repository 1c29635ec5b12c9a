"""The history, as the core sees it."""

from ...values.part import Part, console_of
from .deployments import NoteDeployment
from .rollups import GRACE, CountEnqueued, PruneRollUps, SampleDepths, Tally, WriteRollUps

PART = Part(
    name="history",
    services=(NoteDeployment, CountEnqueued, SampleDepths, PruneRollUps),
    observers=((Tally, WriteRollUps),),
    prune_grace=GRACE,
    console=console_of(__package__),
)

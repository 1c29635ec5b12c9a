"""The history, as the core sees it."""

from ...values.part import Part
from .services import PruneRollUps, SampleDepths
from .tally import CountEnqueued

PART = Part(name="history", services=(CountEnqueued, SampleDepths, PruneRollUps))

"""The archive, as the core sees it."""

from ...values.part import Part
from .move import make_partitions
from .services import ArchivePartitions

PART = Part(name="archive", services=(ArchivePartitions,), before_prune=make_partitions)

"""The archive, as the core sees it."""

from ...values.part import Part
from .services import ArchivePartitions

PART = Part(name="archive", services=(ArchivePartitions,))

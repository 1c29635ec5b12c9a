"""The part `archive` for the core: a service, and steps before and during a prune."""

from ...values.part import Part, console_of
from .move import ArchivePartitions, archive, missing_partitions

PART = Part(
    name="archive",
    services=(ArchivePartitions,),
    before_prune=missing_partitions,
    on_prune=archive,
    console=console_of(__package__),
)

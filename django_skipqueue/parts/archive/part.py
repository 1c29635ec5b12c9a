"""The archive, as the core sees it."""

from typing import TYPE_CHECKING

from ...values.part import Part
from .services import ArchivePartitions, archive, missing_partitions

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="archive",
    services=(ArchivePartitions,),
    before_prune=missing_partitions,
    on_prune=archive,
    console=console,
)

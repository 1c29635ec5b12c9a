"""What parts give to operators. The admin and the commands ask for it; a worker does not."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..values.part import installed_parts

if TYPE_CHECKING:
    from .cli.subcommand import Subcommand
    from .doctor.finding import Check
    from .metrics.catalogue import Scraped


@dataclass(frozen=True, kw_only=True)
class PartConsole:
    """The subcommands, the checks of the doctor and the metrics of one part."""

    subcommands: tuple["Subcommand", ...] = ()
    checks: tuple["Check", ...] = ()
    metrics: tuple["Scraped", ...] = ()


def consoles() -> tuple[PartConsole, ...]:
    """What each part gives."""
    return tuple(part.console() for part in installed_parts() if part.console)

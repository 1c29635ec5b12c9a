"""What parts give to operators. The admin and the commands ask for it; a worker does not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..values.part import installed_parts

if TYPE_CHECKING:
    from ..models import Job
    from .cli.subcommand import Subcommand
    from .doctor.finding import Check
    from .metrics.catalogue import Scraped


@dataclass(frozen=True, kw_only=True)
class PartNotice:
    """A notice over every page of the admin."""

    template: str
    about: Any
    """What the template shows, as `about`."""


@dataclass(frozen=True, kw_only=True)
class PartConsole:
    """What one part gives. Each default is "nothing"."""

    subcommands: tuple["Subcommand", ...] = ()
    checks: tuple["Check", ...] = ()
    """Checks of the doctor."""
    metrics: tuple["Scraped", ...] = ()
    notices: Callable[[Sequence[str]], Iterable[PartNotice]] | None = None
    """Returns the notices of this moment. Its argument: the names of the queues with jobs that wait."""
    explain: Callable[["Job", datetime], str] | None = None
    """Says why a blocked job waits; an empty string if it does not wait for this part."""


def consoles() -> tuple[PartConsole, ...]:
    """What each part gives."""
    return tuple(part.console() for part in installed_parts() if part.console)

"""The table of subcommands."""

from ..parts import consoles
from .change_jobs import VERBS, ChangeJobs
from .defer import Defer
from .doctor import Doctor
from .health import Health
from .list import List
from .pause import Pause, Resume
from .prune import Prune
from .reindex import Reindex
from .show import Show
from .status import Status
from .subcommand import Subcommand

SUBCOMMANDS: tuple[Subcommand, ...] = (
    *map(ChangeJobs, VERBS),
    Defer(),
    Doctor(),
    Health(),
    List(),
    Pause(),
    Prune(),
    Reindex(),
    Resume(),
    Show(),
    Status(),
)
"""Those of the core that are not another command under a second name. The order does not matter."""


def subcommands() -> tuple[Subcommand, ...]:
    """Those of the core, and those of the parts."""
    return (*SUBCOMMANDS, *(subcommand for console in consoles() for subcommand in console.subcommands))

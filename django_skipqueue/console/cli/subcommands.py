"""The table of subcommands."""

from ...parts.alerts.cli import Alerts
from ...parts.batches.cli import Batches
from ...parts.limits.cli import Limits
from ...parts.schedules.cli import Schedules
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
    Alerts(),
    Batches(),
    Defer(),
    Doctor(),
    Health(),
    Limits(),
    List(),
    Pause(),
    Prune(),
    Reindex(),
    Resume(),
    Schedules(),
    Show(),
    Status(),
)
"""All that are not another command under a second name. The order does not matter."""

"""The table of subcommands."""

from ..maintenance.alerts import Alerts
from ..maintenance.doctor import Doctor
from ..maintenance.health import Health
from ..maintenance.prune import Prune
from ..maintenance.reindex import Reindex
from ..terminal.subcommand import Subcommand
from .batches_list import Batches
from .change_jobs import ChangeJobs
from .defer import Defer
from .limits import Limits
from .list import List
from .pause import Pause
from .resume import Resume
from .schedules import Schedules
from .show import Show
from .status import Status
from .verbs import VERBS

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

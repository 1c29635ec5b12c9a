"""The table of subcommands."""

from ..demo.subcommand import Demo
from ..terminal.subcommand import Subcommand
from .alerts import Alerts
from .batches_list import Batches
from .change_jobs import ChangeJobs
from .defer import Defer
from .doctor import Doctor
from .health import Health
from .limits import Limits
from .list import List
from .pause import Pause
from .prune import Prune
from .reindex import Reindex
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
    Demo(),
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

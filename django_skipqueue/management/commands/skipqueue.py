"""`manage.py skipqueue …`: see and change the queue from a terminal. Its subcommands are in `console/cli/`."""

from ...console.cli.change_jobs import ChangeJobs
from ...console.cli.defer import Defer
from ...console.cli.doctor import Doctor
from ...console.cli.health import Health
from ...console.cli.indexes import Index, Reindex
from ...console.cli.list import List
from ...console.cli.pause import Pause, Resume
from ...console.cli.prune import PruneJobs
from ...console.cli.show import Show
from ...console.cli.status import Queues, ShowStatus
from ...console.cli.subcommand import Alias, Dispatcher, Subcommand
from ...console.cli.verdict import ShowVerdict
from ...console.cli.workers import Workers
from ...console.parts import consoles
from ...console.verbs.table import VERBS
from .importtasks import Command as ImportTasks
from .runworker import Command as RunWorker

CORE = (
    Defer, Doctor, Health, Index, List, Pause, PruneJobs, Queues, Reindex, Resume, Show, ShowStatus, ShowVerdict,
    Workers,
)  # fmt: skip
"""The subcommands of the core beside the verbs."""


def subcommands() -> tuple[Subcommand, ...]:
    """Those of the core, and those of the parts, that are not another command under a second name."""
    of_parts = (subcommand for console in consoles() for subcommand in console.subcommands)
    return (*map(ChangeJobs, VERBS), *(subcommand() for subcommand in CORE), *of_parts)


class Command(Dispatcher):
    """The dispatcher with its subcommands, and with the other commands under names that nothing shadows."""

    subcommands = (*subcommands(), Alias("import-tasks", ImportTasks), Alias("worker", RunWorker))

"""`manage.py skipqueue …`: shows and changes the queue from a terminal. The subcommands are in `console/cli/`."""

from ...console.cli.change_jobs import ChangeJobs
from ...console.cli.defer import Defer
from ...console.cli.doctor import Doctor
from ...console.cli.health import Health
from ...console.cli.indexes import Index, Reindex
from ...console.cli.list import List
from ...console.cli.pause import Pause, Resume
from ...console.cli.prune import PruneSubcommand
from ...console.cli.show import Show
from ...console.cli.status import Queues, ShowStatus
from ...console.cli.subcommand import Alias, Dispatcher, Subcommand
from ...console.cli.verdict import ShowVerdict
from ...console.cli.workers import Workers
from ...console.parts import consoles
from ...console.verbs.table import verbs
from .importtasks import Command as ImportTasks
from .runworker import Command as RunWorker

CORE = (
    Defer, Doctor, Health, Index, List, Pause, PruneSubcommand, Queues, Reindex, Resume, Show, ShowStatus, ShowVerdict,
    Workers,
)  # fmt: skip
"""The core's subcommands, except for the verbs that change jobs."""


def subcommands() -> tuple[Subcommand, ...]:
    """The subcommands of the core and of the installed parts, without the aliases of other commands."""
    from_parts = (subcommand for console in consoles() for subcommand in console.subcommands)
    return (*map(ChangeJobs, verbs()), *(subcommand() for subcommand in CORE), *from_parts)


class Command(Dispatcher):
    """Runs a subcommand. `worker` and `import-tasks` run other commands, as another app may also have a `runworker`."""

    subcommands = (*subcommands(), Alias("import-tasks", ImportTasks), Alias("worker", RunWorker))

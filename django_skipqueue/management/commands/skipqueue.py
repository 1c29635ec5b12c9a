"""`manage.py skipqueue …`: see and change the queue from a terminal. Its subcommands are in `management/skipqueue/`."""

from ..skipqueue.subcommands import SUBCOMMANDS
from ..terminal.dispatcher import Alias, Dispatcher
from .prunejobs import Command as PruneJobs
from .runworker import Command as RunWorker


class Command(Dispatcher):
    """The dispatcher with its subcommands, and with the other commands under names that nothing shadows."""

    subcommands = (*SUBCOMMANDS, Alias("prune", PruneJobs), Alias("worker", RunWorker))

"""`manage.py skipqueue …`: see and change the queue from a terminal. Its subcommands are in `management/skipqueue/`."""

from ..skipqueue.subcommands import SUBCOMMANDS
from ..terminal.dispatcher import Alias, Dispatcher
from .runworker import Command as RunWorker


class Command(Dispatcher):
    """The dispatcher with its subcommands, and with `runworker` under a name that nothing shadows."""

    subcommands = (*SUBCOMMANDS, Alias("worker", RunWorker))

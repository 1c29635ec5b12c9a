"""`manage.py skipqueue …`: see and change the queue from a terminal. Its subcommands are in `console/cli/`."""

from ...console.cli.dispatcher import Alias, Dispatcher
from ...console.cli.subcommands import subcommands
from .importtasks import Command as ImportTasks
from .runworker import Command as RunWorker


class Command(Dispatcher):
    """The dispatcher with its subcommands, and with the other commands under names that nothing shadows."""

    subcommands = (
        *subcommands(),
        Alias("import-tasks", ImportTasks),
        Alias("worker", RunWorker),
    )

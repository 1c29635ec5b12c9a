"""`skipqueue demo`: a believable stream of jobs, to look at the admin and to try the other subcommands."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...conf import using_database
from ...events.log_format import counted
from ..terminal import option_types
from ..terminal.console import Console
from ..terminal.identity import operator
from ..terminal.interruption import until_interrupted
from ..terminal.subcommand import Exit, Subcommand, chosen_database
from .batches import delete_batches
from .stream import cancel_unfinished, defer_for, delete_all, delete_schedules
from .worker import run_as_worker, worker_process


class Demo(Subcommand):
    """Defers jobs, and runs them in a worker of its own. All other workers leave its queues alone."""

    name = "demo"
    help = "Run example jobs for some minutes: fast, flaky, failing, scheduled, periodic and limited ones, and batches"

    def goes_over_all(self, options: Mapping[str, Any]) -> bool:
        """Its jobs are in one database."""
        return False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--minutes", type=option_types.positive, default=5, metavar="NUMBER", help="for so long; default: 5")
        add("--rate", type=option_types.positive, default=5, metavar="NUMBER", help="jobs a second; default: 5")
        add("--clean", action="store_true", help="delete the jobs and batches of all demos, and run none")

    def execute(self, console: Console, **options: Any) -> Exit:
        """Run as the worker, if the demo has started this process for that."""
        with using_database(chosen_database(options)):
            if run_as_worker():
                return Exit.DONE
        return super().execute(console, **options)

    def run(self, console: Console, **options: Any) -> Exit:
        """Run the stream, or remove its jobs."""
        return _clean(console) if options["clean"] else _stream(console, options["minutes"], options["rate"])


def _stream(console: Console, minutes: int, rate: int) -> Exit:
    console.say("Look at the jobs in the admin, or with `skipqueue status --watch 2s`. Ctrl-C ends the demo.")
    number = 0
    with worker_process() as worker, until_interrupted() as is_interrupted:
        for number in defer_for(timedelta(minutes=minutes), rate=rate):
            console.progress(f"{counted(number, 'job')} deferred …")
            if is_interrupted():
                break
            if worker.poll() is not None:
                raise CommandError(f"The demo's worker has ended with exit code {worker.returncode}.")
    console.end_progress()
    delete_schedules()
    cancel_unfinished(by=operator())
    console.say(f"{counted(number, 'job')} deferred. `skipqueue demo --clean` deletes them.")
    return Exit.DONE


def _clean(console: Console) -> Exit:
    delete_schedules()
    cancel_unfinished(by=operator())
    jobs, batches = delete_all(), delete_batches()
    console.say(f"{counted(jobs, 'job')} deleted.")
    return Exit.DONE if jobs or batches else Exit.NEGATIVE

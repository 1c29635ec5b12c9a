"""`skipqueue resume`: workers claim the jobs of a paused queue again."""

from typing import Any

from django.core.management.base import CommandParser

from ...models import Queue
from ..terminal.console import Console
from ..terminal.identity import operator
from ..terminal.subcommand import Exit, Subcommand
from .names import require_known_queue


class Resume(Subcommand):
    name = "resume"
    help = "Resume a paused queue"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE", help="the name of the queue")

    def run(self, console: Console, **options: Any) -> Exit:
        name = options["queue"]
        if Queue.resume(name, by=operator()):
            console.say(f"Queue {name} is resumed.")
            return Exit.DONE
        require_known_queue(name)
        console.say(f"Queue {name} is not paused.")
        return Exit.NEGATIVE

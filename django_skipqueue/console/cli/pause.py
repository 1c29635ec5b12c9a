"""`skipqueue pause` and `skipqueue resume`: stop workers from claiming a queue's jobs, and let them claim again."""

from typing import Any

from django.core.management.base import CommandParser

from ...models import Queue
from ..durations import duration
from .options import require_known_queue
from .subcommand import Exit, Subcommand
from .terminal import Console, operator, shown_time


class Pause(Subcommand):
    name = "pause"
    help = "Pause a queue: workers claim no more of its jobs, but jobs that are already claimed still run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE", help="the name of the queue")
        help = "resume it by itself after this time, such as 30m or 2h, or a number of seconds; default: never"
        parser.add_argument("--for", dest="duration", type=duration, metavar="DURATION", help=help)
        parser.add_argument("--reason", default="", help="the reason, which is shown with the pause")

    def run(self, console: Console, **options: Any) -> Exit:
        name = options["queue"]
        require_known_queue(name)
        Queue.pause(name, for_=options["duration"], by=operator(), reason=options["reason"])
        until = Queue.objects.values_list("paused_until", flat=True).get(name=name)
        end = f"until {shown_time(until)}" if until else f"until `skipqueue resume {name}`"
        console.say(f"Queue {name} is paused {end}. Jobs that are already claimed still run.")
        return Exit.DONE


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

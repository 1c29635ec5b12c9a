"""`skipqueue defer`: enqueue a job by hand; `skipqueue pause` and `resume`: whether workers claim jobs of a queue."""

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from ...conf import settings as conf
from ...conf import using_database
from ...models import Queue
from ..queues_and_workers import Workforce
from .options import duration, registered_task, require_known_queue
from .subcommand import Exit, Subcommand
from .terminal import Console, operator, shown_time

EXAMPLE = """'{"payment_id": 1}'"""


class Defer(Subcommand):
    name = "defer"
    help = "Enqueue a job, and print its id"

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("task", metavar="TASK", help="the name of the task; its end is enough, if no other task has it")
        add(
            "arguments",
            nargs="?",
            type=_call,
            default={},
            metavar="ARGUMENTS",
            help='as JSON: an object such as {"payment_id": 1}, or a list of positional arguments; default: none',
        )
        add("--in", dest="delay", type=duration, metavar="DURATION", help="run it after this time")
        add("--queue", metavar="QUEUE", help="the queue; default: that of the task")
        add("--priority", type=int, metavar="NUMBER", help="-100 to 100, higher first; default: that of the task")

    def goes_over_all(self, options: Mapping[str, Any]) -> bool:
        """A job is put into one database."""
        return False

    def run(self, console: Console, **options: Any) -> Exit:
        """Enqueue it: in the database that is named, or where its placement says."""
        task = registered_task(options["task"]).using(
            run_after=options["delay"],
            queue_name=options["queue"],
            priority=options["priority"],
            database=options["database"],
        )
        call = options["arguments"]
        job = task.defer(**call) if isinstance(call, dict) else task.defer(*call)
        console.line(job.shown_id)
        if not job.created:
            console.say(f"Nothing was enqueued: job {job.shown_id} is not finished, and holds the unique key.")
            return Exit.NEGATIVE
        with using_database(job._state.db or conf.database):
            is_served = bool(Workforce.now().serving(job.queue_name))
        if not is_served:
            console.say(f"No live worker serves the queue {job.queue_name}.")
        return Exit.DONE


def _call(text: str) -> Any:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"{text[:200]!r} is not JSON: {error}. Write for example {EXAMPLE}.") from None
    if not isinstance(call, dict | list):
        raise ArgumentTypeError(f"{text!r} is neither a JSON object nor a list. Write for example {EXAMPLE}.")
    return call


class Pause(Subcommand):
    name = "pause"
    help = "Pause a queue: workers claim no more of its jobs; those that are claimed still run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE", help="the name of the queue")
        help = "resume it by itself after this time, such as 30m or 2h, or so many seconds; default: never"
        parser.add_argument("--for", dest="duration", type=duration, metavar="DURATION", help=help)
        parser.add_argument("--reason", default="", help="why; it is shown wherever the pause is")

    def run(self, console: Console, **options: Any) -> Exit:
        name = options["queue"]
        require_known_queue(name)
        Queue.pause(name, for_=options["duration"], by=operator(), reason=options["reason"])
        until = Queue.objects.values_list("paused_until", flat=True).get(name=name)
        end = f"until {shown_time(until)}" if until else f"until `skipqueue resume {name}`"
        console.say(f"Queue {name} is paused {end}. Jobs that are claimed still run.")
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

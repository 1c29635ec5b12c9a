"""`skipqueue defer`: enqueue a job from the command line."""

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from ...conf import settings as conf
from ...conf import using_database
from ..durations import duration
from ..queues_and_workers import Workforce
from .options import registered_task
from .subcommand import Exit, Subcommand
from .terminal import Console

EXAMPLE = """'{"payment_id": 1}'"""


class Defer(Subcommand):
    name = "defer"
    help = "Enqueue a job, and print its id"

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("task", metavar="TASK", help="the name of the task; a unique end of its name is enough")
        add(
            "arguments",
            nargs="?",
            type=_parsed_arguments,
            default={},
            metavar="ARGUMENTS",
            help='the arguments as JSON: an object such as {"payment_id": 1}, or a list of positional arguments',
        )
        add("--in", dest="delay", type=duration, metavar="DURATION", help="how long to delay the job")
        add("--queue", metavar="QUEUE", help="the queue; default: the task's queue")
        add("--priority", type=int, metavar="NUMBER", help="-100 to 100, higher first; default: the task's priority")

    def runs_in_all_databases(self, options: Mapping[str, Any]) -> bool:
        return False

    def run(self, console: Console, **options: Any) -> Exit:
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
            console.say(f"Nothing was enqueued, because the unfinished job {job.shown_id} holds the unique key.")
            return Exit.NEGATIVE
        with using_database(job._state.db or conf.database):
            is_served = bool(Workforce.now().serving(job.queue_name))
        if not is_served:
            console.say(f"No live worker serves the queue {job.queue_name}.")
        return Exit.DONE


def _parsed_arguments(text: str) -> Any:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"{text[:200]!r} is not JSON: {error}. An example: {EXAMPLE}") from None
    if not isinstance(call, dict | list):
        raise ArgumentTypeError(f"{text!r} is neither a JSON object nor a list. An example: {EXAMPLE}")
    return call

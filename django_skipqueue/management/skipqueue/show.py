"""`skipqueue show`: all about some jobs, as their pages in the admin show it."""

from typing import Any

from django.core.management.base import CommandParser
from django.db.models.functions import Now

from ...operators.worker_health import Workforce
from ..terminal import option_types
from ..terminal.console import Console
from ..terminal.subcommand import Exit, Subcommand
from .choosing import Choice
from .job_details import details_as_json, lines_about


class Show(Subcommand):
    """Prints each job: its fields, why it waits, the errors of its attempts, and the changes by operators."""

    name = "show"
    help = "Show jobs with their arguments, attempts and tracebacks"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=option_types.job_id, metavar="ID", help="the ids of the jobs")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each job")

    def run(self, console: Console, **options: Any) -> Exit:
        choice = Choice(ids=tuple(dict.fromkeys(options["ids"])))
        choice.require_known()
        jobs = [job for part in choice.parts() for job in part.jobs.annotate(now=Now())]
        workforce = Workforce.now()
        for number, job in enumerate(jobs):
            if options["json"]:
                console.json(details_as_json(job, workforce))
                continue
            if number:
                console.line()
            for line in lines_about(job, workforce):
                console.line(line)
        return Exit.DONE

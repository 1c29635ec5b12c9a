"""`manage.py runworker`: run jobs until a signal stops the command."""

import os
import sys
from typing import Any

from django.conf import settings as django_settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from ... import conf
from ...console.cli import run as serving
from ...console.cli.reloader import Reloader, report_modules
from ...console.cli.run import RunworkerOptions, names_in, within
from ...events import logs
from ...events.log_format import counted
from ...jobs.registry import registry
from ...queue.store import Store
from ...worker.options import WorkerOptions
from ...worker.own_connections import dedicated_connection
from ...worker.preflight import answers_required

MOST_TASKS_NAMED = 10
"""How many tasks the worker's first log lines name at most."""

PACKAGE_PREFIX = "django_skipqueue."
"""How the names of the package's own tasks begin. The log lines leave them out."""


class Command(BaseCommand):
    help = "Run jobs: claim them, run them, retry them. Every option can also be set in the environment."

    def add_arguments(self, parser: CommandParser) -> None:
        self._add = add = RunworkerOptions(parser)
        settings = conf.load_or_default()
        add(
            "-q",
            "--queues",
            help="queues to serve, separated by commas, in this order; default: all that have jobs, without those that "
            "carriers run",
        )
        add(
            "-c",
            "--concurrency",
            type=within("concurrency"),
            default=4,
            help="`def` tasks that one process runs at once, in threads, and as many `async def` tasks beside them",
        )
        add("--processes", type=within("processes"), default=1, help="worker processes")
        add.flag("--drain", help="stop when nothing is runnable")
        add(
            "--max-jobs",
            type=within("max_jobs"),
            help="end each process after this number of attempts, and the command with them",
        )
        add(
            "--max-jobs-per-worker",
            type=within("max_jobs_per_worker"),
            help="replace each process by a fresh one after this number of attempts",
        )
        add(
            "--max-memory-mb",
            type=within("max_memory_mb"),
            help="replace each process by a fresh one that uses more MiB of memory",
        )
        serving.add_times(add, settings)
        serving.add_place(add, settings)
        add.switch("--reload", help="restart when code changes; default: when DEBUG is on and this is a terminal")

    def handle(self, **options: Any) -> None:
        serving.set_up(self._add, options)
        if options["reload"] or (options["reload"] is None and django_settings.DEBUG and sys.stderr.isatty()):
            sys.exit(Reloader([sys.executable, *sys.orig_argv[1:], "--no-reload"]).run_child())
        lifeline = report_modules(os.environ)
        worker_options = self.options_of_loops(options)
        unreachable = serving.check(worker_options)
        listener = serving.listen_for_probes(options)
        _introduce(worker_options, reloads=lifeline is not None)
        serving.name_unreachable(unreachable)
        _name_unknown_queues(worker_options)
        serving.run(worker_options, lifeline=lifeline, listener=listener)

    def options_of_loops(self, options: dict[str, Any]) -> list[WorkerOptions]:
        queue_names = names_in(options["queues"] or "")
        if options["queues"] and not queue_names:
            raise CommandError("--queues (SKIPQUEUE_QUEUES) names no queue.")
        return serving.for_each_database(
            options,
            queue_names=queue_names,
            external_queues=frozenset(conf.settings.external_queues),
            concurrency=options["concurrency"],
            drain=options["drain"],
            max_jobs=options["max_jobs"],
            max_jobs_per_worker=options["max_jobs_per_worker"],
            max_memory_mb=options["max_memory_mb"],
        )


def _name_unknown_queues(worker_options: list[WorkerOptions]) -> None:
    """Log a warning for each name in `--queues` that no task and no unfinished job uses, since it may be mistyped."""
    queue_names = worker_options[0].queue_names
    known_queues = {task.options.queue_name for task in registry}
    try:
        for worker in worker_options if queue_names else ():
            with answers_required(), dedicated_connection(worker.database):
                known_queues.update(Store(worker.database).queues_with_jobs(with_paused=True))
    except Error:  # the database cannot say which queues it has
        return
    for name in queue_names:
        if name not in known_queues:
            logs.unknown_queue(name, sorted(known_queues))


def _introduce(worker_options: list[WorkerOptions], *, reloads: bool) -> None:
    worker = worker_options[0]
    without_external = f", without {', '.join(sorted(worker.external_queues))}" if worker.external_queues else ""
    queues = (
        f"queues {', '.join(worker.queue_names)}"
        if worker.queue_names
        else f"every queue that has jobs{without_external}"
    )
    task_names = sorted(task.name for task in registry if not task.name.startswith(PACKAGE_PREFIX))
    more_tasks = f", and {len(task_names) - MOST_TASKS_NAMED} more" if len(task_names) > MOST_TASKS_NAMED else ""
    shown_tasks = ", ".join(task_names[:MOST_TASKS_NAMED]) + more_tasks or "is your jobs module in an installed app?"
    in_each = " in each" if worker.processes > 1 else ""
    serving.introduce(
        worker_options,
        does=f"serves {queues}",
        at_once=f"{counted(worker.concurrency, 'job')} at once{in_each}",
        what=f"{counted(len(task_names), 'task')}: {shown_tasks}",
        reloads=reloads,
    )

"""`skipqueue workers`: list the workers with their running jobs, or ask a worker to restart or stop."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...events.log_format import in_words, printable
from ...values.fact import Fact
from ..durations import moment_of
from ..facts import Renderers
from ..queues_and_workers import MOST_WORKERS_READ, WORKER_STATES
from ..workers import WORKER, WORKER_VERBS, ListedWorker, worker_rows, worker_states
from .facts import FactList
from .options import meant
from .subcommand import Exit
from .terminal import GREEN, RED, YELLOW, Coloured, Console

WORKER_COLOURS = {"live": GREEN, "late": YELLOW, "stale": RED}


def _state_text(worker: ListedWorker) -> str:
    words = filter(None, [str(WORKER_STATES[worker.state]), worker.requested])
    return Coloured(", ".join(words), WORKER_COLOURS[worker.state])


def _slots_text(worker: ListedWorker) -> str:
    """Return the busy slots: threads and coroutines. A process without slots hands its jobs over to another system."""
    threads, coroutines, claimed_ahead = worker.busy
    slots = worker.row.concurrency
    if not slots:
        return f"{sum(worker.held.tasks.values()):,} on their way"
    busy = f"{threads}/{slots}" + (f" + {coroutines}/{slots} async" if coroutines else "")
    return f"{busy}, {claimed_ahead} ahead" if claimed_ahead else busy


def _runs_now_text(worker: ListedWorker) -> str:
    running_count = sum(worker.busy[:2])
    shown_jobs = [_job_text(worker, **job) for job in worker.held.jobs[:running_count]]
    return ", ".join([*shown_jobs, *(["…"] if running_count > len(shown_jobs) else [])])


def _job_text(worker: ListedWorker, *, id: int, task: str, since: str) -> str:
    started_at = moment_of(since)
    running_time = f" for {in_words((worker.now - started_at).total_seconds())}" if started_at else ""
    return f"{task.rpartition('.')[2] or task} {id}{running_time}"


class Workers(FactList[ListedWorker]):
    """Lists workers. A verb only sends a request; the worker or its supervisor reacts within about a second."""

    name = "workers"
    help = "List the workers with their running jobs, or ask one to restart or stop"
    json_help = "print a JSON object for each worker"
    nothing = "No worker is running. Start a worker: python manage.py runworker"

    def add_arguments(self, parser: CommandParser) -> None:
        verb_help = (
            "restart: restart the worker once its jobs have ended; stop: stop its whole runworker; default: list all"
        )
        verb_names = [verb.name for verb in WORKER_VERBS]
        parser.add_argument("verb", nargs="?", choices=verb_names, metavar="VERB", help=verb_help)
        parser.add_argument("worker", nargs="?", metavar="NAME", help="the name of the worker")

    def runs_in_all_databases(self, options: Mapping[str, Any]) -> bool:
        return options["verb"] is None

    def facts(self) -> Sequence[Fact[ListedWorker]]:
        return WORKER

    def renderers(self) -> Renderers[ListedWorker]:
        return {
            "state": _state_text,
            "worker": lambda worker: " · ".join(filter(None, [worker.row.name, worker.cells.get("detail")])),
            "queue_names": lambda worker: ", ".join(map(str, worker.row.queues)) or "all",
            "slots": _slots_text,
            "runs_now": _runs_now_text,
            "memory": lambda worker: "" if worker.row.memory_mb is None else f"{worker.row.memory_mb:,} MiB",
        }

    def read(self, **options: Any) -> list[ListedWorker]:
        rows = worker_rows().filter(is_external=False).order_by("hostname", "name", "id")
        return worker_states(rows[:MOST_WORKERS_READ])

    def run(self, console: Console, **options: Any) -> Exit:
        if options["verb"] is None:
            return super().run(console, **options)
        name = options["worker"]
        if name is None:
            raise CommandError(f"Name the worker: skipqueue workers {options['verb']} NAME", returncode=Exit.USAGE)
        verb = next(verb for verb in WORKER_VERBS if verb.name == options["verb"])
        workers = [worker for worker in self.read() if worker.takes_requests]
        chosen_rows = [worker.row for worker in workers if name in (worker.row.name, worker.row.pk)]
        if not chosen_rows:
            suggestion = meant(name, sorted({worker.row.name for worker in workers}))
            raise CommandError(printable(f"No live worker is called {name!r}.{suggestion}"))
        were_requested = [verb.request(row) for row in chosen_rows]
        if not any(were_requested):
            raise CommandError(printable(f"The worker {name} has ended."))
        console.say(str(verb.done) % {"worker": name})
        return Exit.DONE

"""Options that several subcommands share: their types, and the jobs that they choose.

A type is a function that parses a text from the command line, for `argparse`. If it raises `ArgumentTypeError`, the
message becomes a usage error.

Jobs are read one window at a time; a window is a limited part of a list. Without `--all`, only the first window of each
list is searched, and the subcommand says how many jobs of the list it has not searched.

The name of a task is completed if its end is unique. An unknown task or queue is refused with a suggestion.
"""

import difflib
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from ...events.log_format import counted, printable
from ...jobs.registry import registry
from ...jobs.task import Task
from ...models import Job
from ..durations import moment
from ..job_states import STATES
from ..periods import Period
from ..queues_and_workers import known_queue_names, known_task_names
from ..search import WINDOW_SIZE, Criteria, SearchWindow, is_id
from .subcommand import Exit


class JobId(int):
    """The id of a job, with the alias of its database if the user gave it."""

    database: str | None = None


def job_id(text: str) -> JobId:
    """Parse `42`, `#42` as in the admin, or the handle `queue_1:42`."""
    alias, colon, number = text.removeprefix("#").rpartition(":")
    if not is_id(number) or (colon and not alias):
        raise ArgumentTypeError(f"{text!r} is not the id of a job.")
    id = JobId(number)
    id.database = alias or None
    return id


def argument(text: str) -> tuple[str, str]:
    """Parse `payment_id=42` or `order.id=7`: the name of an argument, or a path into it, and a value."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, such as payment_id=42.")
    return path, value


LONGEST_NUMBER = 18
"""The maximum number of digits, so that PostgreSQL can store the number."""


def positive(text: str) -> int:
    if not text.isdecimal() or len(text) > LONGEST_NUMBER or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0, of at most {LONGEST_NUMBER} digits.")
    return int(text)


@dataclass(frozen=True)
class ChosenJobs:
    jobs: QuerySet[Job]
    cut_after: SearchWindow | None = None
    """The last part of the list that is read; `None` if the list is read to its end."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The jobs that the user has chosen on the command line, by their ids or by criteria."""

    ids: tuple[int, ...] = ()
    criteria: tuple[Criteria, ...] = ()
    reads_all: bool = False

    def parts(self) -> Iterator[ChosenJobs]:
        if self.ids:
            yield ChosenJobs(Job.objects.filter(pk__in=self.ids).order_by("pk"))
        for criteria in self.criteria:
            if by_index := criteria.by_index:
                yield ChosenJobs(criteria.narrow(Job.objects.filter(pk__in=by_index.ids)).order_by("-pk"))
                if criteria.task:  # the index has found all jobs of this task
                    continue
            reads_all = self.reads_all or not criteria.are_searched
            for window in criteria.windows():
                jobs = criteria.within(window).exclude(pk__in=by_index.ids if by_index else ())
                yield ChosenJobs(jobs, None if reads_all or window.end is None else window)
                if not reads_all:
                    break

    @property
    def searched_by_index(self) -> str:
        """The tasks and arguments whose indexes found all jobs; empty if no index was used."""
        return ", ".join(dict.fromkeys(criteria.by_index.labels for criteria in self.criteria if criteria.by_index))

    def require_known(self) -> None:
        """Raise `CommandError` if a job with one of the ids does not exist."""
        known_ids = set(Job.objects.filter(pk__in=self.ids).values_list("pk", flat=True))
        if unknown_ids := [str(pk) for pk in self.ids if pk not in known_ids]:
            raise CommandError(
                f"There is no job {', '.join(unknown_ids)}. Finished jobs are deleted when their retention is over."
            )

    def explain_nothing(self) -> None:
        """Raise `CommandError` if no job matches because the task or the queue is unknown."""
        for criteria in self.criteria[:1]:
            task = criteria.task
            if task and task not in _registered() and task not in (names := known_task_names()):
                raise CommandError(_unknown_task(task, names))
            if criteria.queue_name:
                require_known_queue(criteria.queue_name)


def cut_note(cut_windows: Sequence[SearchWindow]) -> str:
    """Say how many jobs of the lists were not searched, and how to search them too."""
    unsearched_counts = [window.rest() for window in cut_windows]
    number = sum(count.shown for count in unsearched_counts)
    is_lower_bound = any(count.is_capped and not count.estimate for count in unsearched_counts)
    about = "about " if any(count.estimate for count in unsearched_counts) else ""
    exactness = "at least " if is_lower_bound else about
    return f"Not searched: {exactness}{counted(number, 'more job')}; --all searches the whole list."


def add_criteria(parser: CommandParser) -> None:
    add = parser.add_argument_group("which jobs").add_argument
    states = ", ".join(STATES)
    add("--status", dest="state", choices=list(STATES), metavar="STATUS", help=f"jobs in this status: {states}")
    add("--failed", dest="state", action="store_const", const="failed", help="the same as --status failed")
    add("--retrying", dest="state", action="store_const", const="retrying", help="the same as --status retrying")
    add("--queue", metavar="QUEUE", help="jobs in this queue")
    add("--task", metavar="TASK", help="jobs of this task; a unique end of its name is enough")
    add("--exception", metavar="CLASS", help='jobs whose last error has this class, or "CLASS in FUNCTION"')
    add(
        "--arg",
        dest="arguments",
        action="append",
        default=[],
        type=argument,
        metavar="NAME=VALUE",
        help="jobs with this argument, or with this value inside it; may be repeated",
    )
    add("--search", metavar="TEXT", default="", help="jobs with this text, as in the admin's search box")
    add(
        "--since",
        type=moment,
        metavar="TIME",
        help="finished, claimed or (if waiting) enqueued since this time: 90s, 15m, 1h, 2d ago, today, yesterday, "
        '2026-11-25, "2026-11-25 14:00"',
    )
    add("--until", type=moment, metavar="TIME", help="finished, claimed or enqueued before this time")
    add(
        "--all",
        action="store_true",
        help=f"search each list to its end, instead of its first {WINDOW_SIZE:,} jobs",
    )


CRITERIA_OPTIONS = ("state", "queue", "task", "exception", "arguments", "search", "since", "until")
"""The options of `add_criteria` that choose jobs."""


def by_criteria(options: dict[str, Any], states: Collection[str | None] = (None,)) -> Choice:
    """Choose jobs by the options of `add_criteria`. Without a status, search these `states`; `None` means all."""
    chosen_states = [options["state"]] if options["state"] else states
    return Choice(
        criteria=tuple(
            Criteria(
                state=state,
                queue_name=options["queue"],
                task=full_task_name(options["task"]) if options["task"] else None,
                cause=options["exception"],
                arguments=tuple(options["arguments"]),
                text=options["search"],
                period=Period(options["since"], options["until"]),
            )
            for state in chosen_states
        ),
        reads_all=options["all"],
    )


def by_ids_or_criteria(options: dict[str, Any], states: Collection[str | None]) -> Choice:
    """Choose the jobs for a verb. Raise `CommandError` unless the options contain either ids or criteria."""
    ids = tuple(dict.fromkeys(options["ids"]))
    if bool(ids) == any(options[name] for name in CRITERIA_OPTIONS):
        hint = "not both" if ids else "such as --failed or --task"
        raise CommandError(f"Give the ids of jobs, or options that choose jobs, {hint}.", returncode=Exit.USAGE)
    if ids:
        return Choice(ids=ids)
    if not states and not options["state"]:
        raise CommandError("Choose the status of the jobs with --status.", returncode=Exit.USAGE)
    return by_criteria(options, states)


MOST_NAMES_SHOWN = 10


def full_task_name(typed: str) -> str:
    """Complete a text such as `send_receipt` to the only task name that ends in it; otherwise return the text."""
    full_names = _names_ending_in(typed)
    return full_names[0] if len(full_names) == 1 and typed not in _registered() else typed


def registered_task(typed: str) -> Task[Any, Any]:
    """Return the task with this name or end of a name. Raise `CommandError` unless there is exactly one."""
    name = full_task_name(typed)
    if name not in _registered():
        raise CommandError(_unknown_task(name, _registered()))
    return registry.get(name)


def require_known_queue(name: str) -> None:
    """Raise `CommandError` if no task, no worker and no job has this queue."""
    if name not in (names := known_queue_names()):
        raise CommandError(f"No task, worker or job has the queue {name!r}.{meant(name, names)}")


def _unknown_task(name: str, known: list[str]) -> str:
    if full_names := _names_ending_in(name):
        return f"Several tasks are called {name!r}: {', '.join(full_names)}."
    return f"No task is called {name!r}.{meant(name, known)}"


def _registered() -> list[str]:
    return [task.name for task in registry]


def _names_ending_in(name: str) -> list[str]:
    return sorted(known for known in _registered() if known.endswith(f".{name}"))


def meant(name: str, known: list[str]) -> str:
    """Return a sentence that suggests the most similar known name, or lists some known names."""
    # The user may have typed a full name, or only its last part.
    names_by_text = {text: candidate for candidate in known for text in (candidate.rpartition(".")[2], candidate)}
    if close_texts := difflib.get_close_matches(name, names_by_text, n=1):
        return f" Did you mean {names_by_text[close_texts[0]]!r}?"
    more_text = f", and {len(known) - MOST_NAMES_SHOWN:,} more" if len(known) > MOST_NAMES_SHOWN else ""
    return f" There are: {', '.join(map(printable, known[:MOST_NAMES_SHOWN]))}{more_text}." if known else ""

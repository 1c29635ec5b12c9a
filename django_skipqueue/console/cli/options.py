"""Options that several subcommands have: their types, and the jobs that they choose.

A type is a function that reads a text from the command line, for `argparse`. It raises `ArgumentTypeError`, whose
message becomes a usage error.

Invariant: jobs are read a window at a time. Without `--all`, a search looks at the first window of each list, and the
subcommand says how many jobs of the list it has not looked at.

The name of a task or a queue is completed, or refused with a suggestion.
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
    """The id of a job, with the alias of its database if that was given."""

    database: str | None = None


def job_id(text: str) -> JobId:
    """`42`, `#42` as in the admin, or the handle `queue_1:42`."""
    alias, colon, number = text.removeprefix("#").rpartition(":")
    if not is_id(number) or (colon and not alias):
        raise ArgumentTypeError(f"{text!r} is not the id of a job.")
    made = JobId(number)
    made.database = alias or None
    return made


def argument(text: str) -> tuple[str, str]:
    """`payment_id=42`, `order.id=7`: the name of an argument, or a path into one, and its value."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, such as payment_id=42.")
    return path, value


LONGEST_NUMBER = 18
"""Digits of a number that PostgreSQL counts to."""


def positive(text: str) -> int:
    if not text.isdecimal() or len(text) > LONGEST_NUMBER or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0, of at most {LONGEST_NUMBER} digits.")
    return int(text)


@dataclass(frozen=True)
class ChosenJobs:
    jobs: QuerySet[Job]
    cut_after: SearchWindow | None = None
    """The window after which the list goes on, if the rest of the list is not read."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    ids: tuple[int, ...] = ()
    criteria: tuple[Criteria, ...] = ()
    reads_all: bool = False

    def parts(self) -> Iterator[ChosenJobs]:
        if self.ids:
            yield ChosenJobs(Job.objects.filter(pk__in=self.ids).order_by("pk"))
        for criteria in self.criteria:
            if by_index := criteria.by_index:
                yield ChosenJobs(criteria.narrow(Job.objects.filter(pk__in=by_index.ids)).order_by("-pk"))
                if criteria.task:  # then there are no others
                    continue
            reads_all = self.reads_all or not criteria.are_searched
            for each in criteria.windows():
                jobs = criteria.within(each).exclude(pk__in=by_index.ids if by_index else ())
                yield ChosenJobs(jobs, None if reads_all or each.end is None else each)
                if not reads_all:
                    break

    @property
    def searched_by_index(self) -> str:
        """The tasks and arguments whose indexes have found all jobs of the task; an empty string: no index was used."""
        return ", ".join(dict.fromkeys(each.by_index.labels for each in self.criteria if each.by_index))

    def require_known(self) -> None:
        """Raise `CommandError` if there is no job with one of the ids."""
        known = set(Job.objects.filter(pk__in=self.ids).values_list("pk", flat=True))
        if unknown := [str(pk) for pk in self.ids if pk not in known]:
            raise CommandError(
                f"There is no job {', '.join(unknown)}. Finished jobs are deleted when their retention is over."
            )

    def explain_nothing(self) -> None:
        """Raise `CommandError` if no job can match because the task or the queue is unknown."""
        for criteria in self.criteria[:1]:
            task = criteria.task
            if task and task not in _registered() and task not in (names := known_task_names()):
                raise CommandError(_unknown_task(task, names))
            if criteria.queue_name:
                require_known_queue(criteria.queue_name)


def cut_note(cut: Sequence[SearchWindow]) -> str:
    """How many jobs of the lists come after these windows, and how to look at these jobs as well."""
    rests = [window.rest() for window in cut]
    number = sum(rest.shown for rest in rests)
    is_lower_bound = any(rest.is_capped and not rest.estimate for rest in rests)
    exactness = "at least " if is_lower_bound else "about " if any(rest.estimate for rest in rests) else ""
    return f"Not looked at: {exactness}{counted(number, 'more job')}; --all goes on to the end of the list."


def add_criteria(parser: CommandParser) -> None:
    add = parser.add_argument_group("which jobs").add_argument
    states = ", ".join(STATES)
    add("--status", dest="state", choices=list(STATES), metavar="STATUS", help=f"in this status: {states}")
    add("--failed", dest="state", action="store_const", const="failed", help="the same as --status failed")
    add("--retrying", dest="state", action="store_const", const="retrying", help="the same as --status retrying")
    add("--queue", metavar="QUEUE", help="in this queue")
    add("--task", metavar="TASK", help="of this task; the end of its name is enough, if no other task has it")
    add("--exception", metavar="CLASS", help='whose last error is of this class; "CLASS in FUNCTION": raised there')
    add(
        "--arg",
        dest="arguments",
        action="append",
        default=[],
        type=argument,
        metavar="NAME=VALUE",
        help="with this argument, or this value within one; several must all match",
    )
    add("--search", metavar="TEXT", default="", help="with this text, as in the search box of the admin")
    add(
        "--since",
        type=moment,
        metavar="TIME",
        help="finished or claimed since this time: 90s, 15m, 1h, 2d ago, today, yesterday, 2026-11-25, "
        '"2026-11-25 14:00"; those that wait: enqueued',
    )
    add("--until", type=moment, metavar="TIME", help="finished, claimed or enqueued before this time")
    add(
        "--all",
        action="store_true",
        help=f"search each list to its end, not its first {WINDOW_SIZE:,} jobs only",
    )


CRITERIA_OPTIONS = ("state", "queue", "task", "exception", "arguments", "search", "since", "until")
"""The options of `add_criteria` that choose jobs."""


def by_criteria(options: dict[str, Any], states: Collection[str | None] = (None,)) -> Choice:
    """The jobs by the options of `add_criteria`. states: where to look if no status is given; `None`: in all states."""
    chosen = [options["state"]] if options["state"] else states
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
            for state in chosen
        ),
        reads_all=options["all"],
    )


def by_ids_or_criteria(options: dict[str, Any], states: Collection[str | None]) -> Choice:
    """The jobs that a verb is for. Raise `CommandError` unless the options have either ids or criteria."""
    ids = tuple(dict.fromkeys(options["ids"]))
    if bool(ids) == any(options[name] for name in CRITERIA_OPTIONS):
        way = "not both" if ids else "such as --failed or --task"
        raise CommandError(f"Give the ids of jobs, or options that say which jobs, {way}.", returncode=Exit.USAGE)
    if ids:
        return Choice(ids=ids)
    if not states and not options["state"]:
        raise CommandError("Say with --status in which status the jobs are.", returncode=Exit.USAGE)
    return by_criteria(options, states)


MOST_NAMES_SHOWN = 10


def full_task_name(typed: str) -> str:
    """The name of the registered task whose name ends in this text, as in `send_receipt`; else the text as it is."""
    ends = _ending_in(typed)
    return ends[0] if len(ends) == 1 and typed not in _registered() else typed


def registered_task(typed: str) -> Task[Any, Any]:
    """The task with this name or this end of its name. Raise `CommandError` unless exactly one task has it."""
    name = full_task_name(typed)
    if name not in _registered():
        raise CommandError(_unknown_task(name, _registered()))
    return registry.get(name)


def require_known_queue(name: str) -> None:
    """Raise `CommandError` if no task, no worker and no job has this queue."""
    if name not in (names := known_queue_names()):
        raise CommandError(f"No task, worker or job has the queue {name!r}.{meant(name, names)}")


def _unknown_task(name: str, known: list[str]) -> str:
    if ends := _ending_in(name):
        return f"Several tasks are called {name!r}: {', '.join(ends)}."
    return f"No task is called {name!r}.{meant(name, known)}"


def _registered() -> list[str]:
    return [task.name for task in registry]


def _ending_in(name: str) -> list[str]:
    return sorted(known for known in _registered() if known.endswith(f".{name}"))


def meant(name: str, known: list[str]) -> str:
    """A sentence with the known name that is most like this name; else with some known names."""
    by_text = {text: each for each in known for text in (each.rpartition(".")[2], each)}
    if close := difflib.get_close_matches(name, by_text, n=1):
        return f" Did you mean {by_text[close[0]]!r}?"
    more = f", and {len(known) - MOST_NAMES_SHOWN:,} more" if len(known) > MOST_NAMES_SHOWN else ""
    return f" There are: {', '.join(map(printable, known[:MOST_NAMES_SHOWN]))}{more}." if known else ""

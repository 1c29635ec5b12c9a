"""`skipqueue retry`, `run-now`, `postpone`, `discard`, `cancel`, `delete`: change one job, or many.

Invariant: nothing is changed before all options are checked and, for many jobs, the question is answered.

The question says how many of the chosen jobs the verb can change, in which status and of which task. The database
counts the jobs in groups, a window of the list at a time; no job is read one by one.

Invariant: each batch of changes is one statement of the queue, committed by itself. Ctrl-C ends the command after a
batch.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, ExpressionWrapper, Q
from django.db.models.fields import BooleanField

from ...events.log_format import counted
from ...models import UNFINISHED, WAITING, Job, Status
from ...queue.parameters import BATCH
from ...queue.store import Store
from ..durations import duration
from ..job_states import RETRYING, STATES
from ..parts import consoles, why_unchanged
from ..search import Window, delete_jobs
from .options import Choice, add_criteria, by_ids_or_criteria, cut_note, job_id
from .subcommand import Exit, Subcommand
from .terminal import Console, operator, until_interrupted


@dataclass(frozen=True, kw_only=True)
class Verb:
    name: str
    help: str
    order: str
    """As an order, and `done` as a participle."""
    done: str
    statuses: Collection[str]
    """The statuses in which a job can be changed."""
    fits_what_holds_up: bool = False
    """Whether failed jobs that hold others up can be changed as well."""
    looked_for_in: tuple[str, ...] | None = None
    """The states, if the options do not say in which status. Empty: the options must say so. `None`: all that fit."""
    change: Callable[..., Collection[int]]
    """Change the jobs that allow it, by a `Store`, the ids, and what the operator says; returns their ids."""
    exception: str = "that changed meanwhile"
    """Why a job whose status allows the verb may stay as it is."""
    is_spread: bool = False
    """Whether it has the option `--over`."""
    is_delay: bool = False
    """Whether it has the option `--for`."""
    leaves_rows: bool = True
    """Whether the rows remain, with a reason in them."""

    @property
    def fits(self) -> Q:
        by_status = Q(status__in=list(self.statuses))
        if self.fits_what_holds_up:
            for part in consoles():
                by_status |= part.holding_up or Q()
        return by_status


RETRY = Verb(
    name="retry",
    help="Put failed or discarded jobs back into their queues, with a fresh set of attempts",
    order="Retry",
    done="retried",
    statuses=(Status.FAILED, Status.DISCARDED),
    looked_for_in=(Status.FAILED,),
    change=Store.retry,
    exception="whose unique key another job holds, or that changed meanwhile",
    is_spread=True,
)

RUN_NOW = Verb(
    name="run-now",
    help="Put scheduled and retrying jobs into their queues now",
    order="Run now",
    done="made due",
    statuses=(Status.SCHEDULED,),
    change=Store.run_now,
)

POSTPONE = Verb(
    name="postpone",
    help="Let waiting jobs wait longer",
    order="Postpone",
    done="postponed",
    statuses=WAITING,
    change=Store.postpone,
    exception="due later anyway, or changed meanwhile",
    is_delay=True,
)

DISCARD = Verb(
    name="discard",
    help="Finish waiting jobs without running them, and let a halted sequence go on without the job that failed",
    order="Discard",
    done="discarded",
    statuses=WAITING,
    fits_what_holds_up=True,
    change=Store.discard,
)

CANCEL = Verb(
    name="cancel",
    help="Discard waiting and running jobs; those that workers run are interrupted",
    order="Cancel",
    done="cancelled",
    statuses=UNFINISHED,
    change=Store.cancel,
)

DELETE = Verb(
    name="delete",
    help="Delete jobs for good, with their results and errors; running ones are left alone",
    order="Delete",
    done="deleted",
    statuses=[status for status in Status if status != Status.RUNNING],
    looked_for_in=(),
    change=lambda _store, ids, **_told: delete_jobs(ids),
    leaves_rows=False,
)

VERBS = (RETRY, RUN_NOW, POSTPONE, DISCARD, CANCEL, DELETE)


@dataclass
class Tally:
    changed: int = 0
    unchanged: int = 0
    is_interrupted: bool = False


def change(verb: Verb, choice: Choice, told: dict[str, Any], *, console: Console, total: int) -> Tally:
    """Apply the verb to the jobs that it can change. Jobs that are enqueued meanwhile are left out."""
    store, tally = Store.default(), Tally()
    with until_interrupted() as is_interrupted:
        for ids in _batches(verb, choice):
            if is_interrupted():
                tally.is_interrupted = True
                break
            changed = len(verb.change(store, ids, **told))
            tally.changed += changed
            tally.unchanged += len(ids) - changed
            console.progress(f"{tally.changed:,} of {total:,} jobs {verb.done} …")
    console.end_progress()
    return tally


def _batches(verb: Verb, choice: Choice) -> Iterator[list[int]]:
    """The ids, in the order of the lists. Those of a window are read before its first job is changed."""
    newest = Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    for part in choice.parts():
        jobs = part.jobs.filter(verb.fits, pk__lte=newest)
        ids = iter(list(jobs.values_list("pk", flat=True)))
        while batch := list(islice(ids, BATCH)):
            yield batch


@dataclass(frozen=True)
class Survey:
    kinds: Counter[tuple[str, str, bool]]
    cut: list[Window]
    """The windows after which lists go on that were not looked at."""

    @classmethod
    def of(cls, choice: Choice, fits: Q, console: Console) -> "Survey":
        kinds: Counter[tuple[str, str, bool]] = Counter()
        has_run, does_fit = (ExpressionWrapper(each, BooleanField()) for each in (Q(attempts__gt=0), fits))
        cut: list[Window] = []
        for part in choice.parts():
            cut += [part.cut_after] if part.cut_after else []
            jobs = part.jobs.order_by().annotate(has_run=has_run, fits=does_fit)
            groups = jobs.values_list("status", "has_run", "task", "fits").annotate(number=Count("pk"))
            for status, was_run, task, fit, number in groups:
                state = RETRYING if status == Status.SCHEDULED and was_run else status
                kinds[state, task, bool(fit)] += number
            console.progress(f"{kinds.total():,} jobs found …")
        console.end_progress()
        return cls(kinds, cut)

    @property
    def total(self) -> int:
        return self.kinds.total()

    @property
    def eligible(self) -> int:
        return sum(number for (*_, fits), number in self.kinds.items() if fits)

    @property
    def skipped(self) -> list[str]:
        """The numbers of all others in each state: `2 are completed already`, `1 is running already`."""
        unfit = Counter[str]()
        for (state, _, fits), number in self.kinds.items():
            if not fits:
                unfit[state] += number
        found = [(unfit[state], state) for state in STATES if unfit[state]]
        return [f"{number:,} {'is' if number == 1 else 'are'} {state} already" for number, state in found]

    def show(self, console: Console, *, in_json: bool) -> None:
        kinds = [(state, task, number, fits) for (state, task, fits), number in self.kinds.most_common()]
        if in_json:
            for state, task, number, would_change in kinds:
                console.json({"status": state, "task": task, "jobs": number, "would_change": would_change})
        elif kinds:
            rows = [(state, f"{number:,}", "yes" if would else "no", task) for state, task, number, would in kinds]
            console.table(("status", "jobs", "would change", "task"), rows, right=("jobs",))


class ChangeJobs(Subcommand):
    def __init__(self, verb: Verb) -> None:
        self.name = verb.name
        self.help = verb.help
        self._verb = verb

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("ids", nargs="*", type=job_id, metavar="ID", help="the jobs with these ids")
        add_criteria(parser)
        add("--yes", action="store_true", help="do not ask; needed for several jobs if nobody can answer")
        add("--dry-run", action="store_true", help="say what would be done, and change nothing")
        add(
            "--json",
            action="store_true",
            help="print a JSON object: of the outcome, or with --dry-run for each status and task",
        )
        if self._verb.leaves_rows:
            add("--reason", default="", help="why; it is kept in the row of each job")
        if self._verb.is_spread:
            help = "each at a random time within this; default: all at once"
            add("--over", type=duration, metavar="DURATION", help=help)
        if self._verb.is_delay:
            help = "so long from now; a job that is due later anyway stays as it is"
            add("--for", dest="delay", type=duration, metavar="DURATION", required=True, help=help)

    def run(self, console: Console, **options: Any) -> Exit:
        told_in = self._verb.looked_for_in
        choice = by_ids_or_criteria(options, (RETRYING, *self._verb.statuses) if told_in is None else told_in)
        choice.require_known()
        survey = Survey.of(choice, self._verb.fits, console)
        if not survey.cut and not survey.total:
            choice.explain_nothing()
        if options["dry_run"]:
            survey.show(console, in_json=options["json"])
            return self._report(console, Tally(survey.eligible), survey, verb=f"would be {self._verb.done}")
        if not survey.eligible:
            return self._report(console, Tally(), survey, in_json=options["json"])
        if len(choice.ids) != 1 and not options["yes"] and not self._is_confirmed(console, survey):
            console.say("Nothing was changed.")
            return Exit.NEGATIVE
        told: dict[str, Any] = {"by": operator(), "reason": options.get("reason", "")}
        if self._verb.is_spread:
            told["over"] = options["over"] or 0.0
        if self._verb.is_delay:  # to a fixed time, so that no job is postponed twice
            told["run_after"] = Store.default().heartbeats()[0] + options["delay"]
        tally = change(self._verb, choice, told, console=console, total=survey.eligible)
        if tally.unchanged and len(choice.ids) == 1 and (why := why_unchanged(choice.ids[0])):
            console.say(why)
        return self._report(console, tally, survey, in_json=options["json"])

    def _is_confirmed(self, console: Console, survey: Survey) -> bool:
        """Say what is left out, and ask. Raise `CommandError` if there is nobody to ask."""
        if survey.cut:
            console.say(cut_note(survey.cut))
        some = "" if survey.eligible == survey.total else f"{survey.eligible:,} of "
        number = f"{some}{counted(survey.total, 'job')}"
        if not console.is_interactive:
            question = f"Nobody can be asked whether to {self._verb.order.lower()} {number}"
            raise CommandError(f"{question}; --yes does it without asking.", returncode=Exit.USAGE)
        return console.confirm(f"{self._verb.order} {number}?")

    def _report(self, console: Console, tally: Tally, survey: Survey, *, verb: str = "", in_json: bool = False) -> Exit:
        """Say how many jobs were changed, and why others were not: `3 skipped: 3 are completed already`."""
        skipped = survey.skipped
        if tally.unchanged:
            skipped.append(f"{tally.unchanged:,} {self._verb.exception}")
        number = survey.total - survey.eligible + tally.unchanged
        if in_json:
            console.json({"changed": tally.changed, "skipped": number, "is_partial": bool(survey.cut)})
        others = f", {number:,} skipped: {', '.join(skipped)}" if skipped else ""
        left_out = f" {cut_note(survey.cut)}" if survey.cut else ""
        console.say(f"{counted(tally.changed, 'job')} {verb or self._verb.done}{others}.{left_out}")
        if tally.is_interrupted:
            console.say("Interrupted. Run the command again to go on.")
            return Exit.INTERRUPTED
        return Exit.PARTIAL if survey.cut else Exit.DONE if tally.changed else Exit.NEGATIVE

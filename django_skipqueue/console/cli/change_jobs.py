"""The subcommands that change jobs, such as `skipqueue retry`. There is one for each verb.

The command first checks all options and, for several jobs, asks the user to confirm. Each batch of changes is one
statement, which is committed separately. Ctrl-C ends the command after a batch.

Before the command asks, it shows how many of the chosen jobs the verb can change. The database counts these jobs in
groups, one window (part) of the list at a time.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, ExpressionWrapper, Q
from django.db.models.fields import BooleanField
from django.utils.timezone import make_naive
from django.utils.translation import override

from ...events.log_format import counted
from ...models import Job, Status
from ...queue.parameters import BATCH_ROWS
from ...queue.store import Store
from ..job_states import RETRYING, STATES
from ..parts import why_unchanged
from ..rules.locks import locker_of
from ..rules.rule import shell_command
from ..search import SearchWindow
from ..verbs.options import VerbOption
from ..verbs.verb import Changed, Instruction, Verb
from .options import Choice, add_criteria, by_ids_or_criteria, cut_note, job_id
from .subcommand import Exit, Subcommand
from .terminal import Console, operator, until_interrupted


@dataclass
class CommandTally:
    changed: int = 0
    unchanged: int = 0
    locked: int = 0
    """The number of jobs whose rows another session has locked."""
    last: Changed = field(default_factory=dict)
    """The changed jobs of the last batch."""
    is_interrupted: bool = False


def change(verb: Verb, choice: Choice, instruction: Instruction, *, console: Console, total: int) -> CommandTally:
    """Apply the verb to the chosen jobs that it can change, except jobs that are enqueued during the command."""
    tally = CommandTally()
    with until_interrupted() as is_interrupted:
        for ids in _batches(verb, choice):
            if is_interrupted():
                tally.is_interrupted = True
                break
            tally.last = verb.apply(ids, instruction)
            tally.changed += len(tally.last)
            if unchanged_ids := set(ids) - tally.last.keys():
                locked_count = len(verb.locked_among(unchanged_ids))
                tally.locked += locked_count
                tally.unchanged += len(unchanged_ids) - locked_count
            console.progress(f"{tally.changed:,} of {total:,} jobs {verb.done} …")
    console.end_progress()
    return tally


def _batches(verb: Verb, choice: Choice) -> Iterator[list[int]]:
    """Yield batches of ids, in the order of the lists. A part of a list is read before its first job is changed."""
    newest = Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    for part in choice.parts():
        jobs = part.jobs.filter(verb.condition, pk__lte=newest)
        ids = iter(list(jobs.values_list("pk", flat=True)))
        while batch := list(islice(ids, BATCH_ROWS)):
            yield batch


@dataclass(frozen=True)
class Survey:
    kinds: Counter[tuple[str, str, bool]]
    """The number of chosen jobs, by state, task, and whether the verb can change them."""
    cut: list[SearchWindow]
    """For each list that was not read to its end, the last window that was read."""

    @classmethod
    def of(cls, choice: Choice, fits: Q, console: Console) -> "Survey":
        kinds: Counter[tuple[str, str, bool]] = Counter()
        has_run_expression = ExpressionWrapper(Q(attempts__gt=0), BooleanField())
        fits_expression = ExpressionWrapper(fits, BooleanField())
        cut_windows: list[SearchWindow] = []
        for part in choice.parts():
            cut_windows += [part.cut_after] if part.cut_after else []
            jobs = part.jobs.order_by().annotate(has_run=has_run_expression, fits=fits_expression)
            groups = jobs.values_list("status", "has_run", "task", "fits").annotate(number=Count("pk"))
            for status, has_run, task, can_change, job_count in groups:
                state = RETRYING if status == Status.SCHEDULED and has_run else status
                kinds[state, task, bool(can_change)] += job_count
            console.progress(f"{kinds.total():,} jobs found …")
        console.end_progress()
        return cls(kinds, cut_windows)

    @property
    def total(self) -> int:
        return self.kinds.total()

    @property
    def eligible(self) -> int:
        return sum(job_count for (_state, _task, fits), job_count in self.kinds.items() if fits)

    @property
    def skipped(self) -> list[str]:
        """Texts about jobs that the verb cannot change: `2 are already completed`, `1 is already running`."""
        unfit_counts = Counter[str]()
        for (state, _task, fits), job_count in self.kinds.items():
            if not fits:
                unfit_counts[state] += job_count
        counts_by_state = [(unfit_counts[state], state) for state in STATES if unfit_counts[state]]
        return [
            f"{job_count:,} {'is' if job_count == 1 else 'are'} already {state}" for job_count, state in counts_by_state
        ]

    def show(self, console: Console, *, in_json: bool) -> None:
        kinds = [(state, task, job_count, fits) for (state, task, fits), job_count in self.kinds.most_common()]
        if in_json:
            for state, task, job_count, would_change in kinds:
                console.json({"status": state, "task": task, "jobs": job_count, "would_change": would_change})
        elif kinds:
            rows = [
                (state, f"{job_count:,}", "yes" if would_change else "no", task)
                for state, task, job_count, would_change in kinds
            ]
            console.table(("status", "jobs", "would change", "task"), rows, right=("jobs",))


class ChangeJobs(Subcommand):
    def __init__(self, verb: Verb) -> None:
        self.name = verb.slug
        self.help = verb.help
        self._verb = verb

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("ids", nargs="*", type=job_id, metavar="ID", help="the jobs with these ids")
        add_criteria(parser)
        add(
            "--yes",
            action="store_true",
            help="do not ask for confirmation; needed for several jobs if the command is not interactive",
        )
        add("--dry-run", action="store_true", help="show what would be done, but change nothing")
        add(
            "--json",
            action="store_true",
            help="print the result as a JSON object; with --dry-run, one object for each status and task",
        )
        if self._verb.leaves_rows:
            add("--reason", default="", help="the reason, which is stored with each job")
        for option in self._verb.options:
            add(
                option.flag,
                dest=option.name,
                type=option.parse,
                metavar=option.metavar,
                required=option.field().required,
                help=option.help,
            )

    @override(None)  # sentences are joined from words of the table of verbs, so all words must be in English
    def run(self, console: Console, **options: Any) -> Exit:
        default_statuses, done = self._verb.default_statuses, str(self._verb.done)
        choice = by_ids_or_criteria(
            options, (RETRYING, *self._verb.statuses) if default_statuses is None else default_statuses
        )
        choice.require_known()
        survey = Survey.of(choice, self._verb.condition, console)
        if not survey.cut and not survey.total:
            choice.explain_nothing()
        if options["dry_run"]:
            survey.show(console, in_json=options["json"])
            return self._report(console, CommandTally(survey.eligible), survey, done=f"would be {done}")
        if not survey.eligible:
            return self._report(console, CommandTally(), survey, done=done, in_json=options["json"])
        if len(choice.ids) != 1 and not options["yes"] and not self._is_confirmed(console, survey):
            console.say("Nothing was changed.")
            return Exit.NEGATIVE
        values = {option.name: _value_of(option, options[option.name]) for option in self._verb.options}
        instruction = Instruction(operator(), options.get("reason", ""), values)
        tally = change(self._verb, choice, instruction, console=console, total=survey.eligible)
        only_id = choice.ids[0] if len(choice.ids) == 1 else None
        if tally.unchanged and only_id is not None and (why := why_unchanged(only_id)):
            console.say(why)
        if tally.locked and only_id is not None and (locker := locker_of(Store.default(), only_id)):
            command = shell_command(locker.command, Store.default().alias)
            console.say(f"Its row is locked by {locker.in_words}. To end that: {command}")
        if self._verb.log_entry_of_copy and only_id is not None and tally.changed and not options["json"]:
            console.line(Job(pk=tally.last[only_id]).shown_id)
        return self._report(console, tally, survey, done=done, in_json=options["json"])

    def _is_confirmed(self, console: Console, survey: Survey) -> bool:
        """Say which jobs are left out, and ask for confirmation. Raise `CommandError` if no user can answer."""
        if survey.cut:
            console.say(cut_note(survey.cut))
        eligible_prefix = "" if survey.eligible == survey.total else f"{survey.eligible:,} of "
        question_title = str(
            self._verb.action.question_title % {"number": f"{eligible_prefix}{survey.total:,}", "count": survey.total}
        )
        if not console.is_interactive:
            question = f"Cannot ask whether to {question_title[0].lower()}{question_title[1:]}"
            raise CommandError(f"{question}. Use --yes to do it without asking.", returncode=Exit.USAGE)
        return console.confirm(f"{question_title}?")

    def _report(
        self, console: Console, tally: CommandTally, survey: Survey, *, done: str, in_json: bool = False
    ) -> Exit:
        """Say how many jobs were changed, and why jobs were skipped: `3 skipped: 3 are already completed`."""
        skipped = survey.skipped
        if tally.locked:
            locked_rows_phrase = (
                "whose row is locked by a session" if tally.locked == 1 else "whose rows are locked by sessions"
            )
            skipped.append(f"{tally.locked:,} {locked_rows_phrase} of the database")
        if tally.unchanged:
            skipped.append(f"{tally.unchanged:,} {self._verb.exception}")
        skipped_count = survey.total - survey.eligible + tally.unchanged + tally.locked
        if in_json:
            console.json({"changed": tally.changed, "skipped": skipped_count, "is_partial": bool(survey.cut)})
        skipped_text = f", {skipped_count:,} skipped: {', '.join(skipped)}" if skipped else ""
        unsearched_text = f" {cut_note(survey.cut)}" if survey.cut else ""
        console.say(f"{counted(tally.changed, 'job')} {done}{skipped_text}.{unsearched_text}")
        if tally.is_interrupted:
            console.say("Interrupted. Run the command again to continue.")
            return Exit.INTERRUPTED
        if survey.cut:
            return Exit.PARTIAL
        return Exit.DONE if tally.changed else Exit.NEGATIVE


def _value_of(option: VerbOption, parsed_value: Any) -> Any:
    """Return the option's value. A delay becomes a time by the database's clock, so that no job is postponed twice."""
    if (option.parameter or option.name) != "run_after":
        return parsed_value
    if isinstance(parsed_value, timedelta):
        now, _heartbeats = Store.default().heartbeats()
        return now + parsed_value
    return parsed_value if settings.USE_TZ else make_naive(parsed_value)

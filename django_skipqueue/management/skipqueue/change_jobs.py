"""`skipqueue retry`, `run-now`, `postpone`, `discard`, `cancel`, `delete`: change one job, or many.

Invariant: nothing is changed before all options are checked and, for many jobs, the question is answered.
"""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...events.log_format import counted
from ...explanations.unique_keys import why_its_key_is_taken
from ...store import Store
from ..terminal import option_types
from ..terminal.console import Console
from ..terminal.identity import operator
from ..terminal.subcommand import Exit, Subcommand
from .batches import Tally, change
from .choosing import add_criteria, by_ids_or_criteria, cut_note
from .survey import Survey
from .verbs import Instruction, Verb


class ChangeJobs(Subcommand):
    def __init__(self, verb: Verb) -> None:
        self.name = verb.name
        self.help = verb.help
        self._verb = verb

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("ids", nargs="*", type=option_types.job_id, metavar="ID", help="the jobs with these ids")
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
            add("--over", type=option_types.duration, metavar="DURATION", help=help)
        if self._verb.is_delay:
            help = "so long from now; a job that is due later anyway stays as it is"
            add("--for", dest="delay", type=option_types.duration, metavar="DURATION", required=True, help=help)

    def run(self, console: Console, **options: Any) -> Exit:
        choice = by_ids_or_criteria(options, self._verb.states)
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
        tally = change(self._verb, choice, _instruction(options), console=console, total=survey.eligible)
        if tally.unchanged and len(choice.ids) == 1 and (why := why_its_key_is_taken(choice.ids[0])):
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


def _instruction(options: dict[str, Any]) -> Instruction:
    delay = options.get("delay")
    return Instruction(
        by=operator(),
        reason=options.get("reason", ""),
        over=options.get("over"),
        run_after=delay and Store.default().heartbeats()[0] + delay,
    )

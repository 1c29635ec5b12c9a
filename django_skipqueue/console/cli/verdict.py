"""`skipqueue verdict`: print whether all is well, or which problems there are. Other commands print it too."""

from typing import Any

from django.utils import translation

from ...events.log_format import in_words, printable
from ...queue.store import Store
from ..rules.rule import Finding, Severity
from ..rules.verdict import Verdict
from .subcommand import Exit, Watchable
from .terminal import GREEN, RED, YELLOW, Console

SEVERITY_COLOURS = {Severity.CRITICAL: RED, Severity.WARNING: YELLOW, Severity.OK: GREEN}


class ShowVerdict(Watchable):
    name = "verdict"
    help = "Say whether all is well, or which problems affect users now or soon. Exits with 0 only if all is well"
    needs_yes_from_all_databases = True

    def run(self, console: Console, **options: Any) -> Exit:
        with translation.override(None):
            verdict = Verdict.now(Store.default())
            if options["json"]:
                console.json(verdict.as_json())
            else:
                show_verdict(console, verdict)
        return exit_code(verdict)


def exit_code(verdict: Verdict) -> Exit:
    if any(problem.code == "database-unusable" for problem in verdict.problems):
        return Exit.ERROR
    return Exit.DONE if verdict.is_well else Exit.NEGATIVE


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Print that all is well, or print each problem with advice and a command that helps."""
    if verdict.is_well:
        console.coloured(str(verdict), GREEN)
    for problem in verdict.problems:
        console.coloured(f"{in_a_sentence(problem)}.", SEVERITY_COLOURS[problem.severity])
        for line in filter(None, (problem.advice, *problem.command.splitlines())):
            console.line(f"    {printable(line)}")


def in_a_sentence(finding: Finding) -> str:
    """Return the problem as one line, such as `CRITICAL: No worker is alive, and jobs wait (has lasted 3m12s)`."""
    duration_text = "" if finding.seconds is None else f" (has lasted {in_words(finding.seconds)})"
    return printable(f"{finding.severity.upper()}: {finding.title}{duration_text}")

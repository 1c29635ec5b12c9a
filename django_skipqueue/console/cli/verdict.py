"""`skipqueue verdict`: whether all is well, or what hurts users; and how every command prints that."""

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
    help = "Say whether all is well; else what hurts users now, or soon. Exits with 0 only if all is well"
    needs_all = True

    def run(self, console: Console, **options: Any) -> Exit:
        with translation.override(None):
            verdict = Verdict.now(Store.default())
            if options["json"]:
                console.json(verdict.as_json())
            else:
                show_verdict(console, verdict)
        return exit_code(verdict)


def exit_code(verdict: Verdict) -> Exit:
    if any(each.code == "database-unusable" for each in verdict.problems):
        return Exit.ERROR
    return Exit.DONE if verdict.is_well else Exit.NEGATIVE


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Print that all is well, or each problem with what helps: advice, and a command."""
    if verdict.is_well:
        console.coloured(str(verdict), GREEN)
    for each in verdict.problems:
        console.coloured(f"{in_a_sentence(each)}.", SEVERITY_COLOURS[each.severity])
        for line in filter(None, (each.advice, *each.command.splitlines())):
            console.line(f"    {printable(line)}")


def in_a_sentence(finding: Finding) -> str:
    """The problem as one line, such as `CRITICAL: No worker is alive, and jobs wait (for 3m12s)`."""
    lasts = "" if finding.seconds is None else f" (for {in_words(finding.seconds)})"
    return printable(f"{finding.severity.upper()}: {finding.title}{lasts}")

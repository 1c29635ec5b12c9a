"""`skipqueue doctor`: report what is wrong with the queue and its database, and what to do about it."""

import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.utils import translation

from ...conf import settings
from ...events.log_format import printable
from ...queue.store import Store
from ..rules.examination import examine
from ..rules.rule import Finding, Severity
from ..rules.verdict import Verdict
from .subcommand import Exit, Watchable
from .terminal import Console
from .verdict import SEVERITY_COLOURS, exit_code

TEXT_WIDTH = 80
"""Text is wrapped at this number of characters, but a command to be pasted is never wrapped."""

ADVICE_INDENT = " " * 4


class Doctor(Watchable):
    name = "doctor"
    help = "Examine the queue and its database, and say what to do about each problem"
    needs_yes_from_all_databases = True

    def run(self, console: Console, **options: Any) -> Exit:
        start = time.monotonic()
        with translation.override(None):
            findings = examine(Store(settings.database))
            verdict = Verdict.of(findings)
        seconds = round(time.monotonic() - start, 3)
        if options["json"]:
            as_dicts = [asdict(finding) for finding in findings]
            console.json({"seconds": seconds, "is_well": verdict.is_well, "findings": as_dicts})
        else:
            console.coloured(str(verdict), SEVERITY_COLOURS[verdict.severity])
            console.line()
            for line in _report_lines(findings, seconds, names_all=options.get("verbosity", 1) > 1):
                console.line(line)
        return exit_code(verdict)


def _report_lines(findings: list[Finding], seconds: float, *, names_all: bool) -> Iterator[str]:
    for severity in Severity:
        findings_of_severity = [finding for finding in findings if finding.severity == severity]
        if findings_of_severity and severity != Severity.OK:
            yield severity.upper()
            yield ""
            for finding in findings_of_severity:
                yield from _wrapped(f"{finding.title} ({finding.code})", ADVICE_INDENT[:2])
                for text in (finding.found, finding.advice):
                    yield from _wrapped(text, ADVICE_INDENT)
                if finding.command:
                    yield ""
                    yield from map(printable, textwrap.indent(finding.command, ADVICE_INDENT * 2).splitlines())
                yield ""
    passed_checks = [finding for finding in findings if finding.severity == Severity.OK]
    summary = f"{len(passed_checks)} checks found no problem, in {seconds:.2f} s"
    if not names_all:
        yield f"{summary}. -v 2 lists them."
        return
    yield from _wrapped(f"{summary}: {', '.join(finding.code for finding in passed_checks)}.", "")
    for finding in passed_checks:
        if finding.found:
            yield from _wrapped(finding.found, "")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        TEXT_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )

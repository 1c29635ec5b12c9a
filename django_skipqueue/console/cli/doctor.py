"""`skipqueue doctor`: what is wrong with the queue and its database, and what to do about it."""

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
from .subcommand import Exit, Watchable
from .terminal import Console

WIDTH = 80
"""Columns of the text. What is to be pasted is never broken."""

INDENT = " " * 4


class Doctor(Watchable):
    """Changes nothing."""

    name = "doctor"
    help = "Examine the queue and its database, and say what to do about each finding"
    needs_all = True

    def run(self, console: Console, **options: Any) -> Exit:
        start = time.monotonic()
        with translation.override(None):
            findings = examine(Store(settings.database))
        seconds = round(time.monotonic() - start, 3)
        if options["json"]:
            console.json({"seconds": seconds, "findings": [asdict(each) for each in findings]})
        else:
            for line in _lines(findings, seconds, names_all=options.get("verbosity", 1) > 1):
                console.line(line)
        return _exit_code(findings)


def _exit_code(findings: list[Finding]) -> Exit:
    if any(each.code == "database-unusable" for each in findings):
        return Exit.ERROR
    is_well = all(each.severity in (Severity.OK, Severity.INFO) for each in findings)
    return Exit.DONE if is_well else Exit.NEGATIVE


def _lines(findings: list[Finding], seconds: float, *, names_all: bool) -> Iterator[str]:
    for severity in Severity:
        of_this = [each for each in findings if each.severity == severity]
        if of_this and severity != Severity.OK:
            yield severity.upper()
            yield ""
            for finding in of_this:
                yield from _wrapped(f"{finding.title} ({finding.code})", INDENT[:2])
                yield from (line for text in (finding.found, finding.advice) for line in _wrapped(text, INDENT))
                if finding.command:
                    yield ""
                    yield from map(printable, textwrap.indent(finding.command, INDENT * 2).splitlines())
                yield ""
    well = [each for each in findings if each.severity == Severity.OK]
    opening = "All is well: " if _exit_code(findings) == Exit.DONE else ""
    summary = f"{opening}{len(well)} checks found nothing, in {seconds:.2f} s"
    if not names_all:
        yield f"{summary}. -v 2 names them."
        return
    yield from _wrapped(f"{summary}: {', '.join(e.code for e in well)}.", "")
    for finding in well:
        if finding.found:
            yield from _wrapped(finding.found, "")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )

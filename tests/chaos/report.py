"""The figures of each scenario, as a table."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .evidence import Evidence
from .figures import calm_speed, full_speed_after, longest_gap, repeats, taken_back
from .invariants import (
    INVARIANTS,
    Invariant,
)
from .reasons import Reason, reason_of_repeat

COLUMNS = (
    "scenario",
    "jobs",
    "jobs/s before",
    "faults",
    "repeats: with a line/with a row",
    "taken back after, median/max: s",
    "longest gap: s",
    "full speed after: s",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


@dataclass(frozen=True)
class Verdict:
    """The figures and the violations of one scenario."""

    scenario: str
    row: str
    violations: list[str]


def judge(scenario: str, evidence: Evidence) -> Verdict:
    """Judge the evidence by all invariants."""
    return judge_by(INVARIANTS, scenario, evidence, repeats=_repeats(evidence))


def judge_by(invariants: Sequence[Invariant], scenario: str, evidence: Evidence, *, repeats: str) -> Verdict:
    """Judge the evidence by these invariants. `repeats` is the text of the column of repeats."""
    violations_of = {invariant: list(invariant(evidence)) for invariant in invariants}
    violations = [
        f"({number}) {violation}"
        for number, invariant in enumerate(invariants, start=1)
        for violation in violations_of[invariant]
    ]
    speed = full_speed_after(evidence)
    cells = [
        f"`{scenario}`",
        f"{len(evidence.statuses):,}",
        f"{calm_speed(evidence):.0f}",
        f"{sum(fault.what != 'SIGTERM at the end' for fault in evidence.faults)}",
        repeats,
        _taken_back(evidence),
        f"{longest_gap(evidence):.2f}",
        "never" if speed is None else f"{speed:.1f}",
    ]
    return Verdict(scenario, f"| {' | '.join(cells)} |", violations)


def write(table: list[str], page: Path) -> None:
    """Replace the table between the marks of a page."""
    table_with_marks = re.compile("(<!-- figures -->\n).*(\n<!-- end of figures -->)", re.DOTALL)
    lines = "\n".join(table)
    page.write_text(table_with_marks.sub(lambda marks: f"{marks[1]}{lines}{marks[2]}", page.read_text()))


def _repeats(evidence: Evidence) -> str:
    reasons = [reason_of_repeat(evidence, held_lease) for held_lease in repeats(evidence)]
    unexplained = sum(not isinstance(reason, Reason) for reason in reasons)
    counts = f"{reasons.count(Reason.LINE)}/{reasons.count(Reason.ROW)}"
    return f"{counts}, {unexplained} unexplained" if unexplained else counts


def _taken_back(evidence: Evidence) -> str:
    """The times until jobs of dead processes were recovered, without jobs whose outcome the process still wrote."""
    seconds = [
        seconds
        for _, _, held_lease, seconds in taken_back(evidence)
        if seconds is not None and held_lease.end is not None and held_lease.end.verb != "settle"
    ]
    return f"{statistics.median(seconds):.2f}/{max(seconds):.2f}" if seconds else ""

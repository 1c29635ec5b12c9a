"""The figures of each scenario, as a table."""

import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from .evidence import Evidence
from .invariants import (
    INVARIANTS,
    atomic_effects_once,
    full_speed_after,
    nothing_is_lost,
    repeats,
    repeats_are_explained,
    taken_back,
)

COLUMNS = (
    "scenario",
    "jobs",
    "faults",
    "lost",
    "repeats, all explained",
    "exactly-once violations",
    "taken back after, median / max",
    "full speed after",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


@dataclass(frozen=True)
class Verdict:
    """What became of one scenario."""

    title: str
    row: str
    violations: list[str]


def judge(title: str, evidence: Evidence) -> Verdict:
    """Ask all ten."""
    found = {invariant: list(invariant(evidence)) for invariant in INVARIANTS}
    violations = [
        f"({number}) {violation}"
        for number, invariant in enumerate(INVARIANTS, start=1)
        for violation in found[invariant]
    ]
    speed = full_speed_after(evidence)
    cells = [
        title,
        f"{len(evidence.statuses):,}",
        f"{sum(fault.what != 'SIGTERM at the end' for fault in evidence.faults)}",
        f"{len(found[nothing_is_lost])}",
        _of_which(len(repeats(evidence)), len(found[repeats_are_explained])),
        f"{len(found[atomic_effects_once])}",
        _taken_back(evidence),
        "never" if speed is None else f"{speed:.1f} s",
    ]
    return Verdict(title, f"| {' | '.join(cells)} |", violations)


def write(table: list[str], page: Path) -> None:
    """Put the table into a page, in the place of the one that is between its marks."""
    marked = re.compile("(<!-- figures -->\n).*(\n<!-- end of figures -->)", re.DOTALL)
    lines = "\n".join(table)
    page.write_text(marked.sub(lambda marks: f"{marks[1]}{lines}{marks[2]}", page.read_text()))


def _of_which(all_of_them: int, unexplained: int) -> str:
    return f"{all_of_them}, {unexplained} unexplained" if unexplained else f"{all_of_them}"


def _taken_back(evidence: Evidence) -> str:
    seconds = [seconds for _, _, _, seconds in taken_back(evidence) if seconds is not None]
    return f"{statistics.median(seconds):.2f} / {max(seconds):.2f} s" if seconds else ""

#!/usr/bin/env python3
"""Check that no test was lost by accident: `python scripts/check_lineage.py` (needs DATABASE_URL, as the tests do).

The first line of `tests/lineage/before.txt` names a commit. The other lines are the names of that commit's tests,
without parameters. Each of these tests must still exist, or have a row in `tests/lineage/moved.tsv`. A row has the old
name, the new name or `-`, and the reason. If the old name is a file (without `::`), the row stands for all tests of the
file that have no row of their own.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BEFORE = ROOT / "tests/lineage/before.txt"
MOVED = ROOT / "tests/lineage/moved.tsv"


class Row(NamedTuple):
    """What a row of `moved.tsv` says about a test. `new` is `-` if the test was deleted."""

    new: str
    why: str


def main() -> int:
    before = [line for line in BEFORE.read_text().splitlines() if "::" in line]
    table = dict(read_rows(MOVED.read_text()))
    collected = collect()
    problems = sorted([*lost_tests(before, table, collected), *wrong_rows(before, table, collected)])
    for problem in problems:
        print(problem)
    print(f"{len(before)} tests before, {len(collected)} now, {len(table)} rows of tests that moved or went")
    return bool(problems)


def read_rows(text: str) -> Iterator[tuple[str, Row]]:
    """Read the table. Its first line is a heading."""
    for line in text.splitlines()[1:]:
        old, new, why = line.split("\t")
        yield old, Row(new, why)


def collect() -> set[str]:
    """The names of the tests that pytest finds, without parameters."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


def lost_tests(before: list[str], table: dict[str, Row], collected: set[str]) -> Iterator[str]:
    """Yield a message for each test that neither exists nor is in the table."""
    for name in before:
        if name not in collected and name not in table:
            file, _, test = name.partition("::")
            moved = table.get(file)
            if moved is None:
                yield f"{name}: lost"
            elif moved.new != "-" and f"{moved.new}::{test}" not in collected:
                yield f"{name}: {moved.new}::{test} is not there"


def wrong_rows(before: list[str], table: dict[str, Row], collected: set[str]) -> Iterator[str]:
    """Yield a message for each row of the table that contradicts the tests."""
    known = {*before, *(name.partition("::")[0] for name in before)}
    for old, row in table.items():
        if old not in known:
            yield f"{old}: has a row, and was not there before"
        if old in collected:
            yield f"{old}: has a row, and is there"
        if row.new == "-" and not row.why:
            yield f"{old}: went without a reason"
        if "::" in row.new and row.new not in collected:
            yield f"{old}: {row.new} is not there"


if __name__ == "__main__":
    sys.exit(main())

"""Marks: when a job ran, as lines of a file: all peers are timed alike, and their databases are left alone.

A queue is first in, first out: a mark before the jobs and one after them tell when they ran.
"""

import os
import time
from pathlib import Path

FILE = "BENCHMARKS_MARKS"
"""Environment variable: where the file is."""

KEYS = 1_000
"""The keys of jobs with a limit. They have no order that a mark at the end could use."""


def leave(number: int) -> None:
    """Called by a task."""
    with Path(os.environ[FILE]).open("a") as file:
        file.write(f"{number} {time.time()!r}\n")


def is_there(number: int) -> bool:
    """Whether this job has run."""
    return number in found()


def found() -> dict[int, float]:
    """The marks so far: the moment of each, in seconds since the epoch."""
    file = Path(os.environ[FILE])
    lines = file.read_text().splitlines() if file.exists() else []
    return {int(number): float(moment) for number, moment in (line.split() for line in lines)}

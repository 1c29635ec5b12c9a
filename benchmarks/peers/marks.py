"""Marks: lines in a file that say when a job ran. They time all peers in the same way, whatever database a peer has.

Jobs run in the order in which they were enqueued. So a marking job before the measured jobs and one after them show how
long the measured jobs took.
"""

import os
import time
from pathlib import Path

FILE = "BENCHMARKS_MARKS"
"""Environment variable: the path of the file."""

KEYS = 1_000
"""The number of keys of jobs with a limit. Their order is not fixed, so a mark after them does not show their end."""


def leave(number: int) -> None:
    """Write a mark. Called by the task `mark`."""
    with Path(os.environ[FILE]).open("a") as file:
        file.write(f"{number} {time.time()!r}\n")


def is_there(number: int) -> bool:
    """Whether the job with this number has left its mark."""
    return number in found()


def found() -> dict[int, float]:
    """The marks so far: for each number, the time in seconds since the epoch."""
    file = Path(os.environ[FILE])
    lines = file.read_text().splitlines() if file.exists() else []
    return {int(number): float(moment) for number, moment in (line.split() for line in lines)}

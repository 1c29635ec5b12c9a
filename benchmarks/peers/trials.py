"""Run one measurement of a peer, and decide how many jobs it has."""

import json
import subprocess
from typing import Any

from ..databases import fresh_database
from .environments import ROOT, Environment

FEWEST = 1_000
"""The smallest number of jobs in a drain."""


class NotMeasured(Exception):
    """The measurement of a peer failed, for the given reason."""


def enough(rate: float, jobs: int, seconds: float) -> int:
    """The number of jobs for a drain that lasts at most this many seconds at this rate of jobs per second."""
    return max(min(FEWEST, jobs), min(jobs, int(rate * seconds)))


def measurement(environment: Environment, what: str, jobs: int) -> dict[str, Any]:
    """Run one measurement, in a new process with a new database."""
    command = [environment.python, "-m", "benchmarks.peers.measure", environment.peer, what, str(jobs)]
    with (
        fresh_database() as environment_variables,
        subprocess.Popen(
            command,
            env=environment.variables(environment_variables["DATABASE_URL"]),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            output, error_output = process.communicate()
        finally:
            process.terminate()
    if process.returncode:
        raise NotMeasured(f"{what}: {(error_output.strip() or 'it failed').splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def title_of(environment: Environment, answer: dict[str, Any]) -> str:
    """The name of the peer in tables, with its version."""
    return f"{answer['title']} {'' if environment.peer == 'skipqueue' else environment.version()}".strip()

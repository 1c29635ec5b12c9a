"""One measurement of a peer, and how many jobs it takes."""

import json
import subprocess
from typing import Any

from ..databases import fresh_database
from .environments import ROOT, Environment

FEWEST = 1_000


class NotMeasured(Exception):
    """Why a peer has no figures."""


def enough(rate: float, jobs: int, seconds: float) -> int:
    """How many jobs a drain takes at this rate that shall last as long as this at most."""
    return max(min(FEWEST, jobs), min(jobs, int(rate * seconds)))


def measurement(environment: Environment, what: str, jobs: int) -> dict[str, Any]:
    """One measurement in a process and a database of its own."""
    command = [environment.python, "-m", "benchmarks.peers.measure", environment.peer, what, str(jobs)]
    with (
        fresh_database() as ours,
        subprocess.Popen(
            command,
            env=environment.variables(ours["DATABASE_URL"]),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            said, complaint = process.communicate()
        finally:
            process.terminate()
    if process.returncode:
        raise NotMeasured(f"{what}: {(complaint.strip() or 'it failed').splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


def title_of(environment: Environment, answer: dict[str, Any]) -> str:
    """The name of the peer in tables, with its version."""
    return f"{answer['title']} {'' if environment.peer == 'skipqueue' else environment.version()}".strip()

"""The table of `--limits`: drains of jobs of which two per key may run at once, compared with drains of plain jobs.

Every key has several jobs, so most jobs wait for another job.
"""

from typing import Any

from ..figures import Figures, markdown_row, median_of, show
from .environments import Environment
from .marks import KEYS
from .trials import FEWEST, enough, measurement, title_of

COLUMNS = (
    "",
    f"drain with a limit of 2 by {KEYS:,} keys: jobs/s",
    "plain drain: jobs/s",
    "limited ÷ plain",
    "ours ÷ theirs: limited",
)
JOBS_OF_A_KEY = 4


def measured(peer: str, jobs: int, seconds: float, repeat: int) -> dict[str, Any]:
    """Measure both drains of one peer with its best settings `repeat` times. Returns the medians."""
    environment = Environment.of(peer)
    environment.install()
    trial = measurement(environment, "drain_best", min(FEWEST, jobs))
    number = max(enough(trial["figures"]["jobs/s"], jobs, seconds), KEYS * JOBS_OF_A_KEY)
    figures: Figures = {}
    for what in ("drain_best", "drain_limited"):
        answers = [measurement(environment, what, number) for _ in range(repeat)]
        figures[what] = median_of([answer["figures"] for answer in answers])["jobs/s"]
    return {"title": title_of(environment, trial), "figures": figures}


def row(peer: dict[str, Any], ours: Figures | None) -> str:
    """The line of a peer in the table."""
    if "reason" in peer:
        return markdown_row([peer["title"], f"not measured: {peer['reason']}", *[""] * (len(COLUMNS) - 2)])
    figures: Figures = peer["figures"]
    limited, plain = figures["drain_limited"], figures["drain_best"]
    ratio = "" if ours in (None, figures) else show(ours["drain_limited"] / limited)
    return markdown_row([peer["title"], show(limited), show(plain), show(limited / plain), ratio])

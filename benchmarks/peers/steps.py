"""The table of `--steps`: the steps of one workflow, and workflows of ten steps, four at once in one process."""

from typing import Any

from ..figures import Figures, markdown_row, median_of, show
from .environments import Environment
from .trials import FEWEST, measurement, title_of

COLUMNS = ("", "steps of one workflow: /s", "workflows of ten steps: /s", "ours ÷ theirs: steps, workflows")
MEASUREMENTS = ("one_workflow", "workflows")
RATES = ("steps/s", "workflows/s")


def measured(peer: str, jobs: int, _seconds: float, repeat: int) -> dict[str, Any]:
    """Measure the steps and the workflows of one peer `repeat` times. Returns the medians."""
    environment = Environment.of(peer)
    environment.install()
    figures: Figures = {}
    for what in MEASUREMENTS:
        answers = [measurement(environment, what, min(FEWEST, jobs)) for _ in range(repeat)]
        figures |= median_of([answer["figures"] for answer in answers])
    return {"title": title_of(environment, answers[0]), "figures": figures}


def row(peer: dict[str, Any], ours: Figures | None) -> str:
    """The line of a peer in the table."""
    if "reason" in peer:
        return markdown_row([peer["title"], f"not measured: {peer['reason']}", *[""] * (len(COLUMNS) - 2)])
    figures: Figures = peer["figures"]
    ratios = "" if ours in (None, figures) else ", ".join(show(ours[name] / figures[name]) for name in RATES)
    return markdown_row([peer["title"], *(show(figures[name]) for name in RATES), ratios])

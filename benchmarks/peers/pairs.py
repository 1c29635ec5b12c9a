"""The table of `--pairs`: drains of our queue whose jobs Celery runs, and of plain Celery with the same settings.

Both drains are measured alternately, so that other load on the machine affects both.
"""

import statistics
from typing import Any

from ..figures import Figures, markdown_row, show
from .environments import Environment
from .trials import FEWEST, enough, measurement, title_of

COLUMNS = (
    "",
    "drain, default: jobs/s, plain and carried",
    "carried ÷ plain, each pair",
    "drain, best: jobs/s, plain and carried",
    "carried ÷ plain, each pair",
)
KINDS = ("default", "best")
PLAIN = "celery_rabbitmq"


def measured(peer: str, jobs: int, seconds: float, repeat: int) -> dict[str, Any]:
    """Measure the drains of both peers `repeat` times."""
    environment, plain = Environment.of(peer), Environment.of(PLAIN)
    environment.install()
    plain.install()
    rates: dict[str, list[tuple[float, float]]] = {}
    for kind in KINDS:
        what = f"drain_{kind}"
        trial = measurement(environment, what, min(FEWEST, jobs))
        number = enough(trial["figures"]["jobs/s"], jobs, seconds)
        rates[kind] = [(_rate(plain, what, number), _rate(environment, what, number)) for _ in range(repeat)]
    return {"title": title_of(environment, trial), "rates": rates}


def row(peer: dict[str, Any], _ours: Figures | None) -> str:
    """The line of the table."""
    if "reason" in peer:
        return markdown_row([peer["title"], f"not measured: {peer['reason']}", *[""] * (len(COLUMNS) - 2)])
    cells = [peer["title"]]
    for pairs in (peer["rates"][kind] for kind in KINDS):
        ratios = [carried / plain for plain, carried in pairs]
        cells.append(" and ".join(show(statistics.median(rates)) for rates in zip(*pairs, strict=True)))
        cells.append(f"{show(statistics.median(ratios))} ({', '.join(map(show, ratios))})")
    return markdown_row(cells)


def _rate(environment: Environment, what: str, jobs: int) -> float:
    rate: float = measurement(environment, what, jobs)["figures"]["jobs/s"]
    return rate

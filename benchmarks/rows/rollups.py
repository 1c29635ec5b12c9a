"""Whether recording the history of jobs slows a drain down."""

import os
import statistics

from .. import jobs, workers
from ..figures import Figures
from ..sizes import Sizes


def rollups(sizes: Sizes) -> Figures:
    """A drain with roll-ups ÷ one that counts nothing, alternately; of the pairs of neighbours the median."""
    rates: dict[str, list[float]] = {"": [], jobs.WITHOUT_ROLLUPS: []}
    for number in range(2 * sizes.rounds):
        without = jobs.WITHOUT_ROLLUPS if number % 4 in (1, 2) else ""
        if without:
            os.environ[without] = "1"
        try:
            rates[without].append(workers.drain(jobs.noop, sizes.jobs)["jobs/s"])
        finally:
            os.environ.pop(jobs.WITHOUT_ROLLUPS, None)
    beside, alone = rates.values()
    ratio = statistics.median(with_them / without_them for with_them, without_them in zip(beside, alone, strict=True))
    return {
        "jobs/s": statistics.median(beside),
        "jobs/s without": statistics.median(alone),
        "with ÷ without": ratio,
    }

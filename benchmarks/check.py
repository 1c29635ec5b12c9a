"""`make bench-check`: the ratios that depend little on the machine, beside those of `baseline.json`.

Fails when one is worse by more than a fifth. Machines are noisy: each ratio is a median, and one that fails is measured
again before it counts.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import django

from .figures import markdown_head, markdown_row, show
from .measure import measurement
from .sizes import Sizes

BASELINE = Path(__file__).with_name("baseline.json")
TOLERANCE = 0.2

SIZES = Sizes(jobs=20_000, rounds=3, finished=200_000, future=100_000, snapshot=100_000)
"""Small enough for all of it to take less than three minutes."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One figure of one row."""

    row: str
    figure: str
    less_is_better: bool = False
    repeat: int = 3
    """Of how many measurements the median is taken; 1 where the row takes medians by itself."""

    def loss(self, measured: float, baseline: float) -> float:
        """How much worse than the baseline, as a share; below 0 if it is better."""
        return 1 - (baseline / measured if self.less_is_better else measured / baseline)


RATIOS = {
    "drain ÷ floor": Ratio(row="floor", figure="drain ÷ floor"),
    "defer ÷ create, in one transaction": Ratio(row="defer-in-transaction", figure="defer ÷ create"),
    "with history ÷ without": Ratio(row="history", figure="with ÷ without", repeat=1),
    "with future jobs ÷ without": Ratio(row="future", figure="with ÷ without", repeat=1),
    "under a snapshot: last fifth ÷ first": Ratio(row="snapshot", figure="last fifth ÷ first"),
    "transactions per 1,000 jobs": Ratio(row="drain", figure="transactions per 1,000 jobs", less_is_better=True),
}

Measure = Callable[[Ratio], float]


@dataclass(frozen=True)
class Verdict:
    """What came of one ratio."""

    name: str
    measured: float
    baseline: float
    loss: float

    @property
    def fails(self) -> bool:
        """Whether it is worse by more than is put down to noise."""
        return self.loss > TOLERANCE

    def __str__(self) -> str:
        word = "FAILS" if self.fails else "ok"
        return markdown_row([self.name, show(self.baseline), show(self.measured), f"{-self.loss:+.0%}", word])


def judge(name: str, ratio: Ratio, baseline: float, measure: Measure) -> Verdict:
    """Measure, and measure again if it fails: the better of the two counts."""
    verdicts = []
    for _ in range(2):
        measured = measure(ratio)
        verdicts.append(Verdict(name, measured, baseline, ratio.loss(measured, baseline)))
        if not verdicts[-1].fails:
            break
    return min(verdicts, key=lambda verdict: verdict.loss)


def measure(ratio: Ratio) -> float:
    """The median of several measurements."""
    return statistics.median(measurement(ratio.row, SIZES)[ratio.figure] for _ in range(ratio.repeat))


def check(baseline: Mapping[str, float]) -> bool:
    """Print a table of all ratios; whether none fails."""
    print(markdown_head(["ratio", "baseline", "measured", "better by", ""]), flush=True)
    verdicts = []
    for name, ratio in RATIOS.items():
        verdicts.append(judge(name, ratio, baseline[name], measure))
        print(verdicts[-1], flush=True)
    return not any(verdict.fails for verdict in verdicts)


def write() -> None:
    """Measure everything twice, and make the worse the baseline, as the better of two is what is compared with it."""
    print(markdown_head(["ratio", "measured"]), flush=True)
    figures = {}
    for name, ratio in RATIOS.items():
        figures[name] = round((max if ratio.less_is_better else min)(measure(ratio), measure(ratio)), 3)
        print(markdown_row([name, show(figures[name])]), flush=True)
    BASELINE.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make what is measured now the baseline")
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    if options.write:
        write()
        return 0
    return 0 if check(json.loads(BASELINE.read_text())) else 1


if __name__ == "__main__":
    sys.exit(main())

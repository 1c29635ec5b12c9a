"""`make bench-check`: measure ratios that depend little on the machine, and compare them with `baseline.json`.

It fails if a ratio is worse by more than a fifth. Machines are noisy: each ratio is a median, and a ratio that fails is
measured again.
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
"""Small enough for all measurements to take less than three minutes."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio to check: one figure of one row of the benchmarks."""

    row: str
    figure: str
    less_is_better: bool = False
    repeat: int = 3
    """The number of measurements from which the median is taken. It is 1 if the row itself takes medians."""

    def loss(self, measured: float, baseline: float) -> float:
        """How much worse the measured ratio is than the baseline, as a share. Negative if it is better."""
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
    """The result of the check of one ratio."""

    name: str
    measured: float
    baseline: float
    loss: float

    @property
    def fails(self) -> bool:
        """Whether the ratio is worse by more than the tolerated noise."""
        return self.loss > TOLERANCE

    def __str__(self) -> str:
        word = "FAILS" if self.fails else "ok"
        return markdown_row([self.name, show(self.baseline), show(self.measured), f"{-self.loss:+.0%}", word])


def judge(name: str, ratio: Ratio, baseline: float, measure: Measure) -> Verdict:
    """Measure a ratio, and measure it again if it fails. The better of the two measurements counts."""
    verdicts = []
    for _ in range(2):
        measured = measure(ratio)
        verdicts.append(Verdict(name, measured, baseline, ratio.loss(measured, baseline)))
        if not verdicts[-1].fails:
            break
    return min(verdicts, key=lambda verdict: verdict.loss)


def measure(ratio: Ratio) -> float:
    """The median of several measurements of this ratio."""
    return statistics.median(measurement(ratio.row, SIZES)[ratio.figure] for _ in range(ratio.repeat))


def check(baseline: Mapping[str, float]) -> bool:
    """Measure all ratios and print them as a table. Returns whether none fails."""
    print(markdown_head(["ratio", "baseline", "measured", "better by", ""]), flush=True)
    verdicts = []
    for name, ratio in RATIOS.items():
        verdicts.append(judge(name, ratio, baseline[name], measure))
        print(verdicts[-1], flush=True)
    return not any(verdict.fails for verdict in verdicts)


def write() -> None:
    """Measure every ratio twice, and write the worse one as the baseline: the check uses the better of two."""
    print(markdown_head(["ratio", "measured"]), flush=True)
    figures = {}
    for name, ratio in RATIOS.items():
        figures[name] = round((max if ratio.less_is_better else min)(measure(ratio), measure(ratio)), 3)
        print(markdown_row([name, show(figures[name])]), flush=True)
    BASELINE.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    """Run the check, or write the baseline, as the command line says."""
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

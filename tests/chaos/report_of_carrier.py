"""The row of the scenario `relay` in the table of figures."""

from .carrier_invariants import INVARIANTS, twice
from .evidence import Evidence
from .report import Verdict, judge_by


def judge_carried(scenario: str, evidence: Evidence) -> Verdict:
    """Ask its invariants. In the column of repeats stands how many jobs ran twice."""
    count = len(twice(evidence))
    share = count / max(len(evidence.statuses), 1)
    return judge_by(INVARIANTS, scenario, evidence, repeats=f"{count} jobs ran twice: {share:.2%}")

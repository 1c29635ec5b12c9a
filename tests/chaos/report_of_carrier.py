"""The row of the scenario `relay` in the table of figures."""

from .carrier_invariants import INVARIANTS, jobs_run_twice
from .evidence import Evidence
from .report import Verdict, judge_by


def judge_carried(scenario: str, evidence: Evidence) -> Verdict:
    """Judge the evidence by the invariants of the scenario. The column `repeats` counts the jobs that ran twice."""
    count = len(jobs_run_twice(evidence))
    share = count / max(len(evidence.statuses), 1)
    return judge_by(INVARIANTS, scenario, evidence, repeats=f"{count} jobs ran twice: {share:.2%}")

"""The figures of a scenario: speed, gaps, and the time until full speed."""

import pytest

from .evidence_builder import without_violations
from .figures import calm_speed, full_speed_after, longest_gap


def test_a_gap_is_measured_even_if_a_burst_of_jobs_follows() -> None:
    builder = without_violations()
    assert calm_speed(builder.evidence) == pytest.approx(10, rel=0.1)
    assert longest_gap(builder.evidence) < 0.2
    assert full_speed_after(builder.evidence) == 0
    for number, change in enumerate(builder.evidence.changes):
        if 130 < change.at < 134.5:
            builder.evidence.changes[number] = change._replace(at=134.5)
    assert longest_gap(builder.evidence) == pytest.approx(4.5, abs=0.1)
    assert full_speed_after(builder.evidence) == pytest.approx(3.5, abs=0.1), "the second that ends with the burst"


def test_the_first_second_at_full_speed_may_begin_at_any_moment() -> None:
    """Ten jobs are finished in exactly a second, just before the load ends."""
    builder = without_violations()
    evidence = builder.evidence
    evidence.changes = [change for change in evidence.changes if change.at < evidence.calm_again]
    (last_change,) = evidence.changes[-1:]
    finish_times = [evidence.load_until - 0.01 - 0.11 * number for number in range(10)]
    evidence.changes += [last_change._replace(at=moment, after="completed") for moment in finish_times]
    assert full_speed_after(evidence) == pytest.approx(evidence.load_until - 1.01 - evidence.calm_again)


def test_the_speed_before_the_first_fault_is_at_most_the_rate_of_the_load() -> None:
    builder = without_violations()
    builder.evidence.rate = 8.0
    assert calm_speed(builder.evidence) == 8.0
    assert full_speed_after(builder.evidence) == 0

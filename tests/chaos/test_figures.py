"""The figures of the table."""

import pytest

from .figures import calm_speed, full_speed_after, longest_gap
from .story import uneventful


def test_the_gap_in_the_service_is_not_hidden_by_a_backlog() -> None:
    story = uneventful()
    assert calm_speed(story.evidence) == pytest.approx(10, rel=0.1)
    assert longest_gap(story.evidence) < 0.2
    assert full_speed_after(story.evidence) == 0
    for number, change in enumerate(story.evidence.changes):
        if 130 < change.at < 134.5:
            story.evidence.changes[number] = change._replace(at=134.5)
    assert longest_gap(story.evidence) == pytest.approx(4.5, abs=0.1)
    assert full_speed_after(story.evidence) == pytest.approx(3.5, abs=0.1), "the second that ends with the burst"


def test_a_second_that_is_as_good_is_found_wherever_it_begins() -> None:
    """Just before the load ends, ten jobs in exactly a second."""
    story = uneventful()
    evidence = story.evidence
    evidence.changes = [change for change in evidence.changes if change.at < evidence.calm_again]
    (last,) = evidence.changes[-1:]
    moments = [evidence.load_until - 0.01 - 0.11 * number for number in range(10)]
    evidence.changes += [last._replace(at=moment, after="completed") for moment in moments]
    assert full_speed_after(evidence) == pytest.approx(evidence.load_until - 1.01 - evidence.calm_again)


def test_what_was_made_up_for_before_the_first_fault_is_not_asked_for_after_the_last() -> None:
    story = uneventful()
    story.evidence.rate = 8.0
    assert calm_speed(story.evidence) == 8.0
    assert full_speed_after(story.evidence) == 0

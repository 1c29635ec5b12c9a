"""The vertical axis: round steps, never more than a few, and everything fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_skipqueue.console.admin import charts as scale
from django_skipqueue.console.admin.charts import Scale


@pytest.mark.parametrize(
    # The highest value, and the expected scale: the size of a step and the number of steps.
    ("highest", "expected"),
    [
        (0, Scale(1, 1)),
        (1, Scale(1, 1)),
        (3, Scale(1, 3)),
        (7, Scale(2, 4)),
        (100, Scale(50, 2)),
        (4_711, Scale(2_000, 3)),
        (8_000, Scale(2_000, 4)),
    ],
)
def test_the_steps_of_numbers_are_whole_and_round(highest: float, expected: Scale) -> None:
    assert scale.of_numbers(highest) == expected


@pytest.mark.parametrize(
    # The highest value in seconds, and the expected scale: the size of a step in seconds and the number of steps.
    ("highest", "expected"),
    [
        (0, Scale(0.0005, 2)),
        (0.0031, Scale(0.001, 4)),
        (1.6, Scale(0.5, 4)),
        (48, Scale(15, 4)),
        (130, Scale(60, 3)),
        (700, Scale(300, 3)),
        (9_000, Scale(3_600, 3)),
        (86_400 * 9, Scale(86_400 * 5, 2)),
    ],
)
def test_the_steps_of_durations_are_round_in_their_units(highest: float, expected: Scale) -> None:
    assert scale.of_durations(highest) == expected


@given(st.floats(0, 1e12))
def test_every_value_fits_in_the_largest_number_of_steps(highest: float) -> None:
    for axis in (scale.of_numbers(highest), scale.of_durations(highest)):
        assert axis.top >= highest * (1 - 1e-6)
        assert 1 <= axis.steps <= scale.MOST_STEPS
        assert axis.marks[0] == 0
        assert axis.position_of(axis.top) == 1

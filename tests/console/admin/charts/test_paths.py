"""The SVG paths of a chart: lines with gaps, areas under lines, and stacked bars."""

from django_skipqueue.console.admin import charts as paths


def test_a_line_goes_through_the_middles_of_its_values() -> None:
    assert paths.curve([0.0, 0.5, 1.0]).line == "M0.5,100 1.5,50 2.5,0"


def test_a_gap_ends_a_line_and_a_single_value_is_a_short_line() -> None:
    assert paths.curve([0.5, None, 0.25, 0.5, None]).line == "M0,50 1,50M2.5,75 3.5,50"
    assert paths.curve([None, None]) == ("", "")


def test_the_area_under_a_line_reaches_down_to_zero() -> None:
    assert paths.curve([0.5, 1.0, None, 0.25]).area == "M0.5,100 0.5,50 1.5,0 1.5,100zM3,100 3,75 4,75 4,100z"


def test_bars_are_stacked() -> None:
    low, high = paths.bars([[0.25, 0.0], [0.5, 1.0]])
    assert low == "M0.1,75h.8v25h-.8z"
    assert high == "M0.1,25h.8v50h-.8zM1.1,0h.8v100h-.8z"


def test_a_tiny_bar_has_a_visible_height() -> None:
    (path,) = paths.bars([[0.0001]])
    assert path == "M0.1,99h.8v1h-.8z"


def test_no_values_give_no_bars() -> None:
    assert paths.bars([]) == []
    assert paths.bars([[]]) == [""]

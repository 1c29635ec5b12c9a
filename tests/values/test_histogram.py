"""Histograms whose counts can be added."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_skipqueue.values.histogram import BOUNDS, BUCKETS, added, empty, of, quantile

durations = st.lists(st.floats(min_value=-1, max_value=200_000), max_size=50)


@given(durations)
def test_each_duration_is_in_the_bucket_that_ends_at_or_above_it(values: list[float]) -> None:
    expected = empty()
    for value in values:
        expected[bisect_left(BOUNDS, value)] += 1
    assert of(values) == expected


@given(durations, durations)
def test_the_histogram_of_both_is_the_sum(one: list[float], other: list[float]) -> None:
    assert of(one + other) == added(of(one), of(other))


def test_a_duration_at_a_bound_is_below_it_and_the_last_bucket_has_no_bound() -> None:
    assert of([BOUNDS[0], BOUNDS[-1], BOUNDS[-1] + 1]) == [1, *[0] * (BUCKETS - 3), 1, 1]


def test_a_quantile_lies_within_its_bucket() -> None:
    counts = of([0.07] * 90 + [3.0] * 10)
    assert quantile(counts, 0.5) == pytest.approx(0.05 + 0.05 * 50 / 90)
    assert quantile(counts, 0.95) == pytest.approx(3.75)
    assert quantile(counts, 1.0) == 5.0


def test_a_quantile_of_nothing_is_none_and_none_is_above_the_highest_bound() -> None:
    assert quantile(empty(), 0.5) is None
    assert quantile(of([10.0**9]), 0.5) == BOUNDS[-1]

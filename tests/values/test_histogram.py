"""Histograms of durations. The counts of two histograms can be added."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_skipqueue.values.counting import BOUNDS, BUCKETS, added, all_buckets, histogram, quantile

durations = st.lists(st.floats(min_value=-1, max_value=200_000), max_size=50)


@given(durations)
def test_each_duration_is_in_the_bucket_that_ends_at_or_above_it(values: list[float]) -> None:
    expected = [0] * BUCKETS
    for value in values:
        expected[bisect_left(BOUNDS, value)] += 1
    assert all_buckets(histogram(values)) == expected
    assert not values or histogram(values)[-1]


@given(durations, durations)
def test_the_histogram_of_two_lists_is_the_sum_of_their_histograms(first: list[float], second: list[float]) -> None:
    assert histogram(first + second) == added(histogram(first), histogram(second))
    assert len(all_buckets(histogram(first))) == BUCKETS


def test_a_duration_equal_to_a_bound_counts_below_it_and_the_last_bucket_is_unbounded() -> None:
    assert histogram([BOUNDS[0], BOUNDS[-1], BOUNDS[-1] + 1]) == [1, *[0] * (BUCKETS - 3), 1, 1]


def test_a_quantile_lies_within_its_bucket() -> None:
    counts = histogram([0.07] * 90 + [3.0] * 10)
    assert quantile(counts, 0.5) == pytest.approx(0.05 + 0.05 * 50 / 90)
    assert quantile(counts, 0.95) == pytest.approx(2.5)
    assert quantile(counts, 1.0) == 3.0


def test_the_quantile_of_no_durations_is_none_and_of_huge_ones_the_highest_bound() -> None:
    assert quantile([], 0.5) is None
    assert quantile(histogram([10.0**9]), 0.5) == BOUNDS[-1]


@given(st.floats(min_value=1.01, max_value=86_400), st.integers(min_value=1, max_value=200))
def test_the_quantile_of_equal_durations_differs_from_them_by_half_at_most(duration: float, count: int) -> None:
    percentile_95 = quantile(histogram([duration] * count), 0.95)
    assert percentile_95 is not None
    assert 1 / 1.5 <= percentile_95 / duration <= 1.5


def test_the_95th_percentile_of_equal_durations_is_near_them_or_equal_to_a_given_maximum() -> None:
    """A wrong quantile was once 57 minutes, when all 40 jobs had waited for 16 minutes."""
    percentile_95 = quantile(histogram([981.6] * 40), 0.95)
    assert percentile_95 == pytest.approx(981.6, rel=0.25)
    assert quantile(histogram([981.6] * 40), 0.95, 981.6) == 981.6
    assert quantile(histogram([981.6] * 40), 0.01, 981.6) == pytest.approx(900, rel=0.01)
    assert quantile(histogram([0.2] * 40), 0.95, None) == quantile(histogram([0.2] * 40), 0.95)

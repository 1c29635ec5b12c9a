"""`durations`: durations and times as texts."""

from datetime import UTC, datetime, timedelta

import pytest

from django_skipqueue.console.durations import distance, span

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0026, "2.6 ms"),
        (0.2123, "212 ms"),
        (0.9999, "1.0 s"),
        (1.44, "1.4 s"),
        (9.97, "10 s"),
        (45, "45 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3_600, "1 h"),
        (86_400 * 2 + 3_600 * 5 + 59, "2 d 5 h"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == span(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "now"), (-0.4, "now"), (-9, "9 s ago"), (-200, "3 min ago"), (7_300, "in 2 h"), (-86_400 * 3, "3 d ago")],
)
def test_a_distance_has_one_unit_and_says_before_or_after_now(seconds: float, text: str) -> None:
    assert distance(NOW + timedelta(seconds=seconds), NOW) == text

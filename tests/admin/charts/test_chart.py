"""A chart: what its legend, its hover texts and its table say."""

from collections.abc import Sequence
from datetime import UTC, timedelta

from django_skipqueue.admin.charts import scale
from django_skipqueue.admin.charts.chart import Chart, Series
from django_skipqueue.admin.charts.local_times import LocalTimes
from django_skipqueue.admin.charts.time_axis import TimeAxis


def make(*values: Sequence[float | None], stacks: bool = False, mark_every: timedelta = timedelta(minutes=1)) -> Chart:
    series = [Series(f"s{number}", "p50", each) for number, each in enumerate(values)]
    times = LocalTimes(TimeAxis(0, 60, len(values[0])), UTC, mark_every)
    return Chart("c", "C", times, scale.of_numbers, str, series, stacks=stacks)


def test_lines_reach_to_the_highest_value_and_bars_to_the_highest_sum() -> None:
    assert make([1, 4], [3, 2]).scale.top == 4
    assert make([1, 4], [3, 2], stacks=True).scale.top == 6


def test_hovering_says_the_time_and_every_value_the_upper_one_first() -> None:
    assert make([1.0, None], [3.0, 2.0]).hovers[1] == "00:01\N{EN DASH}00:02\ns0: \N{EN DASH}\ns1: 2.0"
    assert make([1.0], [3.0], stacks=True).hovers[0] == "00:00\N{EN DASH}00:01\ns1: 3.0\ns0: 1.0"


def test_the_table_has_the_same_values() -> None:
    assert [cells for _, cells in make([1.0, None], [3.0, 2.0]).rows] == [
        ["1.0", "3.0"],
        ["\N{EN DASH}", "2.0"],
    ]


def test_a_chart_without_a_value_is_empty() -> None:
    assert make([0, 0], [None, None]).is_empty
    assert not make([0, 1]).is_empty
    assert make([None]).drawn[0].line == ""


def labels(made: Chart) -> list[str]:
    return [mark.label for mark in made.times.marks]


def test_labels_stand_off_the_ends_and_have_days_where_the_time_is_long() -> None:
    assert labels(make([0] * 4)) == ["00:01", "00:02", "00:03"]
    assert labels(make([0] * 3_000, mark_every=timedelta(days=1))) == ["Fri 2", "Sat 3"]

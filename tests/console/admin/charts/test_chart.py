"""The texts of a chart: its legend, its hover texts and its table."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

from django_skipqueue.console.admin import charts as scale
from django_skipqueue.console.admin.charts import Chart, LocalTimes, Mark, Series, TimeAxis


def make_chart(
    *values: Sequence[float | None], stacks: bool = False, mark_every: timedelta = timedelta(minutes=1)
) -> Chart:
    series = [Series(f"s{number}", "p50", line_values) for number, line_values in enumerate(values)]
    times = LocalTimes(TimeAxis(start=0, width=60, bucket_count=len(values[0])), UTC, mark_every)
    return Chart("c", "C", times, scale.of_numbers, str, series, stacks=stacks)


def test_the_axis_reaches_the_highest_value_of_lines_and_the_highest_sum_of_bars() -> None:
    assert make_chart([1, 4], [3, 2]).scale.top == 4
    assert make_chart([1, 4], [3, 2], stacks=True).scale.top == 6


def test_the_hover_text_has_the_time_and_every_value_with_the_upper_line_first() -> None:
    assert make_chart([1.0, None], [3.0, 2.0]).hovers[1] == "00:01\N{EN DASH}00:02\ns0: \N{EN DASH}\ns1: 2.0"
    assert make_chart([1.0], [3.0], stacks=True).hovers[0] == "00:00\N{EN DASH}00:01\ns1: 3.0\ns0: 1.0"


def test_the_hover_text_of_a_bucket_names_the_deployments_in_it() -> None:
    chart = make_chart([1.0, 2.0, 3.0])
    change = chart.times.mark(90.0, "deployment 4f2a")
    assert (change.position, change.from_left) == (0.5, "50.00")
    hovers = replace(chart, changes=[change, Mark(0.99, "deployment 5b3c")]).hovers
    assert [hover.rpartition("\n")[2] for hover in hovers] == ["s0: 1.0", "deployment 4f2a", "deployment 5b3c"]


def test_the_table_has_the_values_of_the_chart() -> None:
    assert [cells for _, cells in make_chart([1.0, None], [3.0, 2.0]).rows] == [
        ["1.0", "3.0"],
        ["\N{EN DASH}", "2.0"],
    ]


def test_a_chart_escapes_html_in_its_texts() -> None:
    series = Series("<i>", "p50", [1.0])
    times = LocalTimes(TimeAxis(start=0, width=60, bucket_count=1), UTC, timedelta(minutes=1))
    chart = Chart("c", "C", times, scale.of_numbers, lambda number: f"<b title='{number}'>&", [series])
    assert "<title>00:00\N{EN DASH}00:01\n&lt;i&gt;: &lt;b title=&#x27;1.0&#x27;&gt;&amp;</title>" in chart.hovered
    assert chart.table_rows.strip() == (
        '<tr><th scope="row">00:00\N{EN DASH}00:01</th><td>&lt;b title=&#x27;1.0&#x27;&gt;&amp;</td></tr>'
    )


def test_a_value_that_occurs_twice_is_formatted_once() -> None:
    formatted_numbers: list[float] = []

    def format_number(number: float) -> str:
        formatted_numbers.append(number)
        return f"{number:g}"

    times = LocalTimes(TimeAxis(start=0, width=60, bucket_count=4), UTC, timedelta(minutes=1))
    chart = Chart("c", "C", times, scale.of_numbers, format_number, [Series("s", "p50", [2.0, None, 2.0, 3.0])])
    assert [cells for _, cells in chart.rows] == [["2"], ["\N{EN DASH}"], ["2"], ["3"]]
    assert sorted(formatted_numbers) == [2.0, 3.0]


def test_a_chart_without_a_value_is_empty() -> None:
    assert make_chart([0, 0], [None, None]).is_empty
    assert not make_chart([0, 1]).is_empty
    assert make_chart([None]).drawn[0].line == ""


def test_the_text_of_a_bucket_begins_with_the_day_if_the_chart_covers_a_long_time() -> None:
    axis = TimeAxis(start=0, width=6 * 3_600, bucket_count=5)
    assert LocalTimes(axis, ZoneInfo("Europe/Berlin"), timedelta(days=1)).bucket_labels == [
        f"{day} {start}\N{EN DASH}{end}"
        for day, start, end in (
            ("Thu 1", "01:00", "07:00"),
            ("Thu 1", "07:00", "13:00"),
            ("Thu 1", "13:00", "19:00"),
            ("Thu 1", "19:00", "01:00"),
            ("Fri 2", "01:00", "07:00"),
        )
    ]


def mark_labels(chart: Chart) -> list[str]:
    return [mark.label for mark in chart.times.marks]


def test_the_time_axis_is_labelled_with_times_or_with_days_if_it_is_long() -> None:
    assert mark_labels(make_chart([0] * 4)) == ["00:01", "00:02", "00:03"]
    assert mark_labels(make_chart([0] * 3_000, mark_every=timedelta(days=1))) == ["Fri 2", "Sat 3"]

"""The dashboard: its cards, charts and tables show hand-made roll-ups."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import RollUp
from django_skipqueue.parts.history.dashboard import MANY_RECOVERED
from django_skipqueue.parts.history.models import Span
from django_skipqueue.values import counting

from ....console.admin.conftest import WORKERS
from ....console.admin.dashboard.test_dashboard import DASHBOARD, get_card, get_dashboard, section_content

pytestmark = pytest.mark.django_db


def make_rollup(*, minutes: float, span: Span = Span.MINUTE, queue: str = "", task: str = "", **fields: Any) -> RollUp:
    """Make a row of roll-ups of `minutes` ago."""
    times = {name: counting.histogram(fields.pop(name, ())) for name in ("waited", "ran")}
    starts_at = Now() - timedelta(minutes=minutes)
    return RollUp.objects.create(
        span=span, queue_name=queue, task=task, starts_at=starts_at, **times, **({"depth": None} | fields)
    )


def get_chart(name: str, **query: str) -> Any:
    [chart] = [chart for chart in section_content("charts", **query) if chart.name == name]
    return chart


def values_by_series(chart: Any) -> dict[str, list[float | None]]:
    return {str(series.label): list(series.values) for series in chart.series}


def test_the_jobs_per_minute_count_the_last_minutes() -> None:
    make_rollup(minutes=2, completed=60, waited=[0.1] * 60)
    make_rollup(minutes=2, completed=10, queue="mail")
    # the card shows the average of the last five to six minutes
    assert 9 <= float(get_card("jobs per minute").value) <= 12
    assert 1.5 <= float(get_card("jobs per minute", queue="mail").value) <= 2


@pytest.mark.parametrize(
    ("in_last_hour", "level"), [(0, ""), (1, "warning"), (MANY_RECOVERED - 1, "warning"), (MANY_RECOVERED, "alarm")]
)
def test_the_card_of_recovered_jobs_counts_the_roll_ups_of_a_day(in_last_hour: int, level: str) -> None:
    make_rollup(minutes=30, recovered=in_last_hour)
    make_rollup(minutes=90, recovered=4)
    make_rollup(minutes=60 * 25, recovered=1_000)
    make_rollup(minutes=31, recovered=0, queue="mail")
    card = get_card("recovered in 24 h")
    assert (card.value, card.detail) == (str(in_last_hour + 4), f"{in_last_hour} in the last hour")
    assert (card.level, card.address) == (level, WORKERS)
    assert get_card("recovered in 24 h", queue="mail").value == "0"


def test_the_throughput_chart_adds_roll_ups_up_in_buckets_and_has_zeros_for_gaps() -> None:
    make_rollup(minutes=5, completed=7, failed=1)
    make_rollup(minutes=7, completed=2, retried=3)
    make_rollup(minutes=6, completed=100, queue="mail")  # the row of all queues counts them already
    series_values = values_by_series(get_chart("throughput"))
    assert {name: len(numbers) for name, numbers in series_values.items()} == {
        "failed": 60,
        "retried": 60,
        "completed": 60,
    }
    assert series_values["completed"][54] == 7  # the 60th bucket is the current minute, the 55th is 5 minutes ago
    assert series_values["completed"][52] == 2
    assert sum(number or 0 for number in series_values["completed"]) == 9
    assert sum(series_values["failed"]) == 1  # type: ignore[arg-type]  # no bucket is None
    assert [series.summary for series in get_chart("throughput").series] == ["1", "3", "9"]


def test_a_chart_of_six_hours_adds_minutes_up_in_buckets_of_five() -> None:
    for minutes in range(30):
        make_rollup(minutes=minutes, completed=1, ran=[0.2, 0.2])
    completed = values_by_series(get_chart("throughput", range="6h"))["completed"]
    assert len(completed) == 72
    assert sum(number or 0 for number in completed) == 30
    assert max(number or 0 for number in completed) == 5


def test_a_chart_of_a_week_reads_hourly_roll_ups() -> None:
    make_rollup(minutes=60 * 24 * 3, completed=5, span=Span.HOUR)
    make_rollup(minutes=60 * 24 * 2, completed=9, span=Span.MINUTE)
    assert sum(number or 0 for number in values_by_series(get_chart("throughput", range="7d"))["completed"]) == 5


def test_quantiles_of_waiting_times_have_gaps_where_no_attempt_ended() -> None:
    make_rollup(minutes=5, completed=20, waited=[0.02] * 19 + [4.0], ran=[0.2] * 20)
    quantiles = values_by_series(get_chart("waited"))
    assert quantiles["p50"][54] == pytest.approx(0.025, abs=0.015)
    assert quantiles["p95"][54] == pytest.approx(0.025, abs=0.001)
    assert quantiles["p50"][53] is None
    assert get_chart("waited").series[0].summary != "\N{EN DASH}"
    assert get_chart("ran").scale.top >= 0.2


def test_the_chart_of_waiting_times_has_a_line_for_the_oldest_waiting_job() -> None:
    """The jobs wait for 7 minutes. The quantiles, which count only jobs that have begun, show 0.02 s."""
    make_rollup(minutes=5, completed=20, waited=[0.02] * 20)
    assert set(values_by_series(get_chart("waited"))) == {"p50", "p95"}
    for minutes, oldest in ((6, 360.0), (4, 480.0)):
        make_rollup(minutes=minutes, depth=3, oldest_seconds=oldest)
    (line,) = [series for series in get_chart("waited").series if series.style == "oldest"]
    assert [value for value in line.values if value is not None] == [360.0, 480.0]
    assert line.summary == "8 min"
    assert {str(series.label) for series in get_chart("ran").series} == {"p50", "p95"}


def test_the_deepest_queues_have_a_line_each_and_all_other_queues_one_line() -> None:
    names = [f"q{number}" for number in range(7)]
    for number, name in enumerate(names):
        make_rollup(minutes=0, span=Span.EVER, queue=name)
        make_rollup(minutes=1, span=Span.HOUR, queue=name, depth=10 * number)
        make_rollup(minutes=1, queue=name, depth=10 * number)
    make_rollup(minutes=1, depth=sum(10 * number for number in range(7)))
    depths = values_by_series(get_chart("depth"))
    assert list(depths) == ["q6", "q5", "q4", "q3", "q2", "other queues"]
    assert [numbers[58] for numbers in depths.values()] == [60, 50, 40, 30, 20, 10], "one minute ago"
    assert depths["q6"][57] is None
    assert list(values_by_series(get_chart("depth", queue="q1"))) == ["q1"]


def test_the_slowest_tasks_come_first() -> None:
    for task, seconds, failed in (("fast", 0.1, 0), ("slow", 8.0, 1), ("slower", 40.0, 3)):
        make_rollup(minutes=3, queue="mail", task=task, completed=9, ran=[seconds] * 10, retried=failed,
                    ran_seconds=10 * seconds)  # fmt: skip
    make_rollup(minutes=3, queue="mail", completed=9, ran=[100.0] * 10, ran_seconds=1000.0)
    tasks = section_content("slowest_tasks")
    assert [row["task"] for row in tasks] == ["slower", "slow", "fast"]
    assert (tasks[0]["failed_share"], tasks[2]["failed_share"], tasks[1]["attempts"]) == ("25 %", "0 %", "10")
    assert section_content("slowest_tasks", queue="other") == []


def test_the_page_shows_charts_with_their_numbers_as_tables(operator: Client) -> None:
    make_rollup(minutes=5, completed=7, failed=1)
    html = operator.get(DASHBOARD).text
    for expected in ("<title>", "As a table", "failed: 1"):
        assert expected in html


def test_the_number_of_queries_does_not_grow_with_the_roll_ups() -> None:
    def count_queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            get_dashboard()
        return len(captured)

    queries_before = count_queries()
    for number in range(8):
        make_rollup(minutes=3, queue=f"q{number}", task="t", completed=1, ran=[1.0])
    assert count_queries() == queries_before

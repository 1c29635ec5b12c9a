"""The dashboard: what its cards, charts and tables say of hand-made jobs and roll-ups."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console.admin.dashboard.cards import MANY_RECOVERED
from django_skipqueue.console.admin.dashboard.dashboard import Dashboard
from django_skipqueue.models import JobBatch, Queue, RollUp
from django_skipqueue.parts.history.models import Span
from django_skipqueue.values import counting as histogram

from ...app.rows import make_job, make_worker
from ..conftest import LIST, WORKERS

DASHBOARD = f"{LIST}dashboard/"

pytestmark = pytest.mark.django_db


def make_rollup(*, minutes: float, span: Span = Span.MINUTE, queue: str = "", task: str = "", **fields: Any) -> RollUp:
    """What happened so many minutes ago."""
    times = {name: histogram.of(fields.pop(name, ())) for name in ("waited", "ran")}
    starts_at = Now() - timedelta(minutes=minutes)
    return RollUp.objects.create(
        span=span, queue_name=queue, task=task, starts_at=starts_at, **times, **({"depth": None} | fields)
    )


def look(**query: str) -> Dashboard:
    return Dashboard.of(query, lambda permission: True)


def card(label: str, **query: str) -> Any:
    return next(card for card, _ in look(**query).cards if str(card.label) == label)


def chart(name: str, **query: str) -> Any:
    ((_, charts),) = [each for each in look(**query).sections if each[0].name == "charts"]
    return next(each for each in charts if each.name == name)


def values(made: Any) -> dict[str, list[float | None]]:
    return {str(series.label): list(series.values) for series in made.series}


def test_the_cards_say_what_is_there_now() -> None:
    make_job(queue_name="mail", run_after=timedelta(minutes=-3))
    make_job(queue_name="other")
    make_job("running", locked_at=timedelta(minutes=-12))
    make_job("scheduled", attempts=1)
    make_job("failed", finished_at=timedelta(hours=-2))
    make_job("failed", finished_at=timedelta(hours=-30))
    make_worker(name="a")
    make_rollup(minutes=2, completed=60, waited=[0.1] * 60)
    found = {str(card.label): (card.value, card.detail, card.level) for card, _ in look().cards}
    assert found == {
        "queued": ("2", "in 2 queues", ""),
        "oldest waiting": ("3 min", "in mail", "warning"),
        "running": ("1", "the longest for 12 min", ""),
        "jobs per minute": (found["jobs per minute"][0], "over the last 5 min", ""),
        "retrying": ("1", "wait for another attempt", ""),
        "failed in 24 h": ("1", "0 in the last hour", "warning"),
        "recovered in 24 h": ("0", "", ""),
        "workers alive": ("1", "4 slots", ""),
    }
    assert 9 <= float(found["jobs per minute"][0]) <= 12


def test_a_card_alarms() -> None:
    make_job(run_after=timedelta(minutes=-20))
    make_job("failed")
    found = {str(card.label): card.level for card, _ in look().cards}
    assert {label for label, level in found.items() if level == "alarm"} == {
        "oldest waiting", "failed in 24 h", "workers alive",
    }  # fmt: skip


def test_who_waits_in_a_paused_queue_alarms_nobody() -> None:
    make_job(queue_name="mail", run_after=timedelta(hours=-3))
    Queue.pause("mail", by="ann")
    found = card("oldest waiting")
    assert (found.value, found.detail, found.level) == ("3 h", "in mail, paused", "")
    make_job(queue_name="other", run_after=timedelta(minutes=-2))
    found = card("oldest waiting")
    assert (found.value, found.detail, found.level) == ("2 min", "in other", "warning")
    assert found.address == f"{LIST}?status=queued&queue=other"


@pytest.mark.parametrize(
    ("of_hour", "level"), [(0, ""), (1, "warning"), (MANY_RECOVERED - 1, "warning"), (MANY_RECOVERED, "alarm")]
)
def test_jobs_of_dead_workers_are_counted_by_their_roll_ups(of_hour: int, level: str) -> None:
    make_rollup(minutes=30, recovered=of_hour)
    make_rollup(minutes=90, recovered=4)
    make_rollup(minutes=60 * 25, recovered=1_000)
    make_rollup(minutes=31, recovered=0, queue="mail")
    found = card("recovered in 24 h")
    assert (found.value, found.detail) == (str(of_hour + 4), f"{of_hour} in the last hour")
    assert (found.level, found.address) == (level, WORKERS)
    assert card("recovered in 24 h", queue="mail").value == "0"


def test_workers_that_are_late_or_dead_are_named() -> None:
    make_worker(name="a")
    make_worker(name="b", heartbeat=timedelta(minutes=-10))
    assert (card("workers alive").value, card("workers alive").detail) == ("1", "1 is late or dead")


def test_the_cards_of_one_queue() -> None:
    make_job(queue_name="mail")
    make_job(queue_name="other")
    make_job("failed", queue_name="other")
    make_worker(name="a", queues=["other"])
    make_rollup(minutes=2, completed=50)
    make_rollup(minutes=2, completed=10, queue="mail")
    found = {str(card.label): card for card, _ in look(queue="mail").cards}
    assert found["queued"].value == "1"
    assert found["queued"].address == f"{LIST}?status=queued&queue=mail"
    assert found["failed in 24 h"].value == "0"
    assert found["workers alive"].value == "0"
    assert 1.5 <= float(found["jobs per minute"].value) <= 2


def test_throughput_is_added_up_in_buckets_and_zero_where_nothing_is_written() -> None:
    make_rollup(minutes=5, completed=7, failed=1)
    make_rollup(minutes=7, completed=2, retried=3)
    make_rollup(minutes=6, completed=100, queue="mail")  # is in that of all queues already
    found = values(chart("throughput"))
    assert {name: len(numbers) for name, numbers in found.items()} == {"failed": 60, "retried": 60, "completed": 60}
    assert found["completed"][54] == 7
    assert found["completed"][52] == 2
    assert sum(number or 0 for number in found["completed"]) == 9
    assert sum(found["failed"]) == 1  # type: ignore[arg-type]  # no number is missing
    assert [series.summary for series in chart("throughput").series] == ["1", "3", "9"]


def test_the_minutes_of_a_longer_time_are_added_up() -> None:
    for minutes in range(30):
        make_rollup(minutes=minutes, completed=1, ran=[0.2, 0.2])
    completed = values(chart("throughput", range="6h"))["completed"]
    assert len(completed) == 72
    assert sum(number or 0 for number in completed) == 30
    assert max(number or 0 for number in completed) == 5


def test_a_week_is_read_from_hours() -> None:
    make_rollup(minutes=60 * 24 * 3, completed=5, span=Span.HOUR)
    make_rollup(minutes=60 * 24 * 2, completed=9, span=Span.MINUTE)
    assert sum(number or 0 for number in values(chart("throughput", range="7d"))["completed"]) == 5


def test_quantiles_are_those_of_all_processes_and_queues_and_gaps_where_nothing_ended() -> None:
    make_rollup(minutes=5, completed=20, waited=[0.02] * 19 + [4.0], ran=[0.2] * 20)
    found = values(chart("waited"))
    assert found["p50"][54] == pytest.approx(0.025, abs=0.015)
    assert found["p95"][54] == pytest.approx(0.025, abs=0.001)
    assert found["p50"][53] is None
    assert chart("waited").series[0].summary != "\N{EN DASH}"
    assert chart("ran").scale.top >= 0.2


def test_jobs_that_have_not_begun_are_a_line_beside_the_waiting_times() -> None:
    """They wait for 7 minutes, and the quantiles, which know jobs that have begun alone, say 0.02 s."""
    make_rollup(minutes=5, completed=20, waited=[0.02] * 20)
    assert set(values(chart("waited"))) == {"p50", "p95"}
    for minutes, oldest in ((6, 360.0), (4, 480.0)):
        make_rollup(minutes=minutes, depth=3, oldest_seconds=oldest)
    (line,) = [series for series in chart("waited").series if series.style == "oldest"]
    assert [value for value in line.values if value is not None] == [360.0, 480.0]
    assert line.summary == "8 min"
    assert {str(series.label) for series in chart("ran").series} == {"p50", "p95"}


def test_the_deepest_queues_have_lines_of_their_own_and_the_others_one_together() -> None:
    names = [f"q{number}" for number in range(7)]
    for number, name in enumerate(names):
        make_rollup(minutes=0, span=Span.EVER, queue=name)
        make_rollup(minutes=1, span=Span.HOUR, queue=name, depth=10 * number)
        make_rollup(minutes=1, queue=name, depth=10 * number)
    make_rollup(minutes=1, depth=sum(10 * number for number in range(7)))
    found = values(chart("depth"))
    assert list(found) == ["q6", "q5", "q4", "q3", "q2", "other queues"]
    assert [numbers[58] for numbers in found.values()] == [60, 50, 40, 30, 20, 10]
    assert found["q6"][57] is None
    assert list(values(chart("depth", queue="q1"))) == ["q1"]


def content(name: str, **query: str) -> Any:
    return next(content for section, content in look(**query).sections if section.name == name)


def test_the_slowest_tasks_come_first() -> None:
    for task, seconds, failed in (("fast", 0.1, 0), ("slow", 8.0, 1), ("slower", 40.0, 3)):
        make_rollup(minutes=3, queue="mail", task=task, completed=9, ran=[seconds] * 10, retried=failed,
                    ran_seconds=10 * seconds)  # fmt: skip
    make_rollup(minutes=3, queue="mail", completed=9, ran=[100.0] * 10, ran_seconds=1000.0)
    found = content("slowest_tasks")
    assert [each.task for each in found] == ["slower", "slow", "fast"]
    assert (found[0].failed_share, found[2].failed_share, found[1].attempts) == ("25 %", "0 %", "10")
    assert content("slowest_tasks", queue="other") == []


def test_the_jobs_that_run_for_the_longest_time() -> None:
    jobs = [
        make_job("running", locked_at=timedelta(hours=-hours), locked_by="web/1:0123456789ab", queue_name="mail")
        for hours in (1, 8, 3, 4, 5, 6, 7)
    ]
    found = content("longest_jobs")
    assert [each.id for each in found] == [jobs[index].pk for index in (1, 6, 5, 4, 3)]
    assert (found[0].ran, found[0].worker) == ("8 h", "web/1")
    assert content("longest_jobs", queue="other") == []


def test_the_queues_are_those_of_their_own_page() -> None:
    Queue.pause("mail")
    assert "paused" in str(content("queues")["rows"][0])


def test_the_page_shows_all_of_it(operator: Client) -> None:
    make_job(queue_name="mail", run_after=timedelta(minutes=-3))
    make_rollup(minutes=5, completed=7, failed=1)
    text = operator.get(DASHBOARD).text
    assert "{#" not in text, "a comment of a template has one line"
    for expected in (
        "<title>",
        "As a table",
        f"{LIST}?status=queued",
        "failed: 1",
        "3 min",
        "The figures were gathered",
    ):
        assert expected in text


@pytest.mark.parametrize("address", ["?range=x", "?range=24h", "?range=7d", "?queue=%00x", f"?queue={'x' * 5000}"])
def test_any_address_has_an_answer(operator: Client, address: str) -> None:
    assert operator.get(DASHBOARD + address).status_code == 200


def test_the_number_of_queries_is_fixed(operator: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert operator.get(DASHBOARD).status_code == 200
        return len(captured)

    operator.get(DASHBOARD)  # and the notices, which are cached
    before = queries()
    for number in range(8):
        make_job(queue_name=f"q{number}")
        make_job("running", queue_name=f"r{number}")
        make_worker(name=f"w{number}")
        make_rollup(minutes=3, queue=f"q{number}", task="t", completed=1, ran=[1.0])
    assert queries() == before <= 30


def test_without_a_permission_to_view_jobs_there_is_no_dashboard(log_in: Callable[..., Client]) -> None:
    assert log_in("view_queue").get(DASHBOARD).status_code == 403


def test_a_card_is_no_link_for_those_who_may_not_see_the_list(log_in: Callable[..., Client]) -> None:
    text = log_in("view_job").get(DASHBOARD).text
    assert f'href="{LIST}?status=running"' in text
    assert "/worker/" not in text


def test_it_is_linked_from_the_list_and_the_index(operator: Client) -> None:
    for address in ("/admin/", "/admin/django_skipqueue/", LIST, "/admin/django_skipqueue/queue/"):
        assert f'href="{DASHBOARD}"' in operator.get(address).text, address


def test_batches_that_run_and_those_with_failures() -> None:
    assert content("batches")["rows"] == []
    for number in range(7):
        JobBatch.objects.create(name=f"runs {number}")
        JobBatch.objects.create(name=f"failed {number}", finished_at=Now(), completed=0, failed=1, discarded=0)
    JobBatch.objects.create(name="good", finished_at=Now(), completed=1, failed=0, discarded=0)
    cells = [str(row[0][1]) for row in content("batches")["rows"]]
    names = [f"runs {number}" for number in (6, 5, 4, 3, 2)] + [f"failed {number}" for number in (6, 5, 4, 3, 2)]
    assert [name for name, cell in zip(names, cells, strict=True) if f">{name}</a>" not in cell] == []

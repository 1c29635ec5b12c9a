"""What the page of a task shows of roll-ups: attempts by hour and by deployment, and causes of failures."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from django_skipqueue.models import Deployment
from django_skipqueue.parts.history.models import Span
from django_skipqueue.parts.history.rollups import AttemptCounts
from django_skipqueue.parts.history.task_page import about_task
from django_skipqueue.values import counting

from ....app.failing import BAD_VALUE, UNAVAILABLE
from ....console.admin.conftest import LIST, task_page
from ..failing import record_ended_attempts, record_failures
from .test_dashboard import make_rollup

TASK = BAD_VALUE.task
HOUR = 3_600.0

pytestmark = pytest.mark.django_db


def make_deployment(name: str, *, minutes: float) -> None:
    Deployment.objects.create(name=name, first_at=Now() - timedelta(minutes=minutes))


def attempt_counts(seconds: float, **counts_by_outcome: Any) -> AttemptCounts:
    number = sum(counts_by_outcome.values())
    times = counting.histogram([seconds] * number)
    return AttemptCounts(
        waited=times, ran=times, waited_seconds=seconds * number, ran_seconds=seconds * number, **counts_by_outcome
    )


def test_the_charts_of_a_task_count_its_attempts_in_all_queues_by_hour() -> None:
    record_ended_attempts(TASK, attempt_counts(2.0, completed=3), seconds_ago=5 * HOUR)
    record_ended_attempts(TASK, attempt_counts(2.0, retried=1), seconds_ago=5 * HOUR, queue_name="mail")
    record_ended_attempts("another.task", attempt_counts(9.0, completed=7), seconds_ago=5 * HOUR)
    content = about_task(TASK)
    assert content["queue_names"] == ["default", "mail"]
    attempts, waited, ran = content["charts"]
    assert {series.style: sum(series.values) for series in attempts.series} == {
        "failed": 0,
        "retried": 1,
        "completed": 3,
    }
    assert attempts.series[2].values[-6] == 3, "completed five hours ago"
    for chart in (waited, ran):
        p50, p95 = (series.values[-6] for series in chart.series)
        assert 1.5 <= p50 <= p95 <= 2.0


def test_attempts_are_counted_by_deployment() -> None:
    make_deployment("unused", minutes=300)
    make_deployment("4f2a", minutes=200)
    make_deployment("5b3c", minutes=60)
    record_ended_attempts(TASK, attempt_counts(2.0, completed=3, failed=1), seconds_ago=100 * 60)
    record_ended_attempts(TASK, attempt_counts(4.0, completed=1, retried=1), seconds_ago=30 * 60)
    record_ended_attempts("another.task", attempt_counts(9.0, completed=7), seconds_ago=30 * 60)
    newer, older = about_task(TASK)["deployments"]
    assert (newer["name"], newer["attempts"], newer["failed"], newer["ran"]) == ("5b3c", "2", "50.0 %", "4.0 s")
    assert (older["name"], older["attempts"], older["failed"], older["waited"]) == ("4f2a", "4", "25.0 %", "2.0 s")


def test_the_page_of_a_task_lists_the_causes_of_its_failures_alone(operator: Client) -> None:
    record_failures(BAD_VALUE)
    record_failures(UNAVAILABLE)
    html = operator.get(task_page(TASK)).text
    assert BAD_VALUE.place in html
    assert UNAVAILABLE.place not in html
    assert "Deployments" not in html
    assert "No attempt has failed in the last 7 days." in operator.get(task_page("another.task")).text


def test_charts_mark_the_time_of_a_deployment(operator: Client) -> None:
    cause = f"{LIST}failures/cause/?task={TASK}&cause=builtins.ValueError+in+{BAD_VALUE.place}"
    record_failures(BAD_VALUE)
    addresses = (f"{LIST}dashboard/", cause, task_page(TASK))
    assert not [address for address in addresses if "skipqueue-change" in operator.get(address).text]
    make_deployment("<4f2a>", minutes=30)
    for address in addresses:
        html = operator.get(address).text
        assert '<line class="skipqueue-change"' in html
        assert "<title>deployment &lt;4f2a&gt; since" in html
        assert "<4f2a>" not in html


def test_the_number_of_queries_does_not_grow_with_the_roll_ups(django_assert_num_queries: Any) -> None:
    for number in range(8):
        make_rollup(minutes=3, span=Span.EVER, queue=f"q{number}", task=TASK)
        make_rollup(minutes=3, span=Span.HOUR, queue=f"q{number}", task=TASK, completed=1, ran=[1.0])
        record_failures(BAD_VALUE._replace(place=f"f{number}"))
    with django_assert_num_queries(6):
        about_task(TASK)

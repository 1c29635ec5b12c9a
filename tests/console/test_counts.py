"""`counts`: counting stops one row above the cap, and how such a count is written."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console import counts
from django_skipqueue.console.counts import Count, expected
from django_skipqueue.models import Job

from ..app.rows import make_job


@pytest.fixture
def cap_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)


@pytest.mark.usefixtures("cap_of_three", "db")
def test_counting_stops_one_row_above_the_cap() -> None:
    for _ in range(5):
        make_job()
    with CaptureQueriesContext(connection) as queries:
        assert Count.of(Job.objects.order_by("-id")).found == 4
    assert "LIMIT 4" in queries[0]["sql"]


@pytest.mark.parametrize(
    ("found", "text", "in_words"),
    [(0, "0", "0"), (7, "7", "7"), (10_000, "10,000", "10,000"), (10_001, "10,000+", "more than 10,000")],
)
def test_a_capped_count_says_that_there_are_more(found: int, text: str, in_words: str) -> None:
    assert (str(Count(found)), Count(found).in_words) == (text, in_words)


@pytest.mark.parametrize(
    # The number of jobs counted, which stops at 10,001; an estimate by PostgreSQL; and the text.
    ("found", "about", "in_words"),
    [
        (10_001, 9_996_543, "about 10,000,000"),
        (10_001, 190_639, "about 190,000"),
        (10_001, 9_000, "more than 10,000"),
        (10_001, 0, "more than 10,000"),
        (7, 1_000_000, "7"),
    ],
)
def test_a_count_above_the_cap_may_be_written_as_an_estimate(found: int, about: int, in_words: str) -> None:
    count = Count(found).or_about(about)
    assert count.in_words == in_words
    number_in_text = in_words.rpartition(" ")[2].replace(",", "")
    assert count.shown == int(number_in_text)


@pytest.mark.django_db
def test_the_number_of_jobs_is_estimated_by_the_planner_of_postgresql() -> None:
    for number in range(300):
        make_job("failed" if number % 3 else "queued", task="a" if number % 2 else "b")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE skipqueue_job")
    with CaptureQueriesContext(connection) as queries:
        assert 150 <= expected(Job.objects.failed()) <= 250
        assert 60 <= expected(Job.objects.failed().filter(task="a").order_by("finished_at")) <= 140
    assert all(query["sql"].startswith("EXPLAIN ") for query in queries.captured_queries)


def test_a_lower_bound_is_written_with_at_least() -> None:
    assert Count(7, is_lower_bound=True).in_words == "at least 7"
    assert Count(10_001, is_lower_bound=True).in_words == "more than 10,000"

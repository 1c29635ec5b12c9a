"""`counts`: counting stops at the cap."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Job
from django_skipqueue.operators import counts
from django_skipqueue.operators.counts import Count

from ..app.rows import make_job


@pytest.fixture
def _low_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "CAP", 3)


@pytest.mark.usefixtures("_low_cap", "db")
def test_no_more_rows_are_counted_than_the_cap_and_one() -> None:
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


def test_a_count_of_a_part_is_the_least() -> None:
    assert Count(7, is_least=True).in_words == "at least 7"
    assert Count(10_001, is_least=True).in_words == "more than 10,000"

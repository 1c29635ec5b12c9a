"""`periods`: the ids of the jobs that were enqueued between two times."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from django_skipqueue.console.periods import LONGEST_ENQUEUE, Period
from django_skipqueue.models import Job

from ..app.rows import make_job
from ..queue.test_sql import nodes

pytestmark = pytest.mark.django_db

INSERT_JOBS = """
INSERT INTO skipqueue_job (id, queue_name, task, args, kwargs, status, enqueued_at)
SELECT 7 * number, 'default', 'a.b', '[]', '{}', 'queued', timestamptz '2026-01-01' + number * interval '1 minute'
FROM generate_series(1, %s) AS number
"""

ROW_COUNT = 5_000


@pytest.fixture
def a_job_each_minute() -> None:
    """Make one job for each minute from the first of January on, with gaps between the ids."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT_JOBS, [ROW_COUNT])


def at_minute(minute: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


@pytest.mark.usefixtures("a_job_each_minute")
@pytest.mark.parametrize(
    "minute", [-10, 0, 1, 2, 3, 1_234, 2_500.5, ROW_COUNT - 1, ROW_COUNT, ROW_COUNT + 1, ROW_COUNT + 100]
)
def test_the_range_of_ids_contains_all_jobs_of_the_period_and_few_others(minute: float) -> None:
    for period in (
        Period(at_minute(minute)),
        Period(before=at_minute(minute)),
        Period(at_minute(minute), at_minute(minute + 5)),
    ):
        in_period = Job.objects.filter(period.of("enqueued_at"))
        by_id = Job.objects.filter(period.has_ids)
        assert set(in_period) <= set(by_id)
        assert by_id.count() - in_period.count() <= 2 * (LONGEST_ENQUEUE / timedelta(minutes=1) + 1), period


@pytest.mark.usefixtures("a_job_each_minute")
def test_the_ids_of_a_period_are_found_by_reading_a_few_rows_of_the_primary_key() -> None:
    with CaptureQueriesContext(connection) as queries:
        first, end = Period(at_minute(4_000), at_minute(4_500)).ids
    # The job of each minute has seven times the number of the minute as its id.
    assert 7 * 3_998 < first <= 7 * 3_999 < 7 * 4_500 < end <= 7 * 4_501
    assert len(queries) == 2
    for query in queries.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql']}")
            ((plan_json,),) = cursor.fetchall()
        nodes_on_job_table = [
            node for node in nodes(plan_json[0]["Plan"]) if node.get("Relation Name") == "skipqueue_job"
        ]
        assert {node["Index Name"] for node in nodes_on_job_table} == {"skipqueue_job_pkey"}
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes_on_job_table) < 20


def test_a_duration_counts_back_from_now_by_the_clock_of_the_database() -> None:
    old_job, young_job = (make_job(enqueued_at=timedelta(hours=-hours)) for hours in (3, 1))
    assert [*Job.objects.filter(Period(timedelta(hours=2)).has_ids)] == [young_job]
    assert [*Job.objects.filter(Period(before=timedelta(hours=2)).has_ids)] == [old_job]


def test_an_insert_that_has_waited_for_a_lock_is_not_missed() -> None:
    """`enqueued_at` is the time when the INSERT began to wait, so jobs that were enqueued later may have lower ids."""
    earlier_job, start_of_insert = make_job(enqueued_at=timedelta(minutes=-10)), timedelta(minutes=-5, seconds=-50)
    jobs = [make_job(enqueued_at=time) for time in (timedelta(minutes=-5), start_of_insert, timedelta(minutes=-4))]
    jobs_in_period = Job.objects.filter(Period(timedelta(minutes=6), timedelta(minutes=5, seconds=30)).has_ids)
    assert jobs[1] in jobs_in_period
    assert earlier_job not in jobs_in_period


def test_without_jobs_a_period_has_no_ids() -> None:
    assert Period(now()).ids == Period(before=now()).ids == (0, 0)
    assert not Period()
    assert Period().of("enqueued_at") == Q()

"""`Criteria`: the jobs that meet all conditions, read a window at a time."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console import search
from django_skipqueue.console.job_states import RETRYING
from django_skipqueue.console.periods import Period
from django_skipqueue.console.search import Criteria

from ..app.rows import make_job, plan_of

# Inserts one job for each second up to now, in five statuses. The parameter is the number of jobs.
INSERT_JOBS = """
INSERT INTO skipqueue_job
    (queue_name, task, args, kwargs, status, priority, attempts, run_after, enqueued_at, locked_at, finished_at)
SELECT
    (ARRAY['default', 'mail', 'reports'])[1 + number %% 3], 'a.b', '[]', '{}', status, 0, 1, moment, moment,
    CASE WHEN status = 'running' THEN moment END,
    CASE WHEN status IN ('completed', 'failed', 'discarded') THEN moment END
FROM
    generate_series(1, %s) AS number,
    LATERAL (SELECT now() - number * interval '1 second' AS moment) AS time_of_job,
    LATERAL (
        SELECT (ARRAY['completed', 'queued', 'failed', 'scheduled', 'running'])[1 + number %% 5] AS status
    ) AS chosen
"""

ROW_COUNT = 20_000

STATES = [None, "completed", "queued", "failed", RETRYING, "running"]


@pytest.fixture
def many_jobs(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "WINDOW_SIZE", 1_000)
    with connection.cursor() as cursor:
        cursor.execute(INSERT_JOBS, [ROW_COUNT])
        cursor.execute("VACUUM ANALYZE skipqueue_job")


@pytest.mark.usefixtures("many_jobs")
def test_every_window_is_found_by_the_keys_of_an_index() -> None:
    for state in STATES:
        with CaptureQueriesContext(connection) as queries:
            criteria = Criteria(state=state)
            ids = [job.pk for window in criteria.windows() for job in criteria.within(window)]
        assert len(ids) == len(set(ids)) == (ROW_COUNT if state is None else ROW_COUNT // 5), state
        for query in queries.captured_queries[3:]:  # skip the first window's three queries: it has no lower bound
            plan = plan_of(query["sql"])
            assert "Seq Scan" not in plan, (state, plan)
            assert re.search(r"Index Cond: .*[<>] ", plan), (state, plan)


@pytest.mark.usefixtures("many_jobs")
@pytest.mark.parametrize("state", ["completed", "failed", "running"])
def test_only_windows_within_the_period_are_read(state: str) -> None:
    criteria = Criteria(state=state, period=Period(timedelta(seconds=ROW_COUNT / 4)), task="a.b")
    windows = list(criteria.windows())
    assert len(windows) == 1
    assert 900 <= len(criteria.within(windows[0])) <= 1_000


@pytest.mark.django_db
def test_jobs_with_equal_keys_are_in_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "WINDOW_SIZE", 2)
    for moment in ("2026-01-01T00:00Z", "2026-01-02T00:00Z"):
        for _ in range(5):
            make_job("failed", finished_at=moment)
    criteria = Criteria(state="failed")
    jobs_in_windows = [len(criteria.within(window)) for window in criteria.windows()]
    assert [count for count in jobs_in_windows if count] == [5, 5]

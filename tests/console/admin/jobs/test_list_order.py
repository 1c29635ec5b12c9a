"""Every job list is read in the order of an index, and searched one window of jobs at a time."""

import re
from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console import search as window
from django_skipqueue.console.admin.ui.time_limit import QUERY_SECONDS
from django_skipqueue.console.job_states import Indexed
from django_skipqueue.console.search import cause_query
from django_skipqueue.models import Job, Status
from django_skipqueue.queue.session import limit_statements
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import Cause

from ....app.rows import STATUSES, make_job, plan_of
from ..conftest import LIST

ROW_COUNT = 100_000
# Inserts one job for each second up to now, in all statuses. Both parameters are the number of jobs.
INSERT_JOBS = """
INSERT INTO skipqueue_job
    (queue_name, task, args, kwargs, status, priority, run_after, enqueued_at, locked_at, finished_at)
SELECT
    (ARRAY['default', 'mail', 'reports'])[1 + number %% 3], (ARRAY['a.jobs.one', 'b.jobs.two'])[1 + number %% 2],
    '[]', jsonb_build_object('payment_id', number), status, 0, moment, moment,
    CASE WHEN status = 'running' THEN moment END,
    CASE WHEN status IN ('completed', 'failed', 'discarded') THEN moment END
FROM
    generate_series(1, %s) AS number,
    LATERAL (SELECT now() - (%s - number) * interval '1 second' AS moment) AS time_of_job,
    LATERAL (
        SELECT CASE
            WHEN number %% 100 < 60 THEN 'completed' WHEN number %% 100 < 75 THEN 'queued'
            WHEN number %% 100 < 85 THEN 'failed' WHEN number %% 100 < 93 THEN 'scheduled'
            WHEN number %% 100 < 98 THEN 'discarded' ELSE 'running'
        END AS status
    ) AS chosen
"""

# Makes all finished jobs fail. The jobs of one cause (exception and function) lie apart from each other in the table.
FAIL_FINISHED_JOBS = """
UPDATE skipqueue_job
SET
    status = 'failed', task = 'a.jobs.one',
    errors = jsonb_build_array(jsonb_build_object('exception', 'KeyError', 'place', 'a.jobs.step_' || id %% 7))
WHERE finished_at IS NOT NULL
"""

CAUSE = Cause("a.jobs.one", "KeyError", "a.jobs.step_3")

# The index that PostgreSQL reads for the list of each status.
INDEXES = {
    None: "skipqueue_job_pkey",
    "scheduled": "skipqueue_job_admit",
    "queued": "skipqueue_job_claim",
    "running": "skipqueue_job_recover",
    "completed": "skipqueue_job_prune",
    "failed": "skipqueue_job_prune",
    "discarded": "skipqueue_job_prune",
}


@pytest.fixture
def _many_jobs(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT_JOBS, [ROW_COUNT, ROW_COUNT])
        cursor.execute("VACUUM ANALYZE skipqueue_job")


@pytest.mark.usefixtures("_many_jobs")
def test_the_first_page_of_every_list_is_read_from_an_index_without_sorting() -> None:
    for status, index in INDEXES.items():
        plan = plan_of_first_page(Indexed(status))
        assert re.search(rf"Index Scan (Backward )?using {index}", plan), (status, plan)
        assert not re.search(r"^ *(-> +)?Sort  \(", plan, re.MULTILINE), (status, plan)
    for status, index in {"queued": "skipqueue_job_claim", "failed": "skipqueue_job_failed"}.items():
        plan = plan_of_first_page(Indexed.covering(status, "mail"))
        assert re.search(rf"Index Scan (Backward )?using {index}", plan), (status, plan)


@pytest.mark.usefixtures("_many_jobs")
@pytest.mark.parametrize("state", ["failed", "retrying"])
def test_the_list_of_a_cause_is_read_from_its_index(operator: Client, state: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        operator.get(f"{LIST}?status={state}&task=a.jobs.one&cause=KeyError+in+a.jobs.one")
    statements = [query["sql"] for query in queries if "hashtextextended" in query["sql"]]  # the index of causes
    list_statement, *_ = (statement for statement in statements if "args_text" in statement)
    plan = plan_of(list_statement)
    assert "Index Scan Backward using skipqueue_job_cause" in plan, plan
    assert not re.search(r"^ *(-> +)?Sort  \(", plan, re.MULTILINE), plan


@pytest.mark.usefixtures("_many_jobs")
def test_jobs_of_a_cause_are_counted_by_their_index_even_if_few_are_expected(operator: Client) -> None:
    """PostgreSQL has no statistics of causes, and expects a two-hundredth of the failed jobs."""
    check_counts_of_a_cause(operator, "?status=failed&")


def check_counts_of_a_cause(operator: Client, address: str) -> None:
    """Make many jobs fail, and check that the page counts the jobs with `CAUSE` by the index of causes."""
    with connection.cursor() as cursor:
        cursor.execute(FAIL_FINISHED_JOBS, [])
        cursor.execute("VACUUM ANALYZE skipqueue_job")
    with CaptureQueriesContext(connection) as queries:
        assert operator.get(f"{LIST}{address}{cause_query(CAUSE)}").status_code == 200
    statements = [query["sql"] for query in queries if "hashtextextended" in query["sql"]]  # the index of causes
    counting_statements = [statement for statement in statements if "COUNT(" in statement]
    assert len(counting_statements) == 2  # one for the failed jobs, and one for the retrying jobs
    for counting_statement in counting_statements:
        with transaction.atomic():
            limit_statements(Store.default(), QUERY_SECONDS)
            plan = plan_of(counting_statement)
        assert re.search("Index Scan (Backward )?using skipqueue_job_cause", plan), plan
        assert not re.search("Bitmap|Sort", plan), plan


def plan_of_first_page(indexed: Indexed) -> str:
    """Return PostgreSQL's plan of the statement that reads the first 50 jobs of the list."""
    statement, _ = indexed.jobs()[:50].query.sql_with_params()
    quoted_parameters = (f"'{value}'" for value in (indexed.status, indexed.queue_name) if value is not None)
    return plan_of(str(statement) % tuple(quoted_parameters))


@pytest.mark.usefixtures("_many_jobs")
@pytest.mark.parametrize("window_size", [20_000])
def test_no_page_reads_the_whole_table(operator: Client, window_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW_SIZE", window_size)
    for address in list_queries():
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(LIST + address).status_code == 200
        for query in queries:
            if '"skipqueue_job"' in query["sql"] and query["sql"].startswith("SELECT"):
                plan = plan_of(query["sql"])
                assert "Seq Scan on skipqueue_job" not in plan, (address, query["sql"], plan)


def list_queries() -> Iterator[str]:
    yield ""
    yield from (f"?status={status}" for status in STATUSES)
    yield from ("?queue=mail", "?queue=nobody", "?status=failed&queue=mail", "?status=queued&queue=mail")
    yield from ("?task=a.jobs.one", "?task=nothing", "?status=completed&task=nothing", "?status=queued&task=nothing")
    yield from ("?time=hour", "?time=month", "?status=failed&time=hour", "?status=completed&time=week")
    yield from ("?status=retrying", "?q=KeyError", "?q=id%3D42", "?q=two&look=2", "?q=42", "?status=retrying&q=two")
    cause = "task=a.jobs.one&cause=KeyError+in+a.jobs.one"
    yield from (f"?status={state}&{cause}" for state in ("failed", "retrying", "completed"))
    yield from (f"?{cause}", "?status=failed&cause=KeyError", f"?status=failed&{cause}&q=two")
    yield from (
        "?q=99999",
        "?q=two",
        "?q=payment_id%3D42",
        "?status=failed&q=nothing",
        "?p=200",
        "?status=completed&p=100",
    )


@pytest.mark.django_db
class TestEdge:
    """The edge of a list, at a position, is the sort key of its job at this position."""

    @pytest.mark.parametrize("status", [None, *STATUSES])
    def test_a_query_up_to_the_edge_returns_the_first_jobs_of_the_list(self, status: Status | None) -> None:
        for _ in range(5):
            make_job(status or "completed")
        indexed = Indexed(status)
        edge = indexed.edge(2)
        assert edge is not None
        all_jobs = list(indexed.jobs())
        jobs_up_to_edge = list(indexed.jobs().filter(indexed.order.up_to(edge)))
        assert jobs_up_to_edge == all_jobs[: len(jobs_up_to_edge)]
        assert 2 <= len(jobs_up_to_edge) < 5

    def test_a_list_without_jobs_behind_the_edge_has_no_edge(self) -> None:
        for _ in range(2):
            make_job("failed")
        make_job("completed")
        assert Indexed("failed").edge(2) is None
        assert Indexed().edge(2) is not None

    def test_the_edge_of_queued_jobs_follows_the_order_of_claims(self) -> None:
        last = make_job("queued", queue_name="b", priority=5)
        low = make_job("queued", queue_name="a", priority=-1)
        first, second = (make_job("queued", queue_name="a", priority=9) for _ in range(2))
        indexed = Indexed("queued")
        assert list(indexed.jobs()) == [first, second, low, last]
        edge = indexed.edge(2)
        assert edge is not None
        assert list(Job.objects.queued().filter(indexed.order.up_to(edge)).order_by("pk")) == [first, second]

"""Whether other rows in the job table slow a drain down.

Both measurements of a ratio are made in the same database, one after the other.
"""

import statistics
import subprocess

from django.db import connection, transaction

from .. import jobs, workers
from ..databases import connect
from ..figures import Figures
from ..sizes import Sizes

FILL = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, attempts, lease, run_after, enqueued_at, locked_by, started_at, finished_at
)
SELECT
    %(queue_name)s, 'benchmarks.jobs.noop', jsonb_build_array(n), '{}', %(status)s,
    CASE WHEN finished THEN 1 ELSE 0 END, CASE WHEN finished THEN 2 ELSE 0 END,
    now() + %(delay)s + n * interval '1 ms', now(), CASE WHEN finished THEN gen_random_uuid()::text ELSE '' END,
    CASE WHEN finished THEN now() END, CASE WHEN finished THEN now() - n * interval '1 ms' END
FROM generate_series(1, %(count)s) AS n, (SELECT %(status)s = 'completed' AS finished) AS kind
"""


def history(sizes: Sizes) -> Figures:
    """A drain beside finished jobs that are kept ÷ one without."""
    return _with_and_without(sizes, sizes.finished, status="completed", delay="-1 day")


def future(sizes: Sizes) -> Figures:
    """A drain beside jobs that are due tomorrow ÷ one without."""
    return _with_and_without(sizes, sizes.future, status="scheduled", delay="1 day")


def other_queue(sizes: Sizes) -> Figures:
    """A drain beside queued jobs of another queue ÷ one without."""
    return _with_and_without(sizes, sizes.others, status="queued", queue_name="other", delay="-1 day")


def snapshot(sizes: Sizes) -> Figures:
    """A drain while a `REPEATABLE READ` transaction stays open: speed of its last fifth ÷ its first."""
    last = workers.fill(jobs.noop, sizes.snapshot)
    with connect() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM skipqueue_worker")
        subprocess.run(workers.runworker("--drain"), check=True, stderr=subprocess.DEVNULL)
        reader.execute("ROLLBACK")
    seconds, _ = workers.measure_drain_in_database(last, sizes.snapshot)
    first, fifth = _seconds_of_fifths()
    return {
        "jobs/s": sizes.snapshot / seconds,
        "jobs/s in the last fifth": sizes.snapshot / 5 / fifth,
        "last fifth ÷ first": first / fifth,
    }


def _with_and_without(sizes: Sizes, count: int, *, status: str, delay: str, queue_name: str = "default") -> Figures:
    without = _median_rate(sizes)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(FILL, {"queue_name": queue_name, "status": status, "delay": delay, "count": count})
    beside = _median_rate(sizes)
    return {"jobs/s": beside, "jobs/s without": without, "with ÷ without": beside / without}


def _median_rate(sizes: Sizes) -> float:
    rates = [workers.drain(jobs.noop, sizes.jobs, "--queues", "default")["jobs/s"] for _ in range(sizes.rounds)]
    return statistics.median(rates)


def _seconds_of_fifths() -> tuple[float, float]:
    """How long the first fifth and the last fifth of the jobs took."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM ends[2] - ends[1])::float8, extract(epoch FROM ends[4] - ends[3])::float8"
            " FROM (SELECT percentile_disc(ARRAY[0, 0.2, 0.8, 1]) WITHIN GROUP (ORDER BY finished_at) AS ends"
            " FROM skipqueue_job) AS drain"
        )
        first, last = cursor.fetchone()
    if not (first and last):
        raise ValueError("Too few jobs: a fifth of them is one batch.")
    return first, last

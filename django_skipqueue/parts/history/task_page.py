"""What the history adds to a task's page: attempts and times by hour and by deployment, and causes of failures."""

from datetime import datetime, timedelta
from typing import Any

from django.utils.formats import date_format, number_format
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext

from ...console.admin.charts import LocalTimes, TimeAxis
from ...console.admin.dashboard import HOUR_SECONDS
from ...console.counts import grouped
from ...console.durations import span
from ...queue.store import Store
from .dashboard import Timeline, deployment_marks
from .failures import WEEK_HOURS, shown_causes
from .models import Span

# Sent by the task page. Returns the time by the database's clock, in seconds since the epoch, and the queues that have
# had jobs of the task. Reads the rows since the beginning. Index: the primary key of the roll-ups.
QUEUES_OF_TASK = """
SELECT
    date_part('epoch', statement_timestamp()),
    ARRAY (
        SELECT queue_name FROM skipqueue_rollup WHERE span = 0 AND task = %(task)s ORDER BY queue_name LIMIT %(limit)s
    )
"""

# Sent by the task page. Returns the newest deployments: the name, the start, and for the time until the next deployment
# the number of attempts, the number of failed attempts, and the sums of the seconds that attempts waited and ran. Reads
# the rows of minutes, which supervisors keep for three days. Index: the primary key of the roll-ups.
BY_DEPLOYMENT = """
SELECT
    deployment.name, date_part('epoch', deployment.first_at), counted.attempts, counted.failed, counted.waited,
    counted.ran
FROM
    (
        SELECT name, first_at, COALESCE(lead(first_at) OVER (ORDER BY first_at), 'infinity') AS next_at
        FROM (SELECT name, first_at FROM skipqueue_deployment ORDER BY first_at DESC LIMIT %(limit)s) AS newest
    ) AS deployment,
    LATERAL (
        SELECT
            sum(completed + retried + snoozed + failed + discarded)::bigint AS attempts,
            sum(retried + failed)::bigint AS failed, sum(waited_seconds) AS waited, sum(ran_seconds) AS ran
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = ANY (%(queue_names)s)
            AND task = %(task)s
            AND starts_at >= deployment.first_at
            AND starts_at < deployment.next_at
    ) AS counted
WHERE counted.attempts > 0
ORDER BY deployment.first_at DESC
"""


MOST_QUEUES_OF_TASK = 20

MOST_DEPLOYMENTS_COMPARED = 10

MOST_CAUSES_OF_TASK = 10


def about_task(task: str) -> dict[str, Any]:
    store, zone = Store.default(), get_current_timezone()
    ((now, queue_names),) = store.rows(QUEUES_OF_TASK, {"task": task, "limit": MOST_QUEUES_OF_TASK})
    axis = TimeAxis.up_to(now, width=HOUR_SECONDS, bucket_count=WEEK_HOURS)
    times = LocalTimes(axis, zone, timedelta(days=1))
    timeline = Timeline.of(store, axis, Span.HOUR, queue_names, task)
    values = {"task": task, "queue_names": queue_names, "limit": MOST_DEPLOYMENTS_COMPARED}
    return {
        "queue_names": queue_names,
        "charts": timeline.charts(times, gettext("1 h"), deployment_marks(store, times)),
        "causes": shown_causes(limit=MOST_CAUSES_OF_TASK, task=task),
        "deployments": [
            {
                "name": name,
                "since": date_format(datetime.fromtimestamp(first_at, zone), "DATETIME_FORMAT"),
                "attempts": grouped(attempts),
                "failed": f"{number_format(100 * failed / attempts, 1)} %",
                "waited": span(waited / attempts),
                "ran": span(ran / attempts),
            }
            for name, first_at, attempts, failed, waited, ran in store.rows(BY_DEPLOYMENT, values)
        ],
    }

"""Jobs and tasks that the rules of the verdict must not blame."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from django_skipqueue.models import Schedule
from django_skipqueue.parts.history import rules
from django_skipqueue.parts.history.rollups import WORKER_DIED
from django_skipqueue.values.records import Cause

from ..app.failing import make_failing
from ..app.rows import DEFAULT, make_job
from ..parts.history.failing import record_failures
from ..parts.history.past import DAY, record_attempts
from ..parts.schedules.rows import make_schedule

pytestmark = pytest.mark.django_db


def test_a_job_whose_worker_died_once_is_not_blamed() -> None:
    """When a worker dies, each job that it was running records one death. The rule names their task, and no job."""
    job = make_job("scheduled", task="shop.render", errors=[{"exception": WORKER_DIED}])
    record_attempts("", "", deaths=1)
    record_attempts("shop.render", recovered=3, deaths=1)
    record_failures(Cause("shop.render", WORKER_DIED, ""), 3, job_id=job.pk)
    (finding,) = rules.worker_deaths(DEFAULT)
    assert finding.severity == "warning"
    assert finding.title.endswith(" while shop.render was running, and 3 running jobs were lost")


def test_a_task_that_fails_in_runs_of_a_failing_schedule_is_not_blamed() -> None:
    """`failing-schedule` names the schedule, also while no run is due again after a success or a pause."""
    cause = Cause("shop.export", "builtins.ValueError", "shop.export")
    metadata = {"schedule": {"name": "nightly"}}
    ids = [make_failing(cause, status, metadata=metadata).pk for status in ("failed", "scheduled") * 3]
    ids.append(make_job("completed", task="shop.export", metadata=metadata).pk)
    record_attempts("shop.export", failed=20, completed=1)
    record_failures(cause, 20)
    for runs, finding_count in ((ids[:1], 1), (ids[:2], 0), ([ids[-1], *ids[:4]], 0), ([ids[0], ids[-1], ids[1]], 1)):
        Schedule.objects.all().delete()
        make_schedule("nightly", due=-60, last_job_id=runs[0], earlier_job_ids=runs[1:])
        assert len(list(rules.failing_tasks(DEFAULT))) == finding_count
    Schedule.objects.update(last_job_id=ids[0], earlier_job_ids=ids[1:4], paused_at=Now())
    make_failing(cause, finished_at=timedelta(minutes=-11))
    assert list(rules.failing_tasks(DEFAULT)) == [], "a job of the past says nothing"
    make_failing(cause)
    assert len(list(rules.failing_tasks(DEFAULT))) == 1, "one job in seven is of no schedule"


def test_deaths_of_workers_do_not_count_as_failures_of_the_task() -> None:
    """A quarter of the attempts fail with a KeyError that is known for days. 20 others ended as workers died."""
    cause = Cause("shop.render", "builtins.KeyError", "shop.render")
    record_failures(cause, seconds_ago=5 * DAY)
    record_failures(cause, 5)
    record_failures(Cause("shop.render", WORKER_DIED, ""), 20)
    record_attempts("shop.render", retried=5, completed=15, recovered=20)
    (finding,) = rules.failing_tasks(DEFAULT)
    assert finding.severity == "warning"
    assert ": KeyError, 5 failed attempts" in finding.title

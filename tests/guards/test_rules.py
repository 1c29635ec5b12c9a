"""Jobs and tasks that the rules of the verdict must not blame."""

import pytest

from django_skipqueue.parts.history import rules
from django_skipqueue.parts.history.rollups import WORKER_DIED
from django_skipqueue.values.records import Cause

from ..app.rows import DEFAULT, make_job
from ..parts.history.failing import count_failures
from ..parts.history.past import DAY, count_attempts

pytestmark = pytest.mark.django_db


def test_a_job_whose_worker_died_once_is_not_blamed() -> None:
    """Each job of a machine that dies has one death. The rule names the running task, and not the job."""
    job = make_job("scheduled", task="shop.render", errors=[{"exception": WORKER_DIED}])
    count_attempts("", "", deaths=1)
    count_attempts("shop.render", recovered=3, deaths=1)
    count_failures(Cause("shop.render", WORKER_DIED, ""), 3, job_id=job.pk)
    (finding,) = rules.worker_deaths(DEFAULT)
    assert finding.severity == "warning"
    assert finding.title.endswith(" while shop.render was running, and 3 running jobs were lost")


def test_deaths_of_workers_do_not_count_as_failures_of_the_task() -> None:
    """A quarter of the attempts fail with a KeyError that is known for days. 20 others ended as workers died."""
    cause = Cause("shop.render", "builtins.KeyError", "shop.render")
    count_failures(cause, seconds_ago=5 * DAY)
    count_failures(cause, 5)
    count_failures(Cause("shop.render", WORKER_DIED, ""), 20)
    count_attempts("shop.render", retried=5, completed=15, recovered=20)
    (finding,) = rules.failing_tasks(DEFAULT)
    assert finding.severity == "warning"
    assert ": KeyError, 5 failed attempts" in finding.title

"""Steps in Django's tasks."""

from typing import Any

import pytest

from django_skipqueue.models import Job, JobStep
from django_skipqueue.testing import run_jobs

from .app import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_django_task_with_steps_continues_at_the_step_where_it_stopped() -> None:
    result: Any = tasks.approve.enqueue(5)
    run_jobs()
    job = Job.objects.by_handle(result.id)
    assert (job.status, JobStep.objects.get(name="first").result) == ("blocked", 6)
    assert job.signal("approved", "yes")
    run_jobs()
    result.refresh()
    assert result.return_value == [6, "yes"]

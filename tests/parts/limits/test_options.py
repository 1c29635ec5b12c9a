"""Options of limits on Django's tasks and with the testing kit, and the key of a replaced job."""

from typing import Any

import pytest

from django_skipqueue import by, job, limit, unique_by
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ...app.limits.jobs import halting_sequence, replaced_by_number, two_per_account
from ...harness.processes import statuses

store = Store("default")


@pytest.mark.django_db
def test_run_jobs_runs_blocked_jobs_in_the_transaction_of_a_test() -> None:
    """The transaction of a test never commits, and jobs are admitted only after a commit."""
    two_per_account.defer_many([("a",)] * 5)
    halting_sequence.defer_many([("a", number) for number in range(3)])
    assert statuses() == {"blocked": 8}
    assert [job.status for job in run_jobs()] == ["completed"] * 8


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_arguments_are_replaced_gets_the_new_limit_key() -> None:
    """With the old key, the new account would run one job too many, and the old account one job too few."""
    replaced_by_number.defer(1, "a")
    assert replaced_by_number.defer(1, "b").pk == Job.objects.get().pk
    job = Job.objects.get()
    assert job.limit_key == 'limit:tests.app.limits.jobs.replaced_by_number account="b"'
    assert (job.status, job.capacity) == ("queued", 1)
    replaced_by_number.defer_many([(1, "c"), (2, "c")])
    assert Job.objects.filter(limit_key__endswith='"c"').count() == 2
    assert statuses() == {"queued": 1, "blocked": 1}


def test_one_task_may_be_unique_and_limited() -> None:
    def send(order_id: int) -> None: ...

    send.__module__, send.__qualname__ = "tests.parts.limits.test_options", "send"
    task = job(unique=unique_by("order_id"), sequence=by("order_id"))(send)
    call = task.encoded((7,), {})
    assert call.unique_key
    assert call.columns["limit_key"] == "sequence:tests.parts.limits.test_options.send order_id=7"
    assert (call.columns["limit_kind"], call.columns["capacity"]) == ("halting", 1)
    assert limit(3).capacity == 3


@pytest.mark.parametrize("name", ["", "\0", "\ud800", 7])
def test_a_name_of_a_limit_that_no_index_can_hold_is_refused(name: Any) -> None:
    with pytest.raises(InvalidOption, match="the name of limit must be"):
        limit(1, name=name)

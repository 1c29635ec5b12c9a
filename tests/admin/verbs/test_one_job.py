"""`apply_to_one`: a verb that finds the job changed meanwhile says why nothing was done."""

from collections.abc import Callable

import pytest

from django_skipqueue.console.admin.verbs.table import BUTTONS, RETRY
from django_skipqueue.console.admin.verbs.verb import Button, Instruction, Verb, apply_to_one
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ...app.rows import make_job
from ...app.sessions import Session

pytestmark = pytest.mark.django_db

ANN = Instruction("ann", queue_name="mail", priority=7)


@pytest.mark.parametrize(("verb", "button"), BUTTONS, ids=lambda each: getattr(each, "name", ""))
def test_a_job_that_was_deleted_meanwhile(verb: Verb, button: Button) -> None:
    job = make_job(next(iter(verb.statuses)))
    Job.objects.filter(pk=job.pk).delete()
    result = apply_to_one(verb, button, job, ANN)
    assert (result.message, result.log_entries) == (f"Job {job.pk} was deleted meanwhile.", ())


@pytest.mark.django_db(transaction=True)
def test_a_job_that_somebody_else_is_changing(session: Callable[[], Session]) -> None:
    job = make_job("failed")
    other = session()
    other.begin()
    other(lambda: Store("default").retry([job.pk]))
    assert RETRY.button is not None
    assert "is changing right now" in apply_to_one(RETRY, RETRY.button, job, ANN).message
    other.rollback()

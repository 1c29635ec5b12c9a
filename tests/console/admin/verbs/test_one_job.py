"""`apply_to_one`: if the job has changed meanwhile, a message says why the verb did nothing."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from django_skipqueue.console.admin.verbs.one_job import apply_to_one
from django_skipqueue.console.verbs.table import RETRY
from django_skipqueue.console.verbs.verb import Button, Instruction, Verb
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ....app.rows import make_job
from ....app.sessions import Session
from ....app.verbs import BUTTONS

pytestmark = pytest.mark.django_db

BY_ANN = Instruction("ann", options={"queue_name": "mail", "priority": 7, "run_after": timedelta(hours=1)})


@pytest.mark.parametrize(("verb", "button"), BUTTONS, ids=lambda parameter: getattr(parameter, "name", ""))
def test_a_verb_on_a_job_that_was_deleted_meanwhile_says_so(verb: Verb, button: Button) -> None:
    job = make_job(next(iter(verb.statuses)))
    Job.objects.filter(pk=job.pk).delete()
    result = apply_to_one(verb, button, job, BY_ANN)
    assert (result.message, result.log_entries) == (f"Job {job.pk} has been deleted in the meantime.", ())


@pytest.mark.django_db(transaction=True)
def test_a_verb_on_a_job_whose_row_is_locked_says_so(session: Callable[[], Session]) -> None:
    job = make_job("failed")
    locking_session = session()
    locking_session.begin()
    locking_session(lambda: Store("default").retry([job.pk]))
    assert RETRY.button is not None
    message = apply_to_one(RETRY, RETRY.button, job, BY_ANN).message
    assert message == f"“Retry” did nothing, because a database session has locked the row of job {job.pk}."
    locking_session.rollback()


def test_a_verb_that_did_nothing_for_no_visible_reason_asks_to_try_again() -> None:
    job = make_job("failed")
    retry_that_does_nothing = replace(RETRY, change=lambda *_, **_notes: set())
    assert RETRY.button is not None
    assert (
        "is changing right now. Try again." in apply_to_one(retry_that_does_nothing, RETRY.button, job, BY_ANN).message
    )

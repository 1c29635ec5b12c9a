"""The sentence about the jobs that a blocked job waits for."""

import pytest
from django.utils import timezone

from django_skipqueue.models import Dependency, Job
from django_skipqueue.parts.batches.console import unmet_needs, why_it_waits_for_jobs

from ....app import jobs
from ....app.rows import make_job, multiply

pytestmark = pytest.mark.django_db


def test_the_page_of_a_job_names_the_jobs_for_which_it_waits() -> None:
    needed = jobs.noop.defer_many([()] * 7)
    waits_for_one = jobs.noop.using(after=needed[:1]).defer()
    waits_for_seven = jobs.noop.using(after=needed).defer()
    assert why_it_waits_for_jobs(waits_for_one, timezone.now()) == f"It waits for job {needed[0]}."
    assert (
        why_it_waits_for_jobs(waits_for_seven, timezone.now())
        == f"It waits for 7 jobs: {', '.join(map(str, needed[:5]))}, …."
    )


def test_an_unfinished_needed_job_is_found_among_a_thousand_finished_jobs() -> None:
    multiply(make_job("completed"), 1_200)
    needed = list(Job.objects.values_list("pk", flat=True))
    running = make_job("running")
    waiting_job = jobs.noop.using(after=[*needed, running]).defer()
    Dependency.objects.exclude(needs_job_id=running.pk).update(is_met=True)
    assert why_it_waits_for_jobs(waiting_job, timezone.now()) == f"It waits for job {running.pk}."
    assert [need.needs_job_id for need in unmet_needs(waiting_job, limit=6)] == [running.pk]


def test_a_needed_job_that_has_failed_is_named_first() -> None:
    needed = [make_job("queued") for _ in range(7)]
    failed = make_job("failed")
    waiting_job = jobs.noop.using(after=[*needed, failed]).defer()
    assert f"It needs job {failed.pk}, which has not completed" in why_it_waits_for_jobs(waiting_job, timezone.now())
    assert [need.needs_job_id for need in unmet_needs(waiting_job, limit=6)] == [
        failed.pk,
        *[job.pk for job in needed[:5]],
    ]


def test_the_sentence_says_that_the_needed_job_has_failed() -> None:
    needed = make_job("failed")
    waiting_job = jobs.noop.using(after=[needed]).defer()
    assert why_it_waits_for_jobs(waiting_job, timezone.now()) == (
        f"It needs job {needed.pk}, which has not completed: retry that job, or discard this one."
    )


def test_the_sentence_says_that_the_needed_job_was_deleted() -> None:
    needed = make_job("failed")
    waiting_job = jobs.noop.using(after=[needed]).defer()
    id = needed.pk
    needed.delete()
    assert why_it_waits_for_jobs(waiting_job, timezone.now()) == (
        f"It needs job {id}, which was deleted or pruned before it completed, so it waits for ever. Discard it."
    )


def test_the_sentence_says_that_all_needed_jobs_are_finished() -> None:
    needed = jobs.noop.defer()
    waiting_job = jobs.noop.using(after=[needed]).defer()
    Dependency.objects.update(is_met=True)
    assert "It will be queued within a second or two." in why_it_waits_for_jobs(waiting_job, timezone.now())


def test_a_job_that_waits_for_no_job_has_no_sentence() -> None:
    assert why_it_waits_for_jobs(make_job("blocked"), timezone.now()) == ""

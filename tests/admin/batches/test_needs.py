"""The sentence about the jobs that a blocked job waits for."""

import pytest
from django.utils import timezone

from django_skipqueue.models import Dependency, Job
from django_skipqueue.parts.batches.console import unmet_needs, why_it_waits_for_jobs

from ...app import jobs
from ...app.rows import make_job, multiply

pytestmark = pytest.mark.django_db


def test_the_sentence_names_the_jobs() -> None:
    before = jobs.noop.defer_many([()] * 7)
    one = jobs.noop.using(after=before[:1]).defer()
    many = jobs.noop.using(after=before).defer()
    assert why_it_waits_for_jobs(one, timezone.now()) == f"It waits for job {before[0]}."
    assert why_it_waits_for_jobs(many, timezone.now()) == f"It waits for 7 jobs: {', '.join(map(str, before[:5]))}, …."


def test_an_unfinished_job_behind_a_thousand_finished_jobs_is_found() -> None:
    multiply(make_job("completed"), 1_200)
    before = list(Job.objects.values_list("pk", flat=True))
    running = make_job("running")
    last = jobs.noop.using(after=[*before, running]).defer()
    Dependency.objects.exclude(needs_job_id=running.pk).update(is_met=True)
    assert why_it_waits_for_jobs(last, timezone.now()) == f"It waits for job {running.pk}."
    assert [need.needs_job_id for need in unmet_needs(last, limit=6)] == [running.pk]


def test_a_job_that_keeps_another_waiting_for_ever_is_named_first() -> None:
    before = [make_job("queued") for _ in range(7)]
    failed = make_job("failed")
    last = jobs.noop.using(after=[*before, failed]).defer()
    assert f"It needs job {failed.pk}, which has not completed" in why_it_waits_for_jobs(last, timezone.now())
    assert [need.needs_job_id for need in unmet_needs(last, limit=6)] == [failed.pk, *[job.pk for job in before[:5]]]


def test_the_sentence_says_that_a_job_has_not_completed() -> None:
    before = make_job("failed")
    last = jobs.noop.using(after=[before]).defer()
    assert why_it_waits_for_jobs(last, timezone.now()) == (
        f"It needs job {before.pk}, which has not completed: retry that job, or discard this one."
    )


def test_the_sentence_says_that_a_job_was_deleted() -> None:
    before = make_job("failed")
    last = jobs.noop.using(after=[before]).defer()
    id = before.pk
    before.delete()
    assert why_it_waits_for_jobs(last, timezone.now()) == (
        f"It needs job {id}, which was deleted or pruned before it completed, so it waits for ever. Discard it."
    )


def test_the_sentence_says_that_all_jobs_are_finished() -> None:
    before = jobs.noop.defer()
    last = jobs.noop.using(after=[before]).defer()
    Dependency.objects.update(is_met=True)
    assert "It will be queued within a second or two." in why_it_waits_for_jobs(last, timezone.now())


def test_a_job_that_waits_for_no_job_has_no_sentence() -> None:
    assert why_it_waits_for_jobs(make_job("blocked"), timezone.now()) == ""

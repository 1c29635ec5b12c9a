"""`stuck-dependant`: jobs that wait for a deleted job."""

from typing import Any

import psycopg
import pytest

from django_skipqueue.console.rules.examination import examine
from django_skipqueue.parts.batches.console import STUCK_DEPENDANTS
from django_skipqueue.queue.store import Store

from ...app import jobs
from ...app.rows import make_job
from ...queue.test_sql import busy_table  # noqa: F401 (a fixture)
from .conftest import FindingsOf
from .test_sql import require_indexes


def test_the_doctor_finds_a_job_that_waits_for_a_deleted_job(findings_of: FindingsOf) -> None:
    failed_job, deleted_job = make_job("failed"), make_job("failed")
    jobs.noop.using(after=[failed_job]).defer()
    job_that_runs_anyway = jobs.noop.using(after=[deleted_job], after_failure="run").defer()
    waiting_job = jobs.noop.using(after=[deleted_job]).defer()
    assert findings_of("stuck-dependant") == []
    deleted_id = deleted_job.pk
    deleted_job.delete()
    (finding,) = findings_of("stuck-dependant")
    assert finding.severity == "warning"
    assert finding.found == (
        f"Job {waiting_job.pk} (tests.app.jobs.noop) waits for job {deleted_id}, which was deleted or pruned before "
        "it completed. Jobs that wait like this: 1."
    )
    assert finding.command.startswith(f"python manage.py skipqueue discard {waiting_job.pk} ")
    assert waiting_job.discard()
    assert findings_of("stuck-dependant") == []
    assert job_that_runs_anyway.status == "queued"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_with_several_databases_the_finding_names_jobs_as_database_and_id(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}
    predecessor = jobs.noop.using(database="other").defer()
    waiting_job = jobs.noop.using(database="other", after=[predecessor]).defer()
    predecessor._meta.model._base_manager.using("other").filter(pk=predecessor.pk).delete()
    (finding,) = (finding for finding in examine(Store("other")) if finding.code == "stuck-dependant")
    assert f"Job other:{waiting_job.pk} (" in finding.found
    assert f"waits for job other:{predecessor.pk}," in finding.found
    assert f"skipqueue discard other:{waiting_job.pk} " in finding.command


@pytest.mark.django_db
def test_the_query_for_stuck_dependants_uses_the_primary_key(busy_table: psycopg.Connection[Any]) -> None:  # noqa: F811
    require_indexes(busy_table, STUCK_DEPENDANTS, {}, {"pkey"})

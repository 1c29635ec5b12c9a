"""With several databases, a finding and its command name a job by its handle."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.rules.examination import examine
from django_skipqueue.console.rules.rule import Finding
from django_skipqueue.queue.store import Store

from ...app.limit_rows import make_halted
from ...app.rows import make_job

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def finding_on_other(code: str) -> Finding:
    (finding,) = (finding for finding in examine(Store("other")) if finding.code == code)
    return finding


@pytest.fixture(autouse=True)
def _two_databases(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}


def test_the_finding_on_a_long_job_names_database_and_id() -> None:
    job = make_job("running", using="other", locked_at=timedelta(hours=-2))
    finding = finding_on_other("long-job")
    assert f"job other:{job.pk} (" in finding.found
    assert f"skipqueue cancel other:{job.pk} " in finding.command


def test_the_finding_on_a_stuck_unique_key_names_database_and_id() -> None:
    job = make_job(using="other", unique_key="k", enqueued_at=timedelta(days=-5), run_after=timedelta(days=-5))
    finding = finding_on_other("stuck-key")
    assert f"Job other:{job.pk} (" in finding.found
    assert f"skipqueue cancel other:{job.pk} " in finding.command


def test_the_finding_on_a_halted_sequence_names_database_and_id() -> None:
    job = make_halted("k", using="other")
    assert f" because job other:{job.pk} failed. " in finding_on_other("halted-sequence").title

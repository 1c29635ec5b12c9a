"""With several databases, a finding and its command name a job by its handle."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.rules.examination import examine
from django_skipqueue.console.rules.rule import Finding
from django_skipqueue.queue.store import Store

from ..app.limit_rows import make_halted
from ..app.rows import make_job

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def finding(code: str) -> Finding:
    (found,) = (each for each in examine(Store("other")) if each.code == code)
    return found


@pytest.fixture(autouse=True)
def _several(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}


def test_a_job_that_runs_for_long() -> None:
    job = make_job("running", using="other", locked_at=timedelta(hours=-2))
    found = finding("long-job")
    assert f"job other:{job.pk} (" in found.found
    assert f"skipqueue cancel other:{job.pk} " in found.command


def test_a_job_that_keeps_its_unique_key() -> None:
    job = make_job(using="other", unique_key="k", enqueued_at=timedelta(days=-5), run_after=timedelta(days=-5))
    found = finding("stuck-key")
    assert f"Job other:{job.pk} (" in found.found
    assert f"skipqueue cancel other:{job.pk} " in found.command


def test_a_sequence_that_halts() -> None:
    job = make_halted("k", using="other")
    assert f": job other:{job.pk} failed. " in finding("halted-sequence").title

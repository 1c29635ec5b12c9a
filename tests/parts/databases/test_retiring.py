"""A retiring database: the doctor says how many jobs are left in it."""

from typing import Any

import pytest

from django_skipqueue.console.rules.examination import examine
from django_skipqueue.console.rules.rule import Severity
from django_skipqueue.parts.databases import checks
from django_skipqueue.queue.store import Store

from ...app.rows import make_job

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

CODE = "retiring-database"


@pytest.fixture(autouse=True)
def _retiring(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}


def test_the_doctor_counts_the_jobs_left_in_a_retiring_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for status in ("queued", "queued", "scheduled", "running", "completed", "failed"):
        make_job(status, using="other")
    [finding] = [finding for finding in examine(Store("other")) if finding.code == CODE]
    assert (finding.severity, finding.found) == (Severity.INFO, "Jobs left in other: 4.")
    monkeypatch.setattr(checks, "MOST_UNFINISHED_COUNTED", 1)
    assert "Jobs left in other: 1+." in [finding.found for finding in examine(Store("other"))]


def test_the_doctor_says_that_an_empty_retiring_database_can_be_removed() -> None:
    make_job("failed", using="other")
    [finding] = [finding for finding in examine(Store("other")) if finding.code == CODE]
    assert (finding.severity, finding.title) == (Severity.INFO, "A retiring database has no unfinished jobs")
    assert finding.advice.startswith("Remove it from SKIPQUEUE['RETIRING'].")


def test_a_database_that_is_not_retiring_has_no_such_finding() -> None:
    assert CODE not in [finding.code for finding in examine(Store("default"))]

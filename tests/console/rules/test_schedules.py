"""`late-schedule` and `failing-schedule`: schedules that do not fire, and schedules whose jobs fail."""

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from ...app.rows import make_job
from ...parts.schedules.rows import make_schedule
from .conftest import FindingsOf


def test_late_schedules_are_found(findings_of: FindingsOf) -> None:
    make_schedule("in time", due=60)
    make_schedule("paused", due=600, paused_at=Now())
    make_schedule("gone", due=600, source="code", retired_at=Now())
    make_schedule("never")
    assert findings_of("late-schedule") == []
    schedule = make_schedule("late", due=36_000)
    (finding,) = findings_of("late-schedule")
    assert finding.severity == "critical"
    assert finding.title.startswith("Schedule late should have run at ")
    assert finding.title.endswith(", and is late by 10 h")
    assert (finding.subject, finding.since) == ("late", schedule.next_run_at)
    assert finding.command == "python manage.py runworker"
    assert finding.link is not None
    assert finding.link.arguments == (schedule.pk,)
    make_schedule("broken", due=36_001, error="no task")
    broken, late = findings_of("late-schedule")
    assert broken.title.startswith("Schedule broken has not been able to run since ")
    assert broken.title.endswith(" (10 h late): no task")
    assert late.subject == "late"


def test_the_threshold_of_late_schedules_can_be_set(findings_of: FindingsOf, settings: Any) -> None:
    make_schedule("nightly", due=130)
    assert len(findings_of("late-schedule")) == 1
    settings.SKIPQUEUE = {"RULES": {"late-schedule": 600}}
    assert findings_of("late-schedule") == []


def test_a_schedule_whose_last_two_jobs_failed_is_found(findings_of: FindingsOf) -> None:
    failing: dict[str, Any] = {"last_error": "ValueError: no", "attempts": 1}
    first_job = make_job("failed", enqueued_at=timedelta(hours=-2), **failing)
    make_schedule("once", due=-60, last_job_id=first_job.pk)
    assert findings_of("failing-schedule") == []
    last_job = make_job("scheduled", **failing)
    schedule = make_schedule("nightly export", due=-60, last_job_id=last_job.pk, earlier_job_ids=[first_job.pk])
    (finding,) = findings_of("failing-schedule")
    assert finding.severity == "warning"
    assert finding.title.startswith("Schedule nightly export has been failing since ")
    assert finding.title.endswith(", 2 runs in a row: ValueError: no")
    assert finding.found == f"The last run that failed, job {last_job.pk} of tests.app.jobs.noop, is retrying."
    assert finding.command == "python manage.py skipqueue schedules pause 'nightly export'"
    assert (finding.subject, finding.since) == ("nightly export", first_job.enqueued_at)
    assert finding.link is not None
    assert finding.link.arguments == (schedule.pk,)
    type(last_job).objects.filter(pk=last_job.pk).update(status="failed", finished_at=Now())
    assert [finding.severity for finding in findings_of("failing-schedule")] == ["critical"]

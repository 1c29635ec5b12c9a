"""`halted-sequence`, `free-permit` and `held-permit`: sequences that have halted, and permits that no job gets."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue import job, limit
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Worker
from django_skipqueue.parts.limits import console as limits

from ...app.limit_rows import make_halted, make_keyed, make_limited
from ...app.rows import make_job, make_worker
from .conftest import FindingsOf


def pay(token: str) -> None:
    """A task with a secret in the key of its limit."""


def test_a_halted_sequence_is_found_if_jobs_wait_in_it(findings_of: FindingsOf) -> None:
    make_keyed("nobody waits", "failed", kind="halting")
    make_limited("limit:t")
    assert findings_of("halted-sequence") == []
    failed = make_halted("sequence:t order=7", minutes=720)
    (finding,) = findings_of("halted-sequence")
    assert finding.severity == "warning"
    assert finding.title.startswith("Sequence sequence:t order=7 halted at ")
    assert finding.title.endswith(f" because job {failed.pk} failed. Waiting jobs: 1")
    assert finding.command == f"python manage.py skipqueue retry {failed.pk}"
    assert finding.subject == "sequence:t order=7"
    assert finding.since is not None
    make_halted("another")
    assert {finding.subject for finding in findings_of("halted-sequence")} == {"sequence:t order=7", "another"}


def test_a_job_that_waits_although_a_permit_is_free_is_found(findings_of: FindingsOf) -> None:
    make_limited("taken", held=1, minutes=10)
    make_limited("just now", held=0, minutes=0.5)
    make_halted("sequence:t", minutes=10)
    assert findings_of("free-permit") == []
    make_limited("limit:t", held=1, minutes=600, capacity=2)
    (finding,) = findings_of("free-permit")
    assert (finding.severity, finding.command) == ("critical", "python manage.py runworker")
    assert finding.found == "Keys whose next job waits although a permit is free: limit:t (for 10 h)."
    Job.objects.filter(limit_key="limit:t").delete()
    assert findings_of("free-permit") == []


def test_permits_held_by_jobs_in_a_queue_without_workers_are_found(findings_of: FindingsOf) -> None:
    make_worker()
    make_limited("taken", held=1, minutes=10)
    for key, minutes in (("just now", 0.5), ("limit:t", 600)):
        make_keyed(key, "queued", queue_name="behind")
        make_limited(key, held=0, minutes=minutes)
    (finding,) = findings_of("held-permit")
    assert finding.severity == "warning"
    assert finding.title.startswith("Jobs have waited for a permit of limit:t since ")
    assert finding.title.endswith(", 1 in all: the permits are held by jobs of queue behind that no worker claims")
    assert finding.command == "python manage.py runworker --queues behind"
    assert (finding.subject, finding.since is None) == ("limit:t", False)
    make_keyed("limit:t", "running")
    assert findings_of("held-permit") == []


def test_a_running_job_that_hangs_and_holds_a_permit_is_found(
    findings_of: FindingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is found once other jobs of its key have waited for long. Slots are free, so `no-free-slot` is silent."""
    worker = make_worker(concurrency=5)
    fields: dict[str, Any] = {"task": "shop.pay", "locked_by": worker.id}
    hanging_job = make_keyed("limit:t", "running", locked_at=timedelta(minutes=-3), **fields)
    make_keyed("limit:t", run_after=timedelta(minutes=-2))
    assert findings_of("held-permit") == [], "3 minutes are not too long: the usual run time is unknown"
    for usual_seconds, finding_count in ((60.0, 0), (2.0, 1)):
        monkeypatch.setattr(limits, "usual_runs", lambda store, tasks, usual=usual_seconds: dict.fromkeys(tasks, usual))
        assert len(findings_of("held-permit")) == finding_count
    (finding,) = findings_of("held-permit")
    assert finding.title.startswith("Jobs have waited for a permit of limit:t since ")
    assert re.search(
        rf", 1 in all: job {hanging_job.pk} of shop\.pay holds it and probably hangs: it has run for 3 min( \d+ s)?; "
        r"usually such a job takes 2\.0 s at most$",
        finding.title,
    )
    assert (finding.severity, finding.command) == ("critical", f"python manage.py skipqueue cancel {hanging_job.pk}")
    monkeypatch.undo()  # the usual run time is unknown again, so the job may run for 10 minutes (`LONGEST_RUN`)
    Job.objects.filter(pk=hanging_job.pk).update(locked_at=Now() - timedelta(minutes=11))
    (finding,) = findings_of("held-permit")
    assert re.search(r"holds it and probably hangs: it has run for 11 min( \d+ s)?$", finding.title)
    Job.objects.filter(status="blocked").update(run_after=Now())
    assert findings_of("held-permit") == [], "no blocked job has waited for long"


def test_a_job_that_holds_all_slots_is_reported_by_one_rule_only(findings_of: FindingsOf) -> None:
    worker = make_worker(concurrency=1)
    fields: dict[str, Any] = {"task": "shop.pay", "locked_by": worker.id, "locked_at": timedelta(minutes=-11)}
    make_keyed("limit:t", "running", **fields)
    make_keyed("limit:t", run_after=timedelta(minutes=-2))
    assert len(findings_of("held-permit")) == 1
    make_job(run_after=timedelta(minutes=-2))
    assert len(findings_of("no-free-slot")) == 1
    assert findings_of("held-permit") == []


def test_permits_of_a_queue_without_free_slots_are_reported_by_one_rule_only(findings_of: FindingsOf) -> None:
    worker = make_worker(concurrency=1, queues=["behind"])
    make_worker(queues=["default"])
    make_keyed("limit:t", "queued", queue_name="behind", run_after=timedelta(minutes=-5))
    make_limited("limit:t", held=0, minutes=600)
    assert len(findings_of("held-permit")) == 1
    make_job("running", task="shop.hang", locked_by=worker.id, locked_at=timedelta(minutes=-5))
    assert len(findings_of("no-free-slot")) == 1
    assert findings_of("held-permit") == []


def test_a_free_permit_is_reported_by_one_rule_only(findings_of: FindingsOf) -> None:
    make_worker()
    make_limited("limit:t", held=0, minutes=600)
    assert findings_of("held-permit") == []
    assert len(findings_of("free-permit")) == 1


@pytest.mark.parametrize("code", ["halted-sequence", "free-permit"])
def test_a_secret_in_a_limit_key_is_masked_in_the_finding(
    registry: Registry, findings_of: FindingsOf, code: str
) -> None:
    job(name="shop.pay", concurrency=limit(1, by="token"))(pay)
    fields: dict[str, Any] = {"task": "shop.pay", "kwargs": {"token": "tok-4711"}}
    make_halted('sequence:shop.pay token="tok-4711"', **fields)
    make_limited('limit:shop.pay token="tok-4711"', held=0, **fields)
    (finding,) = findings_of(code)
    text = f"{finding.title} {finding.found} {finding.subject}"
    assert "shop.pay" in text
    assert "tok-4711" not in text


def test_a_job_with_a_concurrency_limit_is_no_long_wait(findings_of: FindingsOf) -> None:
    """Nobody knows for how long it has waited for a worker, so `long-wait` does not name it."""
    queued = make_job(run_after=timedelta(hours=-1))
    make_worker()
    assert len(findings_of("long-wait")) == 1
    Job.objects.filter(pk=queued.pk).update(limit_key="k", limit_kind="concurrency", capacity=1)
    Worker.objects.update(heartbeat_at=Now())
    assert findings_of("long-wait") == []

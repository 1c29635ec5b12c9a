"""Eleven incidents with real processes: within a minute the watched rules name the culprit, and nothing else.

The workers import the tasks from the module `extra.jobs`. This process only knows the names of the tasks.
"""

import re
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue import job
from django_skipqueue.console.rules.examination import rules_of
from django_skipqueue.console.rules.rule import Finding, Severity
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, RollUp, Worker
from django_skipqueue.parts.history.rules import FEWEST_FAILURES
from django_skipqueue.queue.session import short_transaction
from django_skipqueue.queue.store import Store

from ..app.limit_rows import make_keyed
from ..app.rows import make_job
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]

JOBS = """
import os
import signal
import time
from datetime import timedelta

from django_skipqueue import job, limit, periodic
from django_skipqueue.parts.history import rollups

rollups.WRITE_INTERVAL = 0.5
leaked = []


@job
def send_receipt():
    {}["psp_reference"]  # raises a KeyError


@job
def push():
    time.sleep(600)


@job(concurrency=limit(1))
def locate():
    time.sleep(600)


@job
def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@job
def leak():
    leaked.append(bytearray(10_000_000))
    if len(leaked) == 4:  # the kernel ends what takes too much memory
        os.kill(os.getpid(), signal.SIGKILL)


@job
def noop():
    pass


@job(max_attempts=1)
def export():
    raise ValueError("no such bucket")
"""

PERIODIC = """
periodic(timedelta(seconds=1), name="nightly")(export)
"""

TASKS = ("send_receipt", "push", "locate", "kill", "leak", "noop", "export")

MINUTE = 60.0
FAST_HEARTBEATS = {"WORKER_TIMEOUT": 4.0, "HEARTBEAT_INTERVAL": 0.5}

pytestmark = pytest.mark.django_db(transaction=True)


def never_called() -> None:
    """The function of all tasks in this process, which only enqueues them."""


@pytest.fixture(autouse=True)
def _known_tasks(registry: Registry) -> None:
    for name in TASKS:
        job(name=f"extra.jobs.{name}")(never_called)


@pytest.fixture
def set_thresholds(settings: Any) -> Callable[..., None]:
    """Sets thresholds, so that no test waits for minutes."""

    def set_rules(**thresholds: float) -> None:
        threshold_by_rule = {name.replace("_", "-"): threshold for name, threshold in thresholds.items()}
        settings.SKIPQUEUE = FAST_HEARTBEATS | {"RULES": threshold_by_rule}

    set_rules()
    return set_rules


def defer(task: str, count: int = 1, **fields: Any) -> list[Job]:
    return [make_job(task=f"extra.jobs.{task}", **fields) for _ in range(count)]


def current_findings() -> list[Finding]:
    """The problems that the watched rules find now."""
    store = Store("default")
    findings = []
    for rule in rules_of(store.alias):
        if rule.is_watched:
            with short_transaction(store, 5.0):
                findings += [finding for finding in rule.findings(store) if finding.severity != Severity.OK]
    return findings


def wait_for_finding(code: str, *allowed_codes: str) -> Finding:
    """Wait for the finding of this rule. No other rule may find a problem, except the rules in `allowed_codes`.

    A worker may be late, because it writes a heartbeat each half second, and the machine is busy.
    """

    def find() -> Finding | None:
        has_workers, findings = Worker.objects.exists(), current_findings()
        codes = {finding.code for finding in findings if finding.is_problem}
        unexpected_codes = codes - {code, "late-worker", *allowed_codes}
        if unexpected_codes == {"no-worker"} and not has_workers:  # the workers have not started yet
            return None
        assert not unexpected_codes, findings
        return next((finding for finding in findings if finding.code == code), None)

    return wait_until(find, code, deadline=MINUTE)  # type: ignore[return-value]  # not None


def run_sql(command: str) -> None:
    """Run the SQL that a finding recommends."""
    with connection.cursor() as cursor:
        cursor.execute(command)


def test_a_task_that_a_deploy_broke_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    defer("send_receipt", 30)
    runworker("-c", "4", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    finding = wait_for_finding("failing-task")
    assert finding.severity == "critical"
    assert re.fullmatch(
        r"extra\.jobs\.send_receipt has been failing since [\d:]+: KeyError: 'psp_reference', \d+ failed attempts; "
        r"jobs: \d+ failed, \d+ retrying",
        finding.title,
    )
    assert finding.command == (
        "python manage.py skipqueue run-now --retrying --task extra.jobs.send_receipt "
        "--exception 'builtins.KeyError in extra.jobs.send_receipt'"
    )


def test_a_task_that_hangs_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    """The rules report only the task: `long-wait` does not also report its queue."""
    set_thresholds(no_free_slot=1, long_wait=6)
    ids = {str(job.pk) for job in defer("push", 2)}
    defer("noop", 5, priority=-1)
    runworker("-c", "2", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    finding = wait_for_finding("no-free-slot")
    assert finding.title.startswith(
        "extra.jobs.push holds the slots of queue default (2 in all), and jobs wait: its 2 running jobs have run for "
    )
    assert finding.command.startswith("python manage.py skipqueue cancel ")
    assert set(finding.command.removeprefix("python manage.py skipqueue cancel ").split()) == ids
    wait_until(lambda: Job.objects.filter(status="queued", run_after__lt=Now() - timedelta(seconds=7)), "a long wait")
    assert [finding.code for finding in current_findings()] == ["no-free-slot"]


def test_a_queue_with_more_jobs_than_its_slots_can_run_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    """No job has run for long, so `no-free-slot` names no task."""
    set_thresholds(long_wait=2)
    defer("push", 2)
    defer("noop", 5, priority=-1)
    runworker("-c", "2", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    finding = wait_for_finding("long-wait")
    assert re.fullmatch(
        r"Jobs of queue default have waited since [\d:]+, 5 in all: the 2 slots are taken, for the longest time by "
        r"extra\.jobs\.push: its 2 running jobs have run for up to [\d.]+ m?s",
        finding.title,
    )
    assert finding.command == "python manage.py runworker --queues default"


def test_the_workers_of_a_killed_machine_are_named(runworker: RunWorker, set_thresholds: Any) -> None:
    """Another machine recovers the jobs, and the rule says how many were lost."""
    defer("push", 4)
    supervisor_of_one = runworker("-c", "2", "--processes", "2", "--name", "one", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    wait_for_statuses(running=4)
    runworker("-c", "4", "--name", "two", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    workers(3)
    supervisor_of_one.send_to_group(signal.SIGKILL)
    finding = wait_for_finding("worker-deaths", "dead-worker")  # `dead-worker` ends when the jobs are recovered
    assert finding.severity == "warning"
    assert re.fullmatch(
        r"Workers and their supervisor have been gone since [\d:]+: one/\d, one/\d\. 4 running jobs were lost",
        finding.title,
    )
    assert finding.command == "python manage.py runworker"
    dead_worker_findings = [finding for finding in current_findings() if finding.code == "dead-worker"]
    assert [finding.severity for finding in dead_worker_findings] == ["info"], (
        "the jobs of the dead workers are recovered"
    )


def test_a_session_that_locks_rows_is_named(runworker: RunWorker, set_thresholds: Any, connect: Any) -> None:
    set_thresholds(locked_rows=1)
    defer("noop", 3)
    session = connect(autocommit=False, application_name="psql")
    session.execute("SELECT FROM skipqueue_job FOR UPDATE")
    runworker("-c", "2", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    workers()
    finding = wait_for_finding("locked-rows")
    assert re.fullmatch(
        rf"3 jobs have been locked since [\d:]+ by session {session.info.backend_pid} \(psql, idle in transaction\)",
        finding.title,
    )
    run_sql(finding.command)
    wait_for_statuses(completed=3)
    session.close()


def test_a_queue_without_a_worker_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    defer("noop", 2, queue_name="reports")
    runworker("--queues", "mail", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    workers()
    finding = wait_for_finding("queue-without-worker")
    assert finding.title.startswith("No worker serves queue reports: 2 jobs have waited since ")
    assert finding.command == "python manage.py runworker --queues reports"


def test_a_limit_whose_permit_holders_wait_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    """A queued job holds the permit and waits for a slot, while the blocked jobs wait for the permit."""
    set_thresholds(held_permit=2)
    defer("push", queue_name="slow")
    runworker("-c", "1", "--queues", "slow", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    wait_for_statuses(running=1)
    for status in ("queued", "blocked", "blocked"):
        make_keyed("limit:extra.jobs.locate", status, task="extra.jobs.locate", queue_name="slow")
    finding = wait_for_finding("held-permit")
    assert re.fullmatch(
        r"Jobs have waited for a permit of limit:extra\.jobs\.locate since [\d:]+, 2 in all: the permits are held by "
        r"jobs of queue slow that no worker claims",
        finding.title,
    )
    assert finding.command == "python manage.py runworker --queues slow"


def test_a_failing_schedule_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    """The task fails only in runs of the schedule, so `failing-task` does not also report it."""
    runworker(jobs=JOBS + PERIODIC, skipqueue=FAST_HEARTBEATS)
    finding = wait_for_finding("failing-schedule")
    assert re.fullmatch(
        r"Schedule nightly has been failing since [\d:]+, \d runs in a row: ValueError: no such bucket", finding.title
    )
    assert finding.command == "python manage.py skipqueue schedules pause nightly"
    wait_until(
        lambda: RollUp.objects.filter(span=0, task="extra.jobs.export", failed__gte=2 * FEWEST_FAILURES),
        "failed attempts enough for `failing-task`",
    )
    assert {finding.code for finding in current_findings()} - {"late-worker"} == {"failing-schedule"}


def test_a_job_that_kills_its_workers_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    set_thresholds(worker_deaths=2)
    (poison,) = defer("kill", max_attempts=25)
    runworker("-c", "2", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    finding = wait_for_finding("worker-deaths", "no-worker")  # no worker is alive until the next process has started
    assert re.fullmatch(
        rf"Job {poison.pk} of extra\.jobs\.kill kills each worker that runs it: since [\d:]+ \d workers have died, and "
        r"\d running jobs were lost\. Other attempts of the task succeed: 0",
        finding.title,
    )
    assert finding.command in (f"python manage.py skipqueue {verb} {poison.pk}" for verb in ("discard", "show"))


def test_a_task_that_leaks_memory_is_named(runworker: RunWorker, set_thresholds: Any) -> None:
    set_thresholds(worker_deaths=2)
    defer("leak", 40, max_attempts=25)
    runworker("-c", "1", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    finding = wait_for_finding("worker-deaths", "no-worker")  # no worker is alive until the next process has started
    title_match = re.fullmatch(
        r"Workers have been dying since [\d:]+: in every one of (\d) deaths extra\.jobs\.leak was running, and (\d+) "
        r"running jobs were lost",
        finding.title,
    )
    assert title_match, finding.title
    deaths, lost_jobs = title_match.groups()
    assert deaths == lost_jobs, "each worker had one slot"
    dead_worker_ids = [entry["worker_id"] for job in Job.objects.all() for entry in job.errors]
    assert len(set(dead_worker_ids)) == len(dead_worker_ids)
    assert 2 <= int(deaths) <= len(dead_worker_ids), "another worker may have died since"
    assert finding.severity == "critical"
    assert finding.command == "python manage.py runworker --max-memory-mb 500"
    assert finding.subject == "extra.jobs.leak"


def test_a_session_that_locks_the_job_table_is_named(runworker: RunWorker, set_thresholds: Any, connect: Any) -> None:
    """A session holds the lock of CREATE INDEX without CONCURRENTLY: every claim waits."""
    runworker("-c", "2", jobs=JOBS, skipqueue=FAST_HEARTBEATS)
    workers()
    session = connect(autocommit=False, application_name="migration")
    session.execute("LOCK TABLE skipqueue_job IN SHARE MODE")
    finding = wait_for_finding("lock-waits")
    assert finding.subject == str(session.info.backend_pid)
    assert finding.title.startswith(
        f"Session {session.info.backend_pid} (migration, idle in transaction) locks the queue's tables: "
    )
    run_sql(finding.command)
    defer("noop", 2)
    wait_for_statuses(completed=2)
    session.close()

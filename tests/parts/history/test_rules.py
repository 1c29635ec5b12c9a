"""The rules of the history: what they find, what is usual by the roll-ups, and the texts of the findings."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue.console.rules.rule import Finding, Severity
from django_skipqueue.events.events import JobsRecovered
from django_skipqueue.models import FailureRollUp, Job, Queue, Worker
from django_skipqueue.parts.history import rules
from django_skipqueue.parts.history.rollups import WORKER_DIED, RollUpTally, roll_up
from django_skipqueue.values.counting import histogram
from django_skipqueue.values.records import Cause, RecoveredJob

from ...app.failing import make_failing
from ...app.rows import DEFAULT, make_job, make_worker
from .failing import record_failures
from .past import DAY, HOUR, MINUTE, record_attempts, write_depth

pytestmark = pytest.mark.django_db

TASK = "shop.jobs.send"
KEY_ERROR_CAUSE = Cause(TASK, "builtins.KeyError", "shop.jobs.send")


def findings(code: str) -> list[Finding]:
    (rule,) = [rule for rule in rules.HISTORY_RULES if rule.code == code]
    return [finding for finding in rule.findings(DEFAULT) if finding.severity != Severity.OK]


def record_failed_attempts(number: int, cause: Cause = KEY_ERROR_CAUSE, *, ago: float = 0.0, **options: Any) -> None:
    """Count this number of failed attempts, and their cause."""
    record_attempts(cause.task, ago=ago, retried=number)
    record_failures(cause, number, seconds_ago=ago, **options)


class TestFailingTask:
    def test_a_new_cause_is_critical_with_its_error_its_jobs_and_what_to_do(self) -> None:
        fields = {"last_error": "KeyError: 'hunter22'", "kwargs": {"password": "hunter22"}}
        jobs = [make_failing(KEY_ERROR_CAUSE, "scheduled", **fields) for _ in range(3)]
        record_failed_attempts(6, job_id=jobs[0].pk, ago=5 * MINUTE)
        record_failed_attempts(4, job_id=jobs[0].pk)
        (finding,) = findings("failing-task")
        assert finding.severity == "critical"
        assert finding.title.startswith("shop.jobs.send has been failing since ")
        assert finding.title.endswith(": KeyError: '••••••', 10 failed attempts; jobs: 0 failed, 3 retrying")
        assert finding.found == ("Of the last 10 attempts 100 % have failed. At this hour 0 % usually fail.")
        assert finding.command == (
            "python manage.py skipqueue run-now --retrying --task shop.jobs.send "
            "--exception 'builtins.KeyError in shop.jobs.send'"
        )
        assert finding.subject == TASK
        assert finding.since is not None
        assert finding.link is not None
        assert finding.link.query == {"task": TASK, "cause": "builtins.KeyError in shop.jobs.send"}

    def test_if_a_single_job_fails_the_finding_names_it_and_says_that_other_jobs_succeed(self) -> None:
        job = make_failing(KEY_ERROR_CAUSE, "scheduled")
        record_failed_attempts(9, job_id=job.pk)
        record_attempts(completed=1)
        (finding,) = findings("failing-task")
        assert finding.title.startswith(f"Job {job.pk} of {TASK} has failed again and again since ")
        assert finding.title.endswith(": KeyError: no, 9 failed attempts. Other attempts of the task succeed: 1")
        assert finding.command == f"python manage.py skipqueue discard {job.pk}"
        Job.objects.update(status="failed", finished_at=Now())
        assert [finding.command for finding in findings("failing-task")] == [
            f"python manage.py skipqueue show {job.pk}"
        ]
        second_job = make_failing(KEY_ERROR_CAUSE, "scheduled")
        (finding,) = findings("failing-task")
        assert finding.title.startswith(f"{TASK} has been failing since "), "two jobs: the task is to blame"
        assert finding.title.endswith("; jobs: 1 failed, 1 retrying")
        second_job.delete()

    def test_the_finding_names_the_deployment_in_which_a_new_cause_was_first_seen(self) -> None:
        record_failed_attempts(6)
        FailureRollUp.objects.update(first_deployment="4f2a")
        (finding,) = findings("failing-task")
        assert ", since deployment 4f2a: KeyError, 6 failed attempts" in finding.title

    @pytest.mark.parametrize(
        ("failed", "completed", "severity"), [(4, 0, None), (5, 0, "critical"), (5, 1, None), (9, 1, "critical")]
    )
    def test_a_new_cause_is_reported_from_five_failures_and_nine_of_ten_attempts_on(
        self, failed: int, completed: int, severity: str | None
    ) -> None:
        record_failed_attempts(failed)
        record_attempts(completed=completed)
        assert [finding.severity for finding in findings("failing-task")] == ([severity] if severity else [])

    def test_a_deploy_that_breaks_a_task_is_found(self) -> None:
        for minutes in range(3, 10):
            record_attempts(ago=minutes * MINUTE, completed=100)
        record_failed_attempts(8, ago=2 * MINUTE)
        record_attempts(ago=2 * MINUTE, completed=20)
        assert findings("failing-task") == [], "8 of 728 attempts have failed"
        record_failed_attempts(10, ago=MINUTE)
        (finding,) = findings("failing-task")
        assert finding.severity == "critical"
        assert finding.found.startswith("Of the last 10 attempts 100 %")

    def test_a_rare_new_cause_hides_no_old_cause(self) -> None:
        record_failures(KEY_ERROR_CAUSE, seconds_ago=HOUR * 2)
        for minutes in range(10):
            record_failed_attempts(6, ago=minutes * MINUTE)
        record_failed_attempts(1, Cause(TASK, "builtins.OSError", "shop.jobs.send"), ago=2 * MINUTE)
        (finding,) = findings("failing-task")
        assert "KeyError" in finding.title

    @pytest.mark.parametrize(
        ("failed", "completed", "severity"),
        [(3, 17, None), (4, 16, "warning"), (4, 15, None), (10, 10, "critical"), (20, 81, None)],
    )
    def test_an_old_cause_is_reported_once_it_fails_a_fifth_of_twenty_attempts(
        self, failed: int, completed: int, severity: str | None
    ) -> None:
        record_failures(KEY_ERROR_CAUSE, seconds_ago=5 * DAY)
        record_failed_attempts(failed)
        record_attempts(completed=completed)
        assert [finding.severity for finding in findings("failing-task")] == ([severity] if severity else [])

    def test_a_failure_rate_that_occurs_every_day_at_this_hour_is_usual(self) -> None:
        for day in range(1, 8):
            record_failed_attempts(30, ago=day * DAY)
            record_attempts(ago=day * DAY, completed=70)
        record_failed_attempts(12)
        record_attempts(completed=28)
        assert findings("failing-task") == [], "30 % fail, as always"
        record_failed_attempts(30)
        (finding,) = findings("failing-task")
        assert finding.severity == "critical"
        assert "At this hour 30 % usually fail." in finding.found

    def test_one_bad_day_does_not_change_what_is_usual(self) -> None:
        for day in range(1, 8):
            record_attempts(ago=day * DAY, completed=100)
        record_failed_attempts(300, ago=DAY)
        record_failed_attempts(30)
        assert len(findings("failing-task")) == 1

    def test_a_task_fails_since_the_last_minute_in_which_it_did_not_fail(self) -> None:
        record_failures(KEY_ERROR_CAUSE, seconds_ago=5 * DAY)
        record_attempts(ago=40 * MINUTE, completed=30, retried=1)
        for minutes in (30, 20, 5, 0):
            record_failed_attempts(20, ago=minutes * MINUTE)
        record_attempts(ago=20 * MINUTE, completed=20)
        (finding,) = findings("failing-task")
        assert finding.since is not None
        ((now,),) = DEFAULT.rows("SELECT statement_timestamp()")
        assert timedelta(minutes=29) < now - finding.since < timedelta(minutes=32)

    def test_a_worker_that_dies_is_no_failure_of_the_task(self) -> None:
        record_failures(Cause(TASK, WORKER_DIED, ""), 9)
        record_attempts(recovered=9)
        assert findings("failing-task") == []

    def test_a_task_in_several_queues_whose_job_was_deleted_is_found(self) -> None:
        record_attempts(queue_name="mail", retried=3)
        record_attempts(queue_name="default", retried=3)
        record_failures(KEY_ERROR_CAUSE, 6)
        (finding,) = findings("failing-task")
        assert ": KeyError, 6 failed attempts; jobs: 0 failed, 0 retrying" in finding.title
        assert finding.command == (
            "python manage.py skipqueue retry --failed --task shop.jobs.send "
            "--exception 'builtins.KeyError in shop.jobs.send'"
        )

    def test_the_settings_change_the_threshold_or_switch_the_rule_off(self, settings: Any) -> None:
        record_failures(KEY_ERROR_CAUSE, seconds_ago=5 * DAY)
        record_failed_attempts(8)
        record_attempts(completed=12)
        settings.SKIPQUEUE = {"RULES": {"failing-task": 0.5}}
        assert findings("failing-task") == []
        settings.SKIPQUEUE = {"RULES": {"failing-task": None}}
        record_failed_attempts(100)
        assert findings("failing-task") == []


NO_JOB = 7_000_000
"""An id that no job of a test has."""

DEATH = {"exception": WORKER_DIED, "message": "worker died: signal 9 (SIGKILL)"}


def record_death(jobs_by_task: dict[str, int], *, ago: float = 0.0, job_id: int = NO_JOB) -> None:
    """Record the death of a worker that ran this number of jobs of each task."""
    record_attempts("", "", ago=ago, deaths=1)
    for task, number in jobs_by_task.items():
        record_attempts(task, ago=ago, recovered=number, deaths=1)
        record_failures(
            Cause(task, WORKER_DIED, ""), number, seconds_ago=ago, job_id=job_id if task == TASK else NO_JOB
        )


class TestWorkerDeaths:
    def test_the_task_that_was_running_in_every_death_is_named(self) -> None:
        record_death({TASK: 2})
        assert findings("worker-deaths") == []
        last_job = make_job("scheduled", errors=[DEATH])
        record_death({"shop.jobs.render": 1, TASK: 1}, ago=MINUTE, job_id=last_job.pk)
        record_death({TASK: 1}, job_id=last_job.pk)
        (finding,) = findings("worker-deaths")
        assert finding.severity == "critical", "workers go on dying"
        assert finding.title.startswith("Workers have been dying since ")
        assert finding.title.endswith(f": in every one of 3 deaths {TASK} was running, and 5 running jobs were lost")
        assert finding.found == "Each job that was lost runs again. The last error: worker died: signal 9 (SIGKILL)."
        assert "--max-jobs-per-worker" in finding.advice
        assert finding.command == "python manage.py runworker --max-memory-mb 500"
        assert finding.subject == TASK

    def test_a_task_that_was_running_in_most_deaths_is_named(self) -> None:
        for _ in range(3):
            record_death({TASK: 1})
        record_death({"shop.jobs.render": 9})
        (finding,) = findings("worker-deaths")
        assert finding.title.endswith(f": in 3 of 4 deaths {TASK} was running, and 12 running jobs were lost")
        assert finding.command == "python manage.py skipqueue status", "nobody knows of what they died"

    def test_a_task_in_two_queues_counts_each_death_once(self) -> None:
        """The first worker ran a job of the task in each queue when it died, the second worker none."""
        tally, at = RollUpTally(), datetime.now(UTC)
        recovered_job = RecoveredJob(id=3, task=TASK, queue_name="mail", attempt=1, status="queued", locked_by="w:1",
                                     locked_at=at, metadata="{}", recovered_at=at)  # fmt: skip
        other_jobs = [
            recovered_job._replace(queue_name="default"),
            recovered_job._replace(task="shop.jobs.render", locked_by="w:2"),
        ]
        tally.sent(JobsRecovered("default", [recovered_job, *other_jobs]))
        roll_up(DEFAULT, *tally.take())
        toll = rules.death_toll(DEFAULT)
        assert toll is not None
        assert toll.deaths == 2
        assert {name: of_task.deaths for name, of_task in toll.of_task.items()} == {TASK: 1, "shop.jobs.render": 1}

    def test_one_death_is_a_warning(self) -> None:
        record_death({TASK: 3})
        (finding,) = findings("worker-deaths")
        assert finding.severity == "warning"
        assert finding.title.startswith("A worker died at ")
        assert finding.title.endswith(f" while {TASK} was running, and 3 running jobs were lost")

    def test_a_series_of_deaths_keeps_its_beginning_while_workers_go_on_dying(self) -> None:
        """The numbers also count from this beginning. A death before ten calm minutes belongs to another series."""
        ((now,),) = DEFAULT.rows("SELECT statement_timestamp()")
        for minutes in (90, 45, 37, 28, 19, 9):
            record_death({TASK: 1}, ago=minutes * MINUTE)
        record_death({TASK: 1})
        (finding,) = findings("worker-deaths")
        assert finding.since is not None
        assert abs(now - finding.since - timedelta(minutes=45)) < timedelta(seconds=5)
        assert f"in every one of 6 deaths {TASK} was running, and 6 running jobs were lost" in finding.title

    def recover_jobs_of_dead_worker(self, worker: Worker) -> None:
        """Count three jobs that were recovered because this worker died, and make the row of one of them."""
        job = make_job("scheduled", errors=[{"exception": WORKER_DIED, "worker_id": worker.pk}])
        record_death({TASK: 3}, job_id=job.pk)

    def test_a_machine_that_died_is_named_by_its_workers(self) -> None:
        dead_worker, other_dead_worker = (
            make_worker(name=name, heartbeat=timedelta(minutes=-5)) for name in ("web-1/1", "web-1/2")
        )
        make_worker(name="long-ago/1", heartbeat=timedelta(minutes=-40))
        make_worker(name="web-2/1")
        self.recover_jobs_of_dead_worker(dead_worker)
        (finding,) = findings("worker-deaths")
        assert finding.severity == "warning"
        assert finding.title.startswith("Workers and their supervisor have been gone since ")
        _, _, names_and_lost_jobs = finding.title.rpartition(": ")
        assert other_dead_worker.name in names_and_lost_jobs
        assert "long-ago" not in finding.title
        assert finding.command == "python manage.py runworker"

    def test_a_dead_worker_that_lost_no_job_is_not_blamed(self) -> None:
        make_worker(name="idle/1", heartbeat=timedelta(minutes=-5))
        self.recover_jobs_of_dead_worker(Worker(id="web-1/1:0123456789ab"))
        (finding,) = findings("worker-deaths")
        assert finding.title.startswith("A worker died at ")

    def test_a_job_that_probably_kills_workers_is_named(self) -> None:
        job = make_job("scheduled", task=TASK, errors=[DEATH, DEATH], kwargs={"payment": 7, "token": "hunter22"})
        for _ in range(3):
            record_death({TASK: 1, "shop.jobs.render": 2}, job_id=job.pk)
        record_attempts(completed=40)
        (finding,) = findings("worker-deaths")
        assert finding.severity == "critical"
        arguments = 'token="••••••", payment=7'
        assert finding.title.startswith(f"Job {job.pk} ({arguments}) of {TASK} kills each worker that runs it: since ")
        assert finding.title.endswith(
            " 3 workers have died, and 9 running jobs were lost. Other attempts of the task succeed: 40"
        )
        assert finding.command == f"python manage.py skipqueue discard {job.pk}"
        assert finding.link is not None
        assert finding.link.arguments == (job.pk,)
        for _ in range(2):
            record_death({TASK: 1}, job_id=job.pk)
        (finding,) = findings("worker-deaths")
        assert finding.title.startswith("Workers have been dying since "), (
            "it was running in less than half of the deaths"
        )

    def test_only_jobs_that_are_proven_to_kill_are_named(self) -> None:
        fields: dict[str, Any] = {"task": TASK, "errors": [DEATH]}
        killers = [make_job("failed", deaths=["a", "b", "c"], **fields) for _ in range(5)]
        last_job = make_job("failed", deaths=["a"], **fields)
        for _ in range(9):
            record_death({TASK: 1}, ago=MINUTE, job_id=last_job.pk)
        (finding,) = findings("worker-deaths")
        assert finding.title.startswith(
            f"5 jobs of {TASK} kill each worker that runs them, jobs {killers[4].pk}, {killers[3].pk}"
        )
        assert f" {last_job.pk}," not in finding.title.partition(": since ")[0]
        assert finding.command == f"python manage.py skipqueue show {killers[4].pk}"

    def test_deaths_of_eleven_minutes_ago_are_not_reported(self) -> None:
        record_death({TASK: 9}, ago=11 * MINUTE)
        assert findings("worker-deaths") == []


def test_the_usual_run_time_covers_nearly_all_attempts() -> None:
    record_attempts(completed=12, ran=histogram([2.0] * 12))
    record_attempts(queue_name="mail", completed=12, ran=histogram([2.0] * 11 + [600.0]))
    record_attempts("shop.jobs.rare", completed=4, ran=histogram([2.0] * 4))
    usual_seconds = rules.usual_runs(DEFAULT, [TASK, "shop.jobs.rare", "shop.jobs.new"])
    assert usual_seconds.keys() == {TASK}, "with fewer than five attempts nobody knows"
    assert 1.5 <= usual_seconds[TASK] <= 2.0


class TestGrowingQueue:
    def let_queue_grow(self, depth_before: int = 1_000, depth_now: int = 9_000, **counts: Any) -> None:
        write_depth(depth_before, ago=9 * MINUTE, oldest=10.0)
        write_depth(depth_now, oldest=300.0)
        record_attempts(**{"completed": 1_000} | counts)

    def test_a_queue_grows_if_jobs_come_faster_than_they_are_run(self) -> None:
        self.let_queue_grow()
        (finding,) = findings("growing-queue")
        assert finding.severity == "warning"
        assert finding.title.startswith("Queue default has been growing since ")
        assert finding.title.endswith(": 9,000 jobs wait, in ten minutes 9,000 came and 1,000 were run")
        assert "need 1 h 30 min for the jobs that wait, if no other job comes" in finding.found
        assert finding.command == "python manage.py runworker --queues default"

    def test_a_growing_queue_that_is_drained_soon_is_not_reported(self) -> None:
        self.let_queue_grow(completed=6_000)
        assert findings("growing-queue") == [], "the worker needs 15 minutes for the queue"

    def test_a_queue_that_shrinks_does_not_grow(self) -> None:
        self.let_queue_grow(depth_before=9_900)
        assert findings("growing-queue") == []

    def test_a_queue_without_completed_jobs_is_left_to_other_rules(self) -> None:
        self.let_queue_grow(completed=0)
        assert findings("growing-queue") == []

    def test_a_paused_queue_is_not_reported_as_growing(self) -> None:
        self.let_queue_grow()
        Queue.pause("default")
        assert findings("growing-queue") == []

    def test_a_queue_without_an_earlier_depth_is_not_reported_as_growing(self) -> None:
        write_depth(9_000)
        record_attempts(completed=1_000)
        assert findings("growing-queue") == []

    @pytest.mark.parametrize(("usual_depth", "expected"), [(8_000, 0), (4_000, 1)])
    def test_a_peak_of_every_night_is_usual(self, usual_depth: int, expected: int) -> None:
        for day in range(1, 8):
            write_depth(usual_depth, ago=day * DAY + HOUR)
        self.let_queue_grow()
        assert len(findings("growing-queue")) == expected

    def test_the_settings_can_switch_the_rule_off_for_one_queue(self, settings: Any) -> None:
        self.let_queue_grow()
        settings.SKIPQUEUE = {"RULES": {"growing-queue": {"default": None}}}
        assert findings("growing-queue") == []


class TestRetryStorm:
    def test_retries_due_within_five_minutes_that_need_all_slots_are_a_retry_storm(self) -> None:
        make_worker(concurrency=2)
        write_depth(0, ago=9 * MINUTE)
        record_attempts(retried=10, ran_seconds=10 * 60.0)
        for _ in range(9):
            make_failing(KEY_ERROR_CAUSE, "scheduled", run_after=timedelta(minutes=1))
        make_job("scheduled", run_after=timedelta(minutes=1))
        assert findings("retry-storm") == []
        make_failing(KEY_ERROR_CAUSE, "scheduled", run_after=timedelta(minutes=1))
        (finding,) = findings("retry-storm")
        assert finding.severity == "warning"
        assert finding.title == (
            "About 10 jobs of queue default are retried within five minutes, most of them of shop.jobs.send, and take "
            "all slots"
        )
        assert finding.command == "python manage.py skipqueue postpone --retrying --queue default --for 30m"

    def test_short_retries_or_retries_due_later_are_no_retry_storm(self) -> None:
        make_worker(concurrency=2)
        write_depth(0, ago=9 * MINUTE)
        record_attempts(retried=10, ran_seconds=0.1)
        for minutes in (1, 20):
            make_failing(KEY_ERROR_CAUSE, "scheduled", run_after=timedelta(minutes=minutes))
        assert findings("retry-storm") == []

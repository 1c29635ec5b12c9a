"""The rules of the history: what they find, what is usual by the roll-ups, and the texts of the findings."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.rules.rule import Finding, Severity
from django_skipqueue.models import FailureRollUp, Queue, Worker
from django_skipqueue.parts.history import rules
from django_skipqueue.parts.history.rollups import WORKER_DIED
from django_skipqueue.values.records import Cause

from ..app.failing import make_failing
from ..app.rows import DEFAULT, make_job, make_worker
from .failing import roll_up
from .past import DAY, HOUR, MINUTE, count, sample

pytestmark = pytest.mark.django_db

TASK = "shop.jobs.send"
KEY_ERROR = Cause(TASK, "builtins.KeyError", "shop.jobs.send")


def found(code: str) -> list[Finding]:
    (rule,) = [rule for rule in rules.HISTORY_RULES if rule.code == code]
    return [each for each in rule.findings(DEFAULT) if each.severity != Severity.OK]


def fail(number: int, cause: Cause = KEY_ERROR, *, ago: float = 0.0, **options: Any) -> None:
    """Count this number of failed attempts, and their cause."""
    count(cause.task, ago=ago, retried=number)
    roll_up(cause, number, seconds_ago=ago, **options)


class TestFailingTask:
    def test_a_new_cause_is_critical_with_its_error_its_jobs_and_what_to_do(self) -> None:
        fields = {"last_error": "KeyError: 'hunter22'", "kwargs": {"password": "hunter22"}}
        jobs = [make_failing(KEY_ERROR, "scheduled", **fields) for _ in range(3)]
        fail(6, job_id=jobs[0].pk, ago=5 * MINUTE)
        fail(4, job_id=jobs[0].pk)
        (finding,) = found("failing-task")
        assert finding.severity == "critical"
        assert finding.title.startswith("shop.jobs.send fails since ")
        assert finding.title.endswith(": KeyError: '••••••', 10 failed attempts, 3 jobs retrying")
        assert finding.found == ("Of the last 10 attempts 100 % have failed. At this hour 0 % usually fail.")
        assert finding.command == (
            "python manage.py skipqueue run-now --retrying --task shop.jobs.send "
            "--exception 'builtins.KeyError in shop.jobs.send'"
        )
        assert finding.subject == TASK
        assert finding.since is not None
        assert finding.link is not None
        assert finding.link.query == {"task": TASK, "cause": "builtins.KeyError in shop.jobs.send"}

    def test_the_finding_names_the_deployment_in_which_a_new_cause_was_first_seen(self) -> None:
        fail(6)
        FailureRollUp.objects.update(first_deployment="4f2a")
        (finding,) = found("failing-task")
        assert ", since deployment 4f2a: KeyError, 6 failed attempts" in finding.title

    @pytest.mark.parametrize(
        ("failed", "completed", "severity"), [(4, 0, None), (5, 0, "critical"), (5, 1, None), (9, 1, "critical")]
    )
    def test_a_new_cause_has_five_failures_and_nearly_all_attempts(
        self, failed: int, completed: int, severity: str | None
    ) -> None:
        fail(failed)
        count(completed=completed)
        assert [each.severity for each in found("failing-task")] == [severity] * bool(severity)

    def test_a_deploy_that_breaks_a_task_is_found(self) -> None:
        for minutes in range(3, 10):
            count(ago=minutes * MINUTE, completed=100)
        fail(8, ago=2 * MINUTE)
        count(ago=2 * MINUTE, completed=20)
        assert found("failing-task") == [], "8 of 728"
        fail(10, ago=MINUTE)
        (finding,) = found("failing-task")
        assert finding.severity == "critical"
        assert finding.found.startswith("Of the last 10 attempts 100 %")

    def test_a_rare_new_cause_hides_no_old_cause(self) -> None:
        roll_up(KEY_ERROR, seconds_ago=HOUR * 2)
        for minutes in range(10):
            fail(6, ago=minutes * MINUTE)
        fail(1, Cause(TASK, "builtins.OSError", "shop.jobs.send"), ago=2 * MINUTE)
        (finding,) = found("failing-task")
        assert "KeyError" in finding.title

    @pytest.mark.parametrize(
        ("failed", "completed", "severity"),
        [(3, 17, None), (4, 16, "warning"), (4, 15, None), (10, 10, "critical"), (20, 81, None)],
    )
    def test_an_old_cause_has_a_fifth_of_twenty_attempts(
        self, failed: int, completed: int, severity: str | None
    ) -> None:
        roll_up(KEY_ERROR, seconds_ago=5 * DAY)
        fail(failed)
        count(completed=completed)
        assert [each.severity for each in found("failing-task")] == [severity] * bool(severity)

    def test_what_fails_each_day_at_this_hour_is_usual(self) -> None:
        for day in range(1, 8):
            fail(30, ago=day * DAY)
            count(ago=day * DAY, completed=70)
        fail(12)
        count(completed=28)
        assert found("failing-task") == [], "30 % as always"
        fail(30)
        (finding,) = found("failing-task")
        assert finding.severity == "critical"
        assert "At this hour 30 % usually fail." in finding.found

    def test_one_bad_day_is_not_usual(self) -> None:
        for day in range(1, 8):
            count(ago=day * DAY, completed=100)
        fail(300, ago=DAY)
        fail(30)
        assert len(found("failing-task")) == 1

    def test_a_task_fails_since_the_last_minute_in_which_it_did_not_fail(self) -> None:
        roll_up(KEY_ERROR, seconds_ago=5 * DAY)
        count(ago=40 * MINUTE, completed=30, retried=1)
        for minutes in (30, 20, 5, 0):
            fail(20, ago=minutes * MINUTE)
        count(ago=20 * MINUTE, completed=20)
        (finding,) = found("failing-task")
        assert finding.since is not None
        ((now,),) = DEFAULT.rows("SELECT statement_timestamp()")
        assert timedelta(minutes=29) < now - finding.since < timedelta(minutes=32)

    def test_a_worker_that_dies_is_no_failure_of_the_task(self) -> None:
        roll_up(Cause(TASK, WORKER_DIED, ""), 9)
        count(recovered=9)
        assert found("failing-task") == []

    def test_the_task_may_be_in_several_queues_and_its_job_gone(self) -> None:
        count(queue_name="mail", retried=3)
        count(queue_name="default", retried=3)
        roll_up(KEY_ERROR, 6)
        (finding,) = found("failing-task")
        assert ": KeyError, 6 failed attempts, 0 jobs retrying" in finding.title
        assert finding.command == (
            "python manage.py skipqueue retry --failed --task shop.jobs.send "
            "--exception 'builtins.KeyError in shop.jobs.send'"
        )

    def test_the_threshold_is_a_setting(self, settings: Any) -> None:
        roll_up(KEY_ERROR, seconds_ago=5 * DAY)
        fail(8)
        count(completed=12)
        settings.SKIPQUEUE = {"RULES": {"failing-task": 0.5}}
        assert found("failing-task") == []
        settings.SKIPQUEUE = {"RULES": {"failing-task": None}}
        fail(100)
        assert found("failing-task") == []


class TestWorkerDeaths:
    def test_the_task_of_most_lost_jobs_is_named(self) -> None:
        count(recovered=2)
        assert found("worker-deaths") == []
        count("shop.jobs.render", "pdf", recovered=4, ago=MINUTE)
        (finding,) = found("worker-deaths")
        assert finding.severity == "warning"
        assert finding.title.endswith(": 6 running jobs were lost, 4 of them of shop.jobs.render")
        assert finding.command == "python manage.py runworker --max-memory-mb 500"
        assert finding.subject == "shop.jobs.render"

    def lose(self, worker: Worker) -> None:
        """Recover a job whose worker died."""
        job = make_job("scheduled", errors=[{"exception": WORKER_DIED, "worker_id": worker.pk}])
        count(recovered=3)
        roll_up(Cause(TASK, WORKER_DIED, ""), 3, job_id=job.pk)

    def test_a_machine_that_died_is_named_by_its_workers(self) -> None:
        one, two = (make_worker(name=f"web-1/{number}", heartbeat=timedelta(minutes=-5)) for number in (1, 2))
        make_worker(name="long-ago/1", heartbeat=timedelta(minutes=-40))
        make_worker(name="web-2/1")
        self.lose(one)
        (finding,) = found("worker-deaths")
        assert finding.title.startswith("Workers and their supervisor are gone since ")
        assert {part.strip() for part in finding.title[:-28].rpartition(": ")[2].strip(".").split(",")} >= {two.name}
        assert "long-ago" not in finding.title
        assert finding.command == "python manage.py runworker"

    def test_a_dead_worker_that_lost_no_job_is_not_blamed(self) -> None:
        make_worker(name="idle/1", heartbeat=timedelta(minutes=-5))
        self.lose(Worker(id="web-1/1:0123456789ab"))
        (finding,) = found("worker-deaths")
        assert finding.title.startswith("Workers die since ")

    def test_a_job_that_kills_is_named(self) -> None:
        entry = {"exception": WORKER_DIED}
        job = make_job("scheduled", task=TASK, errors=[entry, entry])
        count(recovered=3)
        roll_up(Cause(TASK, WORKER_DIED, ""), 3, job_id=job.pk)
        (finding,) = found("worker-deaths")
        assert finding.severity == "critical"
        assert finding.title.startswith(f"Job {job.pk} of {TASK} kills its workers since ")
        assert finding.title.endswith(": 2 died, 3 jobs were lost")
        assert finding.command == f"python manage.py skipqueue discard {job.pk}"
        assert finding.link is not None
        assert finding.link.arguments == (job.pk,)

    def test_what_is_eleven_minutes_old_is_over(self) -> None:
        count(recovered=9, ago=11 * MINUTE)
        assert found("worker-deaths") == []


class TestGrowingQueue:
    def _grow(self, before: int = 1_000, now: int = 9_000, **counts: Any) -> None:
        sample(before, ago=9 * MINUTE, oldest=10.0)
        sample(now, oldest=300.0)
        count(**{"completed": 1_000} | counts)

    def test_jobs_come_faster_than_they_are_run(self) -> None:
        self._grow()
        (finding,) = found("growing-queue")
        assert finding.severity == "warning"
        assert finding.title.startswith("Queue default grows since ")
        assert finding.title.endswith(": 9,000 jobs wait, in ten minutes 9,000 came and 1,000 were run")
        assert "take 1 h 30 min, if no other comes" in finding.found
        assert finding.command == "python manage.py runworker --queues default"

    def test_what_is_drained_soon_is_not_told(self) -> None:
        self._grow(completed=6_000)
        assert found("growing-queue") == [], "15 minutes"

    def test_a_queue_that_shrinks_does_not_grow(self) -> None:
        self._grow(before=9_900)
        assert found("growing-queue") == []

    def test_a_queue_that_nothing_runs_has_other_rules(self) -> None:
        self._grow(completed=0)
        assert found("growing-queue") == []

    def test_a_paused_queue_grows_on_purpose(self) -> None:
        self._grow()
        Queue.pause("default")
        assert found("growing-queue") == []

    def test_without_a_sample_from_before_nobody_knows(self) -> None:
        sample(9_000)
        count(completed=1_000)
        assert found("growing-queue") == []

    @pytest.mark.parametrize(("usual", "expected"), [(8_000, 0), (4_000, 1)])
    def test_a_peak_of_every_night_is_usual(self, usual: int, expected: int) -> None:
        for day in range(1, 8):
            sample(usual, ago=day * DAY + HOUR)
        self._grow()
        assert len(found("growing-queue")) == expected

    def test_the_threshold_of_a_queue(self, settings: Any) -> None:
        self._grow()
        settings.SKIPQUEUE = {"RULES": {"growing-queue": {"default": None}}}
        assert found("growing-queue") == []


class TestRetryStorm:
    def test_the_retries_of_five_minutes_take_all_slots(self) -> None:
        make_worker(concurrency=2)
        sample(0, ago=9 * MINUTE)
        count(retried=10, ran_seconds=10 * 60.0)
        for _ in range(9):
            make_failing(KEY_ERROR, "scheduled", run_after=timedelta(minutes=1))
        make_job("scheduled", run_after=timedelta(minutes=1))
        assert found("retry-storm") == []
        make_failing(KEY_ERROR, "scheduled", run_after=timedelta(minutes=1))
        (finding,) = found("retry-storm")
        assert finding.severity == "warning"
        assert finding.title == (
            "About 10 jobs of queue default are retried within five minutes, most of them of shop.jobs.send, and take "
            "all slots"
        )
        assert finding.command == "python manage.py skipqueue postpone --retrying --queue default --for 30m"

    def test_retries_that_are_due_later_or_short_are_none(self) -> None:
        make_worker(concurrency=2)
        sample(0, ago=9 * MINUTE)
        count(retried=10, ran_seconds=0.1)
        for minutes in (1, 20):
            make_failing(KEY_ERROR, "scheduled", run_after=timedelta(minutes=minutes))
        assert found("retry-storm") == []

"""`skipqueue demo`: a stream of jobs for its own worker, and nothing of it afterwards."""

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue import Batch
from django_skipqueue.management.demo import batches
from django_skipqueue.management.demo.stream import cancel_unfinished, defer_for, delete_all
from django_skipqueue.management.demo.tasks import KINDS, QUEUE_NAMES, RANDOM, register
from django_skipqueue.models import Dependency, Job, JobBatch, Schedule, Worker
from django_skipqueue.tasks.registry import Registry
from django_skipqueue.testing import run_jobs

from ...app.rows import STATUSES, make_job
from ...app.waiting import wait_until
from ...harness.processes import is_alive
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def of_demo() -> Any:
    return Job.objects.filter(queue_name__in=QUEUE_NAMES)


def test_its_own_worker_runs_the_jobs_and_the_projects_leaves_them_alone(manage: Callable[..., Any]) -> None:
    project = manage("runworker", "--poll-interval", "0.1", "--name", "project")
    theirs = {"theirs": {"task": "tests.app.jobs.noop", "cron": "* * * * * *"}}
    demo = manage("skipqueue", "demo", "--rate", "20", skipqueue={"PERIODIC": theirs})
    wait_until(lambda: of_demo().completed().count() >= 20, "jobs of the demo are completed", deadline=60)
    wait_until(lambda: of_demo().exclude(errors=[]).exists(), "one has failed", deadline=60)
    wait_until(Schedule.objects.exists, "it has a schedule")
    wait_until(lambda: JobBatch.objects.filter(completed__gt=0).exists(), "a batch is finished", deadline=60)
    wait_until(lambda: of_demo().blocked().filter(limit_kind="concurrency").exists(), "a limit is reached", deadline=60)
    assert [each.name for each in Schedule.objects.all()] == ["demo.build_report of the day"]
    mine = make_job()
    wait_until(lambda: Job.objects.completed().filter(pk=mine.pk).exists(), "the project's worker runs its own")
    demo.send_to_group(signal.SIGINT)
    assert demo.wait() == 0
    demo.wait_for("`skipqueue demo --clean` deletes them.")
    assert "UnknownTask" not in project.log
    assert not of_demo().filter(last_error__startswith="UnknownTask").exists()
    assert not {job.worker_name for job in of_demo().completed()} & {"project/1"}
    assert not of_demo().unfinished().exists()
    assert not JobBatch.objects.filter(finished_at=None).exists()
    assert not Schedule.objects.exists()


def test_its_worker_ends_with_it_even_if_it_is_killed(manage: Callable[..., Any]) -> None:
    demo = manage("skipqueue", "demo")
    wait_until(lambda: Worker.objects.filter(name="demo/1").exists(), "the worker runs")
    pid = Worker.objects.get(name="demo/1").pid
    demo.send(signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "its worker has ended")


def test_a_worker_that_cannot_start_ends_the_demo(manage: Callable[..., Any]) -> None:
    breaks = "import os\nif 'SKIPQUEUE_DEMO_LIFELINE' in os.environ: raise SystemExit(7)"
    demo = manage("skipqueue", "demo", settings=breaks)
    assert demo.wait() == 1
    assert "The demo's worker has ended with exit code 7." in demo.log


def test_a_worker_that_drains_does_not_wait_for_the_demo(manage: Callable[..., Any]) -> None:
    list(defer_for(timedelta(seconds=0.1), rate=100))
    assert manage("runworker", "--drain").wait() == 0
    assert not of_demo().filter(attempts__gt=0).exists()


def test_every_task_runs(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(RANDOM, "random", lambda: 0.9)
    register()
    for kind in KINDS:
        make_job(task=kind.name, queue_name=kind.queue_name, kwargs=kind.call(1), max_attempts=kind.max_attempts)
    statuses = {job.task: job.status for job in run_jobs(queue_names=QUEUE_NAMES)}
    assert statuses.pop("demo.sync_customer") in ("scheduled", "failed"), "on a slow machine it is due again"
    assert set(statuses.values()) == {"completed"}


def test_albums_have_a_callback_and_orders_are_chains(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(RANDOM, "random", lambda: 0.9)
    register()
    assert batches.defer_batches(range(1, 3)) == of_demo().count()
    ran = [job.task for job in run_jobs(queue_names=QUEUE_NAMES)]
    assert ran.count("demo.publish_album") == 1
    order = [task for task in ran if task in ("demo.reserve_stock", "demo.print_label", "demo.hand_over")]
    assert (order[0], {*order[1:-1]}, order[-1]) == ("demo.reserve_stock", {"demo.print_label"}, "demo.hand_over")
    assert not JobBatch.objects.filter(finished_at=None).exists()


def test_no_callback_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor of the project would enqueue it after the end of the demo, and nobody would run it."""
    monkeypatch.setattr(RANDOM, "random", lambda: 0.9)
    batches.defer_batches(range(1, 3))
    of_demo().filter(task="demo.resize_photo").update(status="completed", finished_at="2026-01-01T00:00Z")
    cancel_unfinished(by="ann")
    assert {job.status for job in of_demo().filter(task="demo.publish_album")} == {"discarded"}
    assert not of_demo().unfinished().exists()
    assert not JobBatch.objects.filter(finished_at=None).exists()


def test_no_process_knows_the_tasks_but_the_demos_worker() -> None:
    from django_skipqueue.tasks.registry import registry

    assert not [task.name for task in registry if task.name.startswith("demo.")]


def test_clean_deletes_the_jobs_of_demos_and_no_others() -> None:
    for status in STATUSES:
        make_job(status, queue_name=QUEUE_NAMES[0])
        make_job(status, queue_name="demo-of-the-project")
    batches.defer_batches(range(1, 3))
    jobs = of_demo().count()
    with Batch(name="of the project"):
        make_job(queue_name="demo-of-the-project")
    result = skipqueue("demo", "--clean")
    assert (result.code, result.err) == (0, f"{jobs} jobs deleted.\n")
    assert {job.queue_name for job in Job.objects.all()} == {"demo-of-the-project"}
    assert [batch.name for batch in JobBatch.objects.all()] == ["of the project"]
    assert not Dependency.objects.exists()
    assert skipqueue("demo", "--clean").code == 3


def test_finished_jobs_are_pruned_within_a_day() -> None:
    list(defer_for(timedelta(seconds=0.1), rate=50))
    of_demo().update(status="failed", finished_at="2026-01-01T00:00Z")
    skipqueue("prune")
    assert not of_demo().exists()
    assert delete_all() == 0

"""`no-free-slot`: jobs that run for long hold every slot, while other jobs wait."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console.rules import jobs_and_workers
from django_skipqueue.models import Queue, Worker

from ...app import jobs
from ...app.rows import make_job, make_worker
from .conftest import STORE, FindingsOf

NO_FREE_SLOT = "no-free-slot"


@pytest.fixture
def workers(transactional_db: None) -> list[Worker]:
    """Make two workers that serve `default` and `reports`, and one that serves `mail`. Each has two slots."""
    queues = [["default", "reports"], ["default", "reports"], ["mail"]]
    return [
        make_worker(name=f"w{number}", concurrency=2, queues=queue_names) for number, queue_names in enumerate(queues)
    ]


def make_long_jobs(worker: Worker, count: int, task: str = "shop.hang", **fields: Any) -> list[int]:
    """Make jobs of this worker that have run for twelve hours."""
    times = {"locked_at": timedelta(hours=-12), "started_at": timedelta(hours=-12)}
    return [make_job("running", task=task, locked_by=worker.pk, **(times | fields)).pk for _ in range(count)]


def test_a_task_that_holds_every_slot_is_found_with_the_command_that_cancels_it(
    workers: list[Worker], findings_of: FindingsOf
) -> None:
    # Of the second worker's three jobs, two run, and the third waits in the worker for a free slot.
    ids = make_long_jobs(workers[0], 2) + make_long_jobs(workers[1], 3)
    for queue_name in ("default", "reports", "mail"):
        make_job(queue_name=queue_name, run_after=timedelta(hours=-11))
    (finding,) = findings_of(NO_FREE_SLOT)
    assert finding.title == (
        "shop.hang holds the slots of queue default, reports (4 in all), and jobs wait: its 5 running jobs have run "
        "for up to 12 h"
    )
    assert finding.found == "The next job has waited for 11 h."
    assert finding.command.split()[:4] == ["python", "manage.py", "skipqueue", "cancel"]
    assert sorted(finding.command.split()[4:]) == sorted(map(str, ids)), "no waiting job is to be cancelled"
    assert (finding.severity, finding.subject) == ("critical", "default")
    assert finding.since is not None


@pytest.mark.parametrize(
    ("usual_seconds", "expected_text", "command"),
    [
        (2.0, "usually take 2.0 s at most, and probably hang", "python manage.py skipqueue cancel "),
        (7_200.0, "and usually take 2 h at most", "python manage.py runworker --queues mail"),
    ],
)
def test_the_finding_tells_a_task_that_hangs_from_a_slow_task(
    workers: list[Worker],
    findings_of: FindingsOf,
    monkeypatch: pytest.MonkeyPatch,
    usual_seconds: float,
    expected_text: str,
    command: str,
) -> None:
    monkeypatch.setattr(jobs_and_workers, "usual_runs", lambda store, tasks: dict.fromkeys(tasks, usual_seconds))
    make_long_jobs(workers[2], 2)
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    (finding,) = findings_of(NO_FREE_SLOT)
    assert finding.title.endswith(f"its 2 running jobs have run for up to 12 h, {expected_text}")
    assert finding.command.startswith(command)


def test_the_task_that_has_held_slots_for_longest_is_named(workers: list[Worker], findings_of: FindingsOf) -> None:
    """The finding names this task, not the task with the most jobs."""
    make_long_jobs(workers[0], 2, task="shop.slow", locked_at=timedelta(minutes=-2))
    make_long_jobs(workers[1], 1, task="shop.slow", locked_at=timedelta(minutes=-2))
    (id_of_hanging_job,) = make_long_jobs(workers[1], 1)
    make_job(run_after=timedelta(hours=-11))
    (finding,) = findings_of(NO_FREE_SLOT)
    assert finding.title.startswith("shop.hang holds the slots of queue default (4 in all), ")
    assert finding.title.endswith("its running job has run for 12 h")
    assert finding.command == f"python manage.py skipqueue cancel {id_of_hanging_job}"


def test_long_jobs_beside_a_free_slot_are_no_finding(workers: list[Worker], findings_of: FindingsOf) -> None:
    make_long_jobs(workers[0], 4)
    make_long_jobs(workers[1], 1)
    make_job(run_after=timedelta(hours=-11))
    assert findings_of(NO_FREE_SLOT) == []


def test_slots_of_threads_and_of_coroutines_are_counted_separately(
    workers: list[Worker], findings_of: FindingsOf
) -> None:
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    make_long_jobs(workers[2], 1)
    make_long_jobs(workers[2], 1, task=jobs.anoop.name)
    assert findings_of(NO_FREE_SLOT) == []
    make_long_jobs(workers[2], 1, task=jobs.anoop.name)
    (finding,) = findings_of(NO_FREE_SLOT)
    assert finding.title.startswith(f"{jobs.anoop.name} holds the slots of queue mail (2 in all), and jobs wait: ")


def test_jobs_that_run_for_less_than_the_threshold_are_no_finding(
    workers: list[Worker], findings_of: FindingsOf, settings: Any
) -> None:
    make_long_jobs(workers[0], 2)
    make_long_jobs(workers[1], 2, locked_at=timedelta(seconds=-5))
    make_job(run_after=timedelta(hours=-11))
    assert findings_of(NO_FREE_SLOT) == []
    settings.SKIPQUEUE = {"RULES": {NO_FREE_SLOT: 4}}
    assert len(findings_of(NO_FREE_SLOT)) == 1


def test_a_job_that_has_only_begun_to_wait_is_no_finding(workers: list[Worker], findings_of: FindingsOf) -> None:
    for worker in workers:
        make_long_jobs(worker, 2)
    make_job()
    assert findings_of(NO_FREE_SLOT) == []


def test_a_paused_queue_without_free_slots_is_no_finding(workers: list[Worker], findings_of: FindingsOf) -> None:
    make_long_jobs(workers[2], 2)
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    Queue.pause("mail")
    assert findings_of(NO_FREE_SLOT) == []


def test_a_job_whose_row_somebody_has_locked_holds_no_slot(
    workers: list[Worker], findings_of: FindingsOf, connect: Any
) -> None:
    """The job may have ended, and its worker may only wait until it can write the outcome."""
    id_of_locked_job, _ = make_long_jobs(workers[2], 2)
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    assert len(findings_of(NO_FREE_SLOT)) == 1
    locking_session = connect()
    locking_session.execute("BEGIN")
    locking_session.execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [id_of_locked_job])
    assert findings_of(NO_FREE_SLOT) == []
    locking_session.execute("ROLLBACK")
    assert len(findings_of(NO_FREE_SLOT)) == 1


def test_no_free_slot_takes_few_queries_for_many_workers_and_queues(transactional_db: None) -> None:
    for number in range(30):
        worker = make_worker(name=f"w{number}", concurrency=1, queues=[f"q{number % 3}"])
        for queue in range(3):
            make_job("running", locked_by=worker.pk, locked_at=timedelta(hours=-1), queue_name=f"q{queue}")
            make_job(queue_name=f"q{queue}", run_after=timedelta(minutes=-5))
    with CaptureQueriesContext(connection) as queries:
        assert len(list(jobs_and_workers.no_free_slot(STORE))) == 3
    assert len(queries) <= 10

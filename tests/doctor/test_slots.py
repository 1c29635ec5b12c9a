"""`no-free-slot`: jobs that run for long hold every slot, while others wait."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console.rules import jobs_and_workers
from django_skipqueue.models import Queue, Worker

from ..app import jobs
from ..app.rows import make_job, make_worker
from .conftest import STORE, Found

CODE = "no-free-slot"


@pytest.fixture
def workers(transactional_db: None) -> list[Worker]:
    """Two workers that serve `default` and `reports`, and a worker that serves `mail`; each has two slots."""
    queues = [["default", "reports"], ["default", "reports"], ["mail"]]
    return [make_worker(name=f"w{n}", concurrency=2, queues=names) for n, names in enumerate(queues)]


def hang(worker: Worker, amount: int, task: str = "shop.hang", **fields: Any) -> list[int]:
    """Make jobs of this worker that have run for twelve hours."""
    times = {"locked_at": timedelta(hours=-12), "started_at": timedelta(hours=-12)}
    return [make_job("running", task=task, locked_by=worker.pk, **(times | fields)).pk for _ in range(amount)]


def test_the_task_that_holds_every_slot_is_named(workers: list[Worker], found: Found) -> None:
    ids = hang(workers[0], 2) + hang(workers[1], 3)  # the third job is claimed ahead
    for queue_name in ("default", "reports", "mail"):
        make_job(queue_name=queue_name, run_after=timedelta(hours=-11))
    (full,) = found(CODE)
    assert full.title == (
        "shop.hang holds the slots for default, reports, 4 in all, and jobs wait: its 5 running jobs have run for up "
        "to 12 h"
    )
    assert full.found == "The next job has waited for 11 h."
    assert full.command.split()[:4] == ["python", "manage.py", "skipqueue", "cancel"]
    assert sorted(full.command.split()[4:]) == sorted(map(str, ids)), "and no job of the task that waits"
    assert (full.severity, full.subject) == ("critical", "default")
    assert full.since is not None


@pytest.mark.parametrize(
    ("usual", "says", "command"),
    [
        (2.0, "usually take 2.0 s at most, and probably hang", "python manage.py skipqueue cancel "),
        (7_200.0, "and usually take 2 h at most", "python manage.py runworker --queues mail"),
    ],
)
def test_a_task_that_hangs_is_told_from_a_slow_task(
    workers: list[Worker], found: Found, monkeypatch: pytest.MonkeyPatch, usual: float, says: str, command: str
) -> None:
    monkeypatch.setattr(jobs_and_workers, "usual_runs", lambda store, tasks: dict.fromkeys(tasks, usual))
    hang(workers[2], 2)
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    (full,) = found(CODE)
    assert full.title.endswith(f"its 2 running jobs have run for up to 12 h, {says}")
    assert full.command.startswith(command)


def test_the_task_that_has_held_slots_for_longest_is_named(workers: list[Worker], found: Found) -> None:
    """Not the task with the most jobs."""
    hang(workers[0], 2, task="shop.slow", locked_at=timedelta(minutes=-2))
    hang(workers[1], 1, task="shop.slow", locked_at=timedelta(minutes=-2))
    (hung,) = hang(workers[1], 1)
    make_job(run_after=timedelta(hours=-11))
    (full,) = found(CODE)
    assert full.title.startswith("shop.hang holds the slots for default, 4 in all, ")
    assert full.title.endswith("its running job has run for 12 h")
    assert full.command == f"python manage.py skipqueue cancel {hung}"


def test_a_free_slot_is_no_problem(workers: list[Worker], found: Found) -> None:
    hang(workers[0], 4)
    hang(workers[1], 1)
    make_job(run_after=timedelta(hours=-11))
    assert found(CODE) == []


def test_threads_and_coroutines_are_counted_apart(workers: list[Worker], found: Found) -> None:
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    hang(workers[2], 1)
    hang(workers[2], 1, task=jobs.anoop.name)
    assert found(CODE) == []
    hang(workers[2], 1, task=jobs.anoop.name)
    (full,) = found(CODE)
    assert full.title.startswith(f"{jobs.anoop.name} holds the slots for mail, 2 in all, and jobs wait: ")


def test_short_jobs_are_no_problem_before_the_threshold(workers: list[Worker], found: Found, settings: Any) -> None:
    hang(workers[0], 2)
    hang(workers[1], 2, locked_at=timedelta(seconds=-5))
    make_job(run_after=timedelta(hours=-11))
    assert found(CODE) == []
    settings.SKIPQUEUE = {"RULES": {CODE: 4}}
    assert len(found(CODE)) == 1


def test_a_job_that_has_just_come_is_no_problem(workers: list[Worker], found: Found) -> None:
    for worker in workers:
        hang(worker, 2)
    make_job()
    assert found(CODE) == []


def test_a_paused_queue_waits_on_purpose(workers: list[Worker], found: Found) -> None:
    hang(workers[2], 2)
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    Queue.pause("mail")
    assert found(CODE) == []


def test_a_job_whose_row_somebody_has_locked_holds_no_slot(workers: list[Worker], found: Found, connect: Any) -> None:
    """The job may have ended, and its worker waits until it can write the outcome: the task is not to blame."""
    first, *_ = hang(workers[2], 2)
    make_job(queue_name="mail", run_after=timedelta(hours=-11))
    assert len(found(CODE)) == 1
    other = connect()
    other.execute("BEGIN")
    other.execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [first])
    assert found(CODE) == []
    other.execute("ROLLBACK")
    assert len(found(CODE)) == 1


def test_the_queries_are_few_whatever_there_is(transactional_db: None) -> None:
    for number in range(30):
        worker = make_worker(name=f"w{number}", concurrency=1, queues=[f"q{number % 3}"])
        for queue in range(3):
            make_job("running", locked_by=worker.pk, locked_at=timedelta(hours=-1), queue_name=f"q{queue}")
            make_job(queue_name=f"q{queue}", run_after=timedelta(minutes=-5))
    with CaptureQueriesContext(connection) as queries:
        assert len(list(jobs_and_workers.no_free_slot(STORE))) == 3
    assert len(queries) <= 10

"""`NeededRunners`, and workers that run `def` and `async def` tasks: jobs of one runner take no slot of the other."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.jobs.registry import EVENT_LOOP, THREADS
from django_skipqueue.models import Job
from django_skipqueue.values.records import ClaimedJob
from django_skipqueue.worker import claiming as module
from django_skipqueue.worker.claiming import RUNNERS_KNOWN_SECONDS, Free, NeededRunners

from ...app import jobs, worker_jobs
from ...app.waiting import wait_until
from ...harness.processes import wait_for_statuses
from ...harness.threads import WorkerThread

StartWorker = Callable[..., WorkerThread]
HOUR = 3600.0


def make_claimed_job(task: str, queue_name: str) -> ClaimedJob:
    return ClaimedJob(
        id=1, lease=1, task=task, queue_name=queue_name, args="[]", kwargs="{}", attempt=1, max_attempts=10,
        priority=0, run_after=9.0, locked_at=9.0, metadata="{}",
    )  # fmt: skip


def free_slots(threads: int, event_loop: int) -> Free:
    return {THREADS: threads, EVENT_LOOP: event_loop}


def needed_after_claim(*claimed_jobs: tuple[str, str], names: str = "abc", is_full: bool = False) -> NeededRunners:
    """The runners needed after a claim of these jobs: pairs of `t` (thread) or `c` (coroutine) and the queue."""
    needed = NeededRunners()
    tasks = {"t": jobs.noop.name, "c": jobs.anoop.name}
    needed.note(
        list(names), [make_claimed_job(tasks[kind], queue) for kind, queue in claimed_jobs], is_full=is_full, now=0.0
    )
    return needed


@pytest.mark.parametrize(
    # Free slots of the threads and of the event loop, the queues to claim from, and for how many jobs there is room.
    ("free", "names", "room"),
    [
        (free_slots(7, 3), "abc", 3),
        (free_slots(7, 3), "a", 7),
        (free_slots(7, 3), "b", 3),
        (free_slots(7, 3), "c", 7),
        (free_slots(7, 0), "abc", 7),
        (free_slots(7, 0), "b", 0),
        (free_slots(0, 3), "abc", 3),
        (free_slots(0, 3), "a", 0),
        (free_slots(0, 3), "c", 3),
        (free_slots(0, 3), "", 3),
    ],
)
def test_a_queue_is_passed_over_while_the_slots_that_its_jobs_need_are_full(free: Free, names: str, room: int) -> None:
    needed = needed_after_claim(("t", "a"), ("c", "b"))
    assert needed.room(list(names), free, now=0.5) == room
    with_room = needed.with_room(list("abc"), free, now=0.5)
    full_queues = {name for name, runner in (("a", THREADS), ("b", EVENT_LOOP)) if not free[runner]}
    assert with_room == [name for name in "abc" if name not in full_queues]


def test_a_queue_with_functions_and_coroutines_needs_both_kinds_of_slots() -> None:
    needed = needed_after_claim(("t", "a"), ("c", "a"))
    assert needed.room(["a"], free_slots(threads=7, event_loop=0), now=0.5) == 0
    assert needed.room(["a"], free_slots(threads=0, event_loop=3), now=0.5) == 0
    assert needed.room(["a"], free_slots(threads=7, event_loop=3), now=0.5) == 3


def test_the_runners_that_a_queue_needs_are_remembered_for_a_while() -> None:
    needed = needed_after_claim(("t", "a"))
    assert needed.room(["a"], free_slots(0, 3), now=RUNNERS_KNOWN_SECONDS - 0.1) == 0
    assert needed.room(["a"], free_slots(0, 3), now=RUNNERS_KNOWN_SECONDS) == 3


@pytest.mark.parametrize(("is_full", "room"), [(True, 0), (False, 3)])
def test_the_runners_of_a_queue_without_jobs_are_forgotten(is_full: bool, room: int) -> None:
    needed = needed_after_claim(("t", "a"))
    needed.note(["b", "a"], [make_claimed_job(jobs.anoop.name, "b")], is_full=is_full, now=0.0)
    assert needed.room(["a"], free_slots(0, 3), now=0.5) == room


def test_the_runners_of_very_many_queues_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_QUEUES_REMEMBERED", 2)
    needed = needed_after_claim(("t", "a"), ("t", "b"), ("t", "c"))
    assert needed.room(["a"], free_slots(0, 3), now=0.5) == 0
    needed.note(["d"], [make_claimed_job(jobs.noop.name, "d")], is_full=False, now=0.5)
    assert [needed.room([name], free_slots(0, 3), now=0.5) for name in "abcd"] == [3, 3, 3, 0]


# With a worker

# A task that fills all slots of one runner, and a quick task of the other runner.
FILLING_AND_QUICK_TASKS = [("apass_gate", "noop"), ("pass_gate", "anoop")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("filling_task", "quick_task"), FILLING_AND_QUICK_TASKS)
def test_jobs_that_fill_the_threads_do_not_block_coroutines_and_vice_versa(
    worker_thread: StartWorker, gates: Any, filling_task: str, quick_task: str
) -> None:
    getattr(worker_jobs, filling_task).using(priority=1).defer_many([("g",)] * 4)
    worker_thread(concurrency=4, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 4)
    getattr(jobs, quick_task).defer_many([()] * 30)
    wait_for_statuses(completed=30, running=4)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("queue_names", [(), ("waiting", "quick")])
@pytest.mark.parametrize(("filling_task", "quick_task"), FILLING_AND_QUICK_TASKS)
def test_a_backlog_for_one_runner_does_not_block_queues_for_the_other_runner(
    worker_thread: StartWorker, gates: Any, filling_task: str, quick_task: str, queue_names: tuple[str, ...]
) -> None:
    getattr(worker_jobs, filling_task).using(queue_name="waiting").defer_many([("g",)] * 50)
    worker_thread(concurrency=4, poll_interval=HOUR, queue_names=queue_names)
    wait_until(lambda: gates["g"].inside == 4)
    getattr(jobs, quick_task).using(queue_name="quick").defer_many([()] * 30)
    wait_for_statuses(completed=30, running=4, queued=46)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("filling_task", "quick_task"), FILLING_AND_QUICK_TASKS)
def test_jobs_without_a_free_slot_are_rarely_claimed_and_released(
    worker_thread: StartWorker, gates: Any, filling_task: str, quick_task: str
) -> None:
    getattr(worker_jobs, filling_task).defer_many([("g",)] * 50)
    worker_thread(concurrency=4, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 4)
    started_at = time.monotonic()
    first_waiting_job = Job.objects.order_by("id")[4]  # the four jobs before it run
    wait_until(
        lambda: Job.objects.get(pk=first_waiting_job.pk).lease >= first_waiting_job.lease + 6,
        "the worker has claimed and released the job three times",
    )
    assert time.monotonic() - started_at > 1.0
    assert set(Job.objects.values_list("attempts", flat=True)) <= {0, 1}

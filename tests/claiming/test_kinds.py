"""`NeededRunners`, and workers that run `def` and `async def` tasks: jobs of one runner take no slots of the other."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.jobs.registry import EVENT_LOOP, THREADS
from django_skipqueue.models import Job
from django_skipqueue.values.records import ClaimedJob
from django_skipqueue.worker import claiming as module
from django_skipqueue.worker.claiming import RUNNERS_KNOWN_SECONDS, Free, NeededRunners

from ..app import jobs, worker_jobs
from ..app.waiting import wait_until
from ..harness.processes import wait_for_statuses
from ..harness.threads import WorkerThread

Start = Callable[..., WorkerThread]
HOUR = 3600.0


def job(task: str, queue_name: str) -> ClaimedJob:
    return ClaimedJob(1, 1, task, queue_name, "[]", "{}", 1, 10, 0, 9.0, 9.0, "{}")


def free(threads: int, event_loop: int) -> Free:
    return {THREADS: threads, EVENT_LOOP: event_loop}


def noted(*brought: tuple[str, str], names: str = "abc", is_full: bool = False) -> NeededRunners:
    """After a claim of these jobs at the time 0. A job is `t` for threads or `c` for coroutines, and the queue."""
    kinds = NeededRunners()
    tasks = {"t": jobs.noop.name, "c": jobs.anoop.name}
    kinds.note(list(names), [job(tasks[kind], queue) for kind, queue in brought], is_full=is_full, now=0.0)
    return kinds


@pytest.mark.parametrize(
    ("room_of", "names", "room"),
    [
        (free(7, 3), "abc", 3),
        (free(7, 3), "a", 7),
        (free(7, 3), "b", 3),
        (free(7, 3), "c", 7),
        (free(7, 0), "abc", 7),
        (free(7, 0), "b", 0),
        (free(0, 3), "abc", 3),
        (free(0, 3), "a", 0),
        (free(0, 3), "c", 3),
        (free(0, 3), "", 3),
    ],
)
def test_a_queue_is_passed_over_while_the_slots_that_its_jobs_need_are_full(
    room_of: Free, names: str, room: int
) -> None:
    kinds = noted(("t", "a"), ("c", "b"))
    assert kinds.room(list(names), room_of, now=0.5) == room
    with_room = kinds.with_room(list("abc"), room_of, now=0.5)
    assert with_room == [
        name
        for name in "abc"
        if not (name == "a" and not room_of[THREADS]) and not (name == "b" and not room_of[EVENT_LOOP])
    ]


def test_a_queue_of_both_kinds_waits_for_either() -> None:
    kinds = noted(("t", "a"), ("c", "a"))
    assert [kinds.room(["a"], room_of, now=0.5) for room_of in (free(7, 0), free(0, 3), free(7, 3))] == [0, 0, 3]


def test_what_is_known_of_a_queue_holds_for_a_while() -> None:
    kinds = noted(("t", "a"))
    assert kinds.room(["a"], free(0, 3), now=RUNNERS_KNOWN_SECONDS - 0.1) == 0
    assert kinds.room(["a"], free(0, 3), now=RUNNERS_KNOWN_SECONDS) == 3


@pytest.mark.parametrize(("is_full", "room"), [(True, 0), (False, 3)])
def test_a_queue_that_was_looked_at_and_brought_nothing_is_known_no_more(is_full: bool, room: int) -> None:
    kinds = noted(("t", "a"))
    kinds.note(["b", "a"], [job(jobs.anoop.name, "b")], is_full=is_full, now=0.0)
    assert kinds.room(["a"], free(0, 3), now=0.5) == room


def test_of_very_many_queues_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_QUEUES_REMEMBERED", 2)
    kinds = noted(("t", "a"), ("t", "b"), ("t", "c"))
    assert kinds.room(["a"], free(0, 3), now=0.5) == 0
    kinds.note(["d"], [job(jobs.noop.name, "d")], is_full=False, now=0.5)
    assert [kinds.room([name], free(0, 3), now=0.5) for name in "abcd"] == [3, 3, 3, 0]


# With a worker

FULL = [("apass_gate", "noop"), ("pass_gate", "anoop")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("waiting", "quick"), FULL)
def test_jobs_of_one_kind_keep_none_of_the_other_from_running(
    worker_thread: Start, gates: Any, waiting: str, quick: str
) -> None:
    getattr(worker_jobs, waiting).using(priority=1).defer_many([("g",)] * 4)
    worker_thread(concurrency=4, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 4)
    getattr(jobs, quick).defer_many([()] * 30)
    wait_for_statuses(completed=30, running=4)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("queue_names", [(), ("waiting", "quick")])
@pytest.mark.parametrize(("waiting", "quick"), FULL)
def test_a_backlog_of_one_kind_keeps_no_other_queue_from_being_served(
    worker_thread: Start, gates: Any, waiting: str, quick: str, queue_names: tuple[str, ...]
) -> None:
    getattr(worker_jobs, waiting).using(queue_name="waiting").defer_many([("g",)] * 50)
    worker_thread(concurrency=4, poll_interval=HOUR, queue_names=queue_names)
    wait_until(lambda: gates["g"].inside == 4)
    getattr(jobs, quick).using(queue_name="quick").defer_many([()] * 30)
    wait_for_statuses(completed=30, running=4, queued=46)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("waiting", "quick"), FULL)
def test_what_there_is_no_slot_for_is_not_claimed_and_released_again_and_again(
    worker_thread: Start, gates: Any, waiting: str, quick: str
) -> None:
    getattr(worker_jobs, waiting).defer_many([("g",)] * 50)
    worker_thread(concurrency=4, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 4)
    started = time.monotonic()
    first = Job.objects.order_by("id")[4]
    wait_until(
        lambda: Job.objects.get(pk=first.pk).lease >= first.lease + 6, "it came here, and went back, three times"
    )
    assert time.monotonic() - started > 1.0
    assert set(Job.objects.values_list("attempts", flat=True)) <= {0, 1}

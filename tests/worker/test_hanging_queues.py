"""`HangingQueues`: a worker process passes the names of hanging queues on to the process that replaces it."""

import os

import pytest

from django_skipqueue.worker.protocol import HANGING_ENTRIES, SHORTEST_MEMORY, HangingQueues


def test_no_queue_hangs_without_a_note_about_it() -> None:
    queues = HangingQueues()
    assert queues.is_empty(0.0)
    assert not queues.hangs("mail", now=0.0, slots=1)


def test_the_next_process_reads_the_notes_of_the_last_process() -> None:
    queues = HangingQueues()
    pid = os.fork()
    if not pid:
        queues.note("größe", seconds=1.0, now=100.0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert queues.hangs("größe", now=100.0, slots=3)
    assert not queues.hangs("mail", now=100.0, slots=3)
    assert not queues.is_empty(100.0 + SHORTEST_MEMORY - 1)
    assert queues.is_empty(100.0 + SHORTEST_MEMORY)
    assert not queues.hangs("größe", now=100.0 + SHORTEST_MEMORY, slots=3)


@pytest.mark.parametrize(
    ("slots", "stuck_attempts"), [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8), (10_000, HANGING_ENTRIES // 2)]
)
def test_a_queue_hangs_when_its_attempts_could_have_filled_half_of_the_slots(slots: int, stuck_attempts: int) -> None:
    queues = HangingQueues()
    for _ in range(stuck_attempts):
        assert not queues.hangs("mail", now=1.0, slots=slots)
        queues.note("mail", seconds=1.0, now=0.0)
    assert queues.hangs("mail", now=1.0, slots=slots)


@pytest.mark.parametrize("seconds", [1.0, SHORTEST_MEMORY, 3600.0])
def test_a_queue_hangs_for_longer_than_its_last_hanging_attempt_took(seconds: float) -> None:
    queues = HangingQueues()
    queues.note("mail", seconds=seconds, now=0.0)
    assert queues.hangs("mail", now=1.5 * seconds, slots=2)


def test_the_oldest_of_too_many_hanging_attempts_is_forgotten() -> None:
    queues = HangingQueues()
    for number in range(HANGING_ENTRIES + 1):
        queues.note(str(number), seconds=1.0, now=float(number))
    forgotten = [number for number in range(HANGING_ENTRIES + 1) if not queues.hangs(str(number), now=1.0, slots=2)]
    assert forgotten == [0]

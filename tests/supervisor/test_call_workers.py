"""Who is called when there are jobs, and who else if a call remains without an answer."""

import os
from collections.abc import Callable, Iterator

import pytest

from django_skipqueue.runtime.protocol import CALL, COMMANDS_SIZE, decode_commands
from django_skipqueue.runtime.standby import Standby
from django_skipqueue.supervisor.call_workers import PATIENCE, CallWorkers
from django_skipqueue.supervisor.process import MOST_CALLS, WorkerProcess
from django_skipqueue.supervisor.turns import Turns
from django_skipqueue.values.times import NEVER

Make = Callable[..., list["Worker"]]


class Worker:
    """The other end of a `WorkerProcess`: reads calls, and offers slots."""

    def __init__(self, number: int, room: int) -> None:
        self.process = WorkerProcess(f"m/{number}", 4)
        self.process.id, self.process.pid = f"m/{number}:0", os.getpid()
        self.process.standby = self.standby = Standby()
        self.lifeline, self.process._lifeline = os.pipe()
        os.set_blocking(self.lifeline, False)
        self.claimed = 0
        self.standby.offer(room=room, claimed=0)

    def calls(self) -> list[str]:
        """The queues of the calls that were sent since the last look."""
        try:
            commands = list(decode_commands(os.read(self.lifeline, COMMANDS_SIZE)))
        except BlockingIOError:
            return []
        assert {kind for kind, _ in commands} == {CALL}
        return [queue_name for _, queue_name in commands]

    def answer(self, *, claimed: int, room: int) -> None:
        """Read the calls, claim, and go to sleep again."""
        for _ in self.calls():
            self.standby.hear()
        self.claimed += claimed
        self.standby.offer(room=room, claimed=self.claimed)


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Worker] = []

    def workers(*rooms: int) -> list[Worker]:
        made.extend(Worker(number, room) for number, room in enumerate(rooms, 1))
        return made

    yield workers
    for worker in made:
        os.close(worker.lifeline)
        os.close(worker.process._lifeline)


def service(workers: list[Worker], *queue_names: str) -> CallWorkers:
    return CallWorkers([worker.process for worker in workers], queue_names, Turns())


def run(calls: CallWorkers, *, later: float = 0.0) -> None:
    """Run it as the loop does when it is due; `later`: after so many seconds."""
    now = calls.due_at + later
    assert now < NEVER
    calls.run(now)


def test_one_job_calls_one_worker_the_one_with_the_most_free_slots(make: Make) -> None:
    workers = make(2, 4, 0)
    calls = service(workers)
    calls.notified(["mail"])
    run(calls)
    assert [worker.calls() for worker in workers] == [[], ["mail"], []]


def test_several_jobs_call_as_many_workers_as_have_slots_for_them(make: Make) -> None:
    workers = make(2, 2, 2)
    calls = service(workers)
    calls.notified(["mail,3"])
    run(calls)
    assert [worker.calls() for worker in workers] == [["mail"], ["mail"], []]


def test_more_jobs_than_slots_call_the_full_ones_too_and_each_once(make: Make) -> None:
    workers = make(0, 1)
    calls = service(workers)
    for _ in range(2):
        calls.notified(["mail,9"])
        run(calls)
        workers[1].answer(claimed=0, room=1)
    assert workers[0].calls() == ["mail"]


def test_a_queue_that_is_not_served_calls_nobody(make: Make) -> None:
    workers = make(4)
    calls = service(workers, "mail")
    calls.notified(["other", "", ",a probe"])
    assert calls.due_at == NEVER


def test_a_call_that_is_not_answered_soon_calls_another(make: Make) -> None:
    workers = make(4, 3, 2)
    calls = service(workers)
    calls.notified(["mail"])
    run(calls)
    run(calls, later=PATIENCE)
    assert [worker.calls() for worker in workers] == [["mail"], ["mail"], []]


def test_a_worker_that_has_become_full_calls_another(make: Make) -> None:
    workers = make(4, 3)
    calls = service(workers)
    calls.notified(["mail"])
    run(calls)
    workers[0].answer(claimed=0, room=0)
    run(calls)
    assert workers[1].calls() == ["mail"]


def test_a_worker_that_fills_all_its_slots_has_others_look_for_more(make: Make) -> None:
    workers = make(4, 4)
    calls = service(workers)
    calls.notified(["mail"])
    run(calls)
    workers[0].answer(claimed=4, room=0)
    run(calls)
    run(calls)
    assert workers[1].calls() == ["mail"]


def test_a_call_that_was_answered_is_forgotten(make: Make) -> None:
    workers = make(4, 4)
    calls = service(workers)
    calls.notified(["mail"])
    run(calls)
    workers[0].answer(claimed=1, room=3)
    run(calls)
    assert calls.due_at == NEVER
    assert workers[1].calls() == []


def test_a_slot_is_promised_once(make: Make) -> None:
    workers = make(1, 1)
    calls = service(workers)
    for _ in range(2):
        calls.notified(["mail"])
        calls.run(calls.due_at)
    assert [worker.calls() for worker in workers] == [["mail"], ["mail"]]


def test_a_process_that_was_replaced_has_answered(make: Make) -> None:
    workers = make(4)
    calls = service(workers)
    calls.notified(["mail"])
    run(calls)
    workers[0].process.id = "m/1:1"
    run(calls)
    assert calls.due_at == NEVER


def test_many_queues_at_once_are_one_call_for_all(make: Make) -> None:
    workers = make(4)
    calls = service(workers)
    calls.notified([f"queue {number}" for number in range(MOST_CALLS + 1)])
    run(calls)
    assert workers[0].calls() == [""]


def test_calls_never_fill_the_smallest_pipe_and_none_is_lost(make: Make) -> None:
    (worker,) = make(0)
    names = [f"{'q' * 990}{number:010}" for number in range(50)]
    for name in names:
        worker.process.call(name)
    assert worker.calls() == [*names[:MOST_CALLS], ""]
    for _ in range(MOST_CALLS + 1):
        worker.standby.hear()
    worker.answer(claimed=0, room=0)
    assert worker.process.unheard == 0


class TestTurns:
    """Beside other machines."""

    @pytest.fixture
    def calls(self, make: Make) -> tuple[CallWorkers, list[Worker]]:
        workers, turns = make(4), Turns()
        turns.see(["other/1:0"])
        return CallWorkers([worker.process for worker in workers], (), turns), workers

    def test_who_found_nothing_answers_the_next_notification_later(
        self, calls: tuple[CallWorkers, list[Worker]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("random.uniform", lambda least, most: most)
        service, (worker,) = calls
        service.notified(["mail"])
        at = service.due_at
        service.run(at)
        worker.answer(claimed=0, room=4)
        service.run(at + 0.01)
        service.notified(["mail"])
        assert service.due_at == pytest.approx(at + 0.11, abs=0.01)
        service.notified(["mail,2"])
        assert service.due_at < at + 0.1, "there are jobs for all"

    def test_who_won_answers_at_once(self, calls: tuple[CallWorkers, list[Worker]]) -> None:
        service, (worker,) = calls
        for _ in range(3):
            service.notified(["mail"])
            service.run(service.due_at)
            worker.answer(claimed=1, room=4)
            service.run(service.due_at)

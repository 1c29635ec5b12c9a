"""`CallWorkers`: which workers are called when there are jobs, and which if a call gets no answer."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from django_skipqueue.supervisor.calls import ANSWER_PAUSE, CallWorkers, Contention
from django_skipqueue.supervisor.processes import CALL_PATIENCE_SECONDS, MOST_CALLS, WorkerProcess
from django_skipqueue.values.records import NEVER, serves
from django_skipqueue.worker.protocol import CALL, COMMANDS_SIZE, SharedCounts, decode_commands

Make = Callable[..., list["Worker"]]


class Clock:
    """A clock that stands still."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


clock = Clock()


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.supervisor.calls.time", SimpleNamespace(monotonic=clock))


class Worker:
    """The other end of a `WorkerProcess`: reads calls, and offers slots."""

    def __init__(self, number: int, slots: int) -> None:
        self.process = WorkerProcess(f"m/{number}", 4)
        self.process.id, self.process.pid = f"m/{number}:0", os.getpid()
        self.process.shared = self.shared = SharedCounts()
        self.lifeline, self.process.lifeline = os.pipe()
        os.set_blocking(self.lifeline, False)
        self.claimed = 0
        self.slots = slots
        self.sleep()

    def calls(self) -> list[str]:
        """Read the calls that were sent since the last read. Returns their queues."""
        try:
            commands = list(decode_commands(os.read(self.lifeline, COMMANDS_SIZE)))
        except BlockingIOError:
            return []
        assert {kind for kind, _ in commands} == {CALL}
        for _ in commands:
            self.shared.read_call()
        return [queue_name for _, queue_name in commands]

    def sleep(self, *, room: int | None = None) -> None:
        self.shared.offer(slots=self.slots, room=self.slots if room is None else room, claimed=self.claimed)

    def answer(self, *, claimed: int, slots: int) -> list[str]:
        """Read the calls, claim, and go to sleep again."""
        read = self.calls()
        self.shared.begin_claim()
        self.shared.end_claim()
        self.claimed += claimed
        self.slots = slots
        self.sleep()
        return read


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Worker] = []

    def workers(*slots: int) -> list[Worker]:
        made.extend(Worker(number, each) for number, each in enumerate(slots, 1))
        return made

    yield workers
    for worker in made:
        os.close(worker.lifeline)
        os.close(worker.process.lifeline)


def service(workers: list[Worker], *queue_names: str, contention: Contention | None = None) -> CallWorkers:
    processes = [worker.process for worker in workers]
    return CallWorkers(processes, partial(serves, queue_names, external={"carried"}), contention or Contention())


def review(calls: CallWorkers) -> None:
    """Run the service when its next review is due, as the loop does."""
    assert calls.due_at < NEVER
    clock.now += 1.01 * CALL_PATIENCE_SECONDS
    calls.run(clock.now)


def read(workers: list[Worker]) -> list[list[str]]:
    return [worker.calls() for worker in workers]


def test_one_job_calls_one_worker_the_one_with_the_most_free_slots(make: Make) -> None:
    workers = make(2, 4, 0)
    service(workers).notified(["mail"])
    assert read(workers) == [[], ["mail"], []]


def test_nobody_is_called_for_a_queue_that_the_last_look_has_found_paused(make: Make) -> None:
    (worker,) = make(2)
    calls = service([worker])
    calls.queues_found([], ["mail"])
    calls.notified(["mail,3", "other"])
    assert worker.calls() == ["other"]
    calls.queues_found([], [])
    calls.notified(["mail"])
    assert worker.calls() == ["mail"]


def test_nobody_is_called_for_a_carried_queue_that_he_was_not_given(make: Make) -> None:
    (worker,) = make(2)
    calls = service([worker])
    calls.notified(["carried,3"])
    calls.queues_found(["carried"], [])
    assert worker.calls() == []
    calls = service([worker], "carried")
    calls.notified(["carried"])
    assert worker.calls() == ["carried"]


def test_several_jobs_call_as_many_workers_as_have_slots_for_them(make: Make) -> None:
    workers = make(2, 2, 2)
    service(workers).notified(["mail,3"])
    assert read(workers) == [["mail"], ["mail"], []]


def test_a_process_that_could_not_be_started_is_not_called(make: Make) -> None:
    (worker,) = make(1)
    CallWorkers([WorkerProcess("m/2", 4), worker.process], lambda _: True, Contention()).notified(["mail,9"])
    assert worker.calls() == ["mail"]


def test_a_slot_is_given_once(make: Make) -> None:
    workers = make(1, 1)
    calls = service(workers)
    calls.notified(["mail"])
    calls.notified(["mail"])
    assert read(workers) == [["mail"], ["mail"]]


def test_jobs_are_counted_beside_a_call_that_is_not_heard_yet(make: Make) -> None:
    workers = make(2, 1)
    calls = service(workers)
    for _ in range(3):
        calls.notified(["mail"])
    assert read(workers) == [["mail"], ["mail"]], "two for the first worker, in one call, and one for the second"


def test_more_jobs_than_slots_call_the_full_ones_too_and_each_once(make: Make) -> None:
    workers = make(0, 1)
    calls = service(workers)
    for _ in range(3):
        calls.notified(["mail,9"])
        workers[1].answer(claimed=0, slots=1)
    assert workers[0].calls() == ["mail"]


def test_a_full_worker_is_called_again_once_it_has_begun_a_claim(make: Make) -> None:
    """The claim may have begun before the job was enqueued."""
    (worker,) = make(0)
    calls = service([worker])
    calls.notified(["mail"])
    assert worker.calls() == ["mail"]
    calls.notified(["mail"])
    assert worker.calls() == [], "it has yet to claim"
    worker.shared.begin_claim()
    calls.notified(["mail"])
    assert worker.calls() == ["mail"]


def test_queues_that_are_not_served_and_probes_call_nobody(make: Make) -> None:
    workers = make(4)
    calls = service(workers, "mail")
    calls.notified(["other", "", ",a probe"])
    calls.queues_found(["other"], [])
    assert (read(workers), calls.due_at) == ([[]], NEVER)
    calls = service(workers)
    calls.notified(["", ",a probe", "carried"])
    calls.queues_found(["carried"], [])
    assert (read(workers), calls.due_at) == ([[]], NEVER)


class TestReview:
    """The review of a call: whether it was answered, and what the worker found."""

    def test_a_call_that_was_answered_is_over(self, make: Make) -> None:
        workers = make(4, 4)
        calls = service(workers)
        calls.notified(["mail"])
        workers[0].answer(claimed=1, slots=3)
        review(calls)
        assert (read(workers), calls.due_at) == ([[], []], NEVER)

    def test_a_call_that_is_not_answered_soon_calls_another_and_then_another(self, make: Make) -> None:
        workers = make(4, 3, 2, 0)
        calls = service(workers)
        calls.notified(["mail"])
        assert read(workers) == [["mail"], [], [], []]
        review(calls)
        assert read(workers) == [[], ["mail"], [], []]
        review(calls)
        assert read(workers) == [[], [], ["mail"], []]
        review(calls)
        assert read(workers) == [[], [], [], ["mail"]]
        assert calls.due_at == NEVER

    def test_a_worker_that_does_not_answer_is_not_the_first_to_be_called_again(self, make: Make) -> None:
        workers = make(4, 3)
        calls = service(workers)
        calls.notified(["mail"])
        read(workers)
        review(calls)
        workers[1].answer(claimed=1, slots=3)
        review(calls)
        calls.notified(["mail"])
        assert read(workers) == [[], ["mail"]]

    def test_steady_notifications_do_not_put_off_a_review(self, make: Make) -> None:
        workers = make(10, 5)
        calls = service(workers)
        for _ in range(5):
            calls.notified(["mail"])
            clock.now += CALL_PATIENCE_SECONDS / 2
        calls.run(clock.now)
        assert workers[1].calls() == ["mail"]

    def test_workers_that_do_not_answer_are_called_once_however_many_jobs_come(self, make: Make) -> None:
        workers = make(10, 10)
        calls = service(workers)
        for _ in range(300):
            calls.notified(["mail"])
            clock.now += 1.01 * CALL_PATIENCE_SECONDS
            calls.run(clock.now)
        assert read(workers) == [["mail"], ["mail"]]
        assert calls.due_at == NEVER

    def test_a_worker_that_is_gone_has_not_answered(self, make: Make) -> None:
        workers = make(4, 3)
        calls = service(workers)
        calls.notified(["mail"])
        workers[0].process.pid = 0
        review(calls)
        assert read(workers)[1] == ["mail"]

    def test_a_process_in_the_place_of_a_called_worker_has_not_answered(self, make: Make) -> None:
        workers = make(4, 3)
        calls = service(workers)
        calls.notified(["mail"])
        workers[0].process.id = "m/1:1"
        workers[0].answer(claimed=1, slots=3)
        review(calls)
        assert read(workers)[1] == ["mail"]

    def test_other_workers_are_called_for_jobs_that_a_full_worker_may_have_left(self, make: Make) -> None:
        """The full worker was called for one queue, and has claimed from another."""
        workers = make(1, 1, 1)
        calls = service(workers)
        calls.notified(["mail,2"])
        workers[0].answer(claimed=1, slots=0)
        workers[1].answer(claimed=0, slots=1)
        review(calls)
        assert read(workers) == [[], [], ["mail"]]

    def test_one_job_for_a_worker_with_one_slot_is_one_call(self, make: Make) -> None:
        workers = make(1, 1)
        calls = service(workers)
        calls.notified(["mail"])
        workers[0].answer(claimed=1, slots=0)
        review(calls)
        assert (read(workers), calls.due_at) == ([[], []], NEVER)


class TestLook:
    """After a search of the supervisor, which finds queues, but not how many jobs they have."""

    def test_all_that_would_claim_are_called(self, make: Make) -> None:
        workers = make(4, 0, 0, 1)
        workers[1].sleep(room=7)
        service(workers).queues_found(["mail"], [])
        assert read(workers) == [["mail"], ["mail"], [], ["mail"]]

    def test_many_queues_are_one_call_for_all(self, make: Make) -> None:
        (worker,) = make(4)
        service([worker]).queues_found([f"queue {number}" for number in range(MOST_CALLS + 1)], [])
        assert worker.calls() == [""]


def test_many_queues_at_once_are_one_call_for_all(make: Make) -> None:
    (worker,) = make(4)
    service([worker]).notified([f"queue {number}" for number in range(MOST_CALLS + 1)])
    assert worker.calls() == [""]


def test_calls_never_fill_the_smallest_pipe_and_none_is_lost(make: Make) -> None:
    (worker,) = make(0)
    names = [f"{'q' * 990}{number:010}" for number in range(50)]
    for name in names:
        worker.process.call(name, 1, clock.now)
    assert worker.calls() == [*names[:MOST_CALLS], ""]
    worker.answer(claimed=0, slots=0)
    assert worker.process.call("mail", 1, clock.now) == MOST_CALLS + 2
    assert worker.calls() == ["mail"]


class TestContention:
    """Several machines get each notification."""

    @pytest.fixture
    def worker(self, make: Make) -> Worker:
        (worker,) = make(4)
        return worker

    @pytest.fixture
    def calls(self, worker: Worker) -> CallWorkers:
        contention = Contention()
        contention.see(["other/1:0"])
        return service([worker], contention=contention)

    def test_who_found_nothing_answers_the_next_notification_later(self, worker: Worker, calls: CallWorkers) -> None:
        calls.notified(["mail"])
        assert worker.answer(claimed=0, slots=4) == ["mail"]
        calls.contention.phase = calls.due_at % ANSWER_PAUSE
        review(calls)
        calls.notified(["mail"])
        assert calls.due_at == pytest.approx(clock.now + ANSWER_PAUSE, abs=ANSWER_PAUSE)
        assert worker.calls() == []
        calls.notified(["mail"])
        assert worker.calls() == ["mail"], "two jobs: there is one for each machine"

    def test_who_won_answers_at_once(self, worker: Worker, calls: CallWorkers) -> None:
        for _ in range(3):
            calls.notified(["mail"])
            assert worker.answer(claimed=1, slots=4) == ["mail"]
            review(calls)

    def test_who_claims_without_a_call_answers_at_once_too(self, worker: Worker, calls: CallWorkers) -> None:
        """A busy worker claims when it settles, so it may claim a job before the notification arrives."""
        calls.contention.quiet_until = clock.now + 3600
        worker.claimed += 1
        worker.sleep()
        calls.notified(["mail"])
        assert worker.calls() == ["mail"]

    def test_a_look_is_answered_at_once(self, worker: Worker, calls: CallWorkers) -> None:
        calls.contention.quiet_until = clock.now + 3600
        calls.queues_found(["mail"], [])
        assert worker.calls() == ["mail"]

    def test_notifications_that_wait_are_answered_together(self, worker: Worker, calls: CallWorkers) -> None:
        calls.contention.machines = 50
        calls.contention.quiet_until = clock.now + ANSWER_PAUSE
        for _ in range(10):
            calls.notified(["mail"])
        assert worker.calls() == []
        calls.run(calls.due_at)
        assert worker.calls() == ["mail"]
